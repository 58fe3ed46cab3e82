# Node.js: an HTTP server and client of libuv, with keep-alive, large bodies and many requests at once.
. "$(dirname "$0")/../lib.sh"
need node
version node --version
port=$(free_port)
launch node "$(dirname "$0")/../http.js" server "$port"
main=$server
await_port "$port"
with_mode node "$(dirname "$0")/../http.js" client "$port"
expect_lanes "$main" 5
