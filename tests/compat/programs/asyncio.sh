# Python asyncio: streams with back pressure, a thousand connections, TLS, half-close
. "$(dirname "$0")/../../apps/lib.sh"
need python3 openssl
version python3 --version
openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 10 -keyout "$WORK/key" -out "$WORK/certificate" 2>/dev/null
here=$(cd "$(dirname "$0")" && pwd)
for kind in plain tls; do
    port=$(free_port)
    launch python3 "$here/asyncio_echo.py" server "$port" "$kind" "$WORK"
    main=$server
    await_listener "$port"
    with_mode python3 "$here/asyncio_echo.py" client "$port" "$kind" "$WORK" | sed "s/^/$kind /"
    expect_lanes "$main" 300
done
