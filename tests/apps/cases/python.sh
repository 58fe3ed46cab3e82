# Python: a server with selectors, one with threads, one that forks; clients that check every byte.
. "$(dirname "$0")/../lib.sh"
need python3
version python3 --version
for kind in selectors threads forks; do
    port=$(free_port)
    launch python3 "$(dirname "$0")/../echo.py" "$kind" "$port"
    main=$server
    await_port "$port"
    echo "== $kind"
    with_mode python3 "$(dirname "$0")/../echo.py" client "$port"
    if [ "$kind" != forks ]; then expect_lanes "$main" 10; fi
done
