# Go: programs that never call the C library, linked with it and without
# prepares: yes
# expects: came_over_tcp
directory=$CACHE/go
if [ "${1:-}" = prepare ]; then
    command -v go >/dev/null && command -v gcc >/dev/null || exit 0
    mkdir -p "$directory/static" "$directory/dynamic"
    source=$(dirname "$0")/go_echo.go
    cp "$source" "$directory/static/main.go"
    # With C in it, so that Go's linker makes a program with a dynamic loader.
    sed 's/^package main$/&\n\n\/\/ static int one(void) { return 1; }\nimport "C"/' "$source" >"$directory/dynamic/main.go"
    export GOCACHE=$directory/cache GOFLAGS=-mod=mod GOTOOLCHAIN=local
    for kind in static dynamic; do printf 'module echo\n\ngo 1.19\n' >"$directory/$kind/go.mod"; done
    (cd "$directory/static" && CGO_ENABLED=0 go build -o ../echo-static .) &&
        (cd "$directory/dynamic" && CGO_ENABLED=1 go build -ldflags -linkmode=external -o ../echo-dynamic .)
    exit
fi
. "$(dirname "$0")/../../apps/lib.sh"
[ -x "$directory/echo-dynamic" ] || skip "no Go and gcc on this machine"
need python3
go version >>"$WORK/version"
for kind in static dynamic; do
    program=$directory/echo-$kind
    port=$(free_port)
    launch "$program" server "$port"
    await_listener "$port"
    with_mode "$program" client "$port"
    with_mode python3 -c '
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(b"hello")
    print("python", connection.recv(99))
' "$port"
    if [ "$MODE" = beeline ]; then
        # Nothing is counted in such a process, but why is told.
        case $kind in static) reason=not_loadable ;; *) reason=raw_system_calls ;; esac
        "$BEELINE" stat "$server" --json | grep -q "\"$reason\"" || { echo "no $reason for $kind" >&2; exit 1; }
    fi
done
# A server in C's own language, so to speak: Go's clients are nobody's lanes, and others' are.
port=$(free_port)
launch python3 -c '
import socket, sys, threading
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]]).start()
' "$port"
await_listener "$port"
for kind in static dynamic; do with_mode "$directory/echo-$kind" client "$port"; done
