# memcached: four threads with libevent, values up to its limit, many clients at once.
. "$(dirname "$0")/../lib.sh"
need memcached python3
version memcached -V
port=$(free_port)
launch memcached -p "$port" -U 0 -l 127.0.0.1 -u "$(id -un)" -t 4 -m 64
main=$server
await_port "$port"
with_mode python3 "$(dirname "$0")/../memcached_client.py" "$port"
expect_lanes "$main" 20
