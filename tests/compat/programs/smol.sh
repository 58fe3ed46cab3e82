# smol: an echo server and clients, whose readiness comes past the C library (rustix)
# prepares: yes
# expects: raw_system_calls
directory=$CACHE/smol
if [ "${1:-}" = prepare ]; then
    command -v cargo >/dev/null || exit 0
    mkdir -p "$directory/src"
    cp "$(dirname "$0")/smol_echo.rs" "$directory/src/main.rs"
    printf '[package]\nname = "smol-echo"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\nsmol = "=2.0.2"\n' \
        >"$directory/Cargo.toml"
    cd "$directory" && exec env CARGO_TARGET_DIR="$directory/target" cargo build -q --release
fi
. "$(dirname "$0")/../../apps/lib.sh"
program=$directory/target/release/smol-echo
[ -x "$program" ] || skip "no cargo on this machine"
need python3
echo "smol 2.0.2" >>"$WORK/version"
port=$(free_port)
launch "$program" server "$port"
await_listener "$port"
for round in 1 2 3; do with_mode "$program" client "$port"; done
# The server that knows nothing of lanes serves clients that would have some.
with_mode python3 -c '
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    for n in range(500):
        message = b"message %d" % n
        connection.sendall(message)
        assert connection.recv(99) == message
    big = bytes(range(256)) * 8192
    import threading
    threading.Thread(target=connection.sendall, args=[big]).start()
    back = b""
    while len(back) < len(big):
        back += connection.recv(1 << 20)
    print("python", back == big)
' "$port"
