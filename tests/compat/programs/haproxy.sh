# HAProxy: in front of two nginx-like servers, HTTP and TCP mode, many clients, a reload while they fetch
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need haproxy curl python3
version haproxy -v
front=$(free_port)
plain=$(free_port)
mkdir -p "$WORK/www"
some_bytes 8000000 >"$WORK/www/file"
for n in 1 2; do
    back[n]=$(free_port)
    launch python3 -m http.server --bind 127.0.0.1 --directory "$WORK/www" "${back[n]}"
    await_listener "${back[n]}"
done
cat >"$WORK/haproxy.cfg" <<CONF
global
    maxconn 500
defaults
    timeout connect 10s
    timeout client 60s
    timeout server 60s
listen web
    mode http
    bind 127.0.0.1:$front
    server one 127.0.0.1:${back[1]}
    server two 127.0.0.1:${back[2]}
listen plain
    mode tcp
    bind 127.0.0.1:$plain
    server one 127.0.0.1:${back[1]}
CONF
launch haproxy -W -db -f "$WORK/haproxy.cfg" -p "$WORK/pid"
main=$server
await_listener "$front"
await_listener "$plain"
fetch() { with_mode curl -sS --max-time 60 "$@"; }
echo "http $(fetch "http://127.0.0.1:$front/file" | sha256sum)"
echo "tcp $(fetch "http://127.0.0.1:$plain/file" | sha256sum)"
for n in $(seq 1 6); do
    for k in 1 2 3; do fetch "http://127.0.0.1:$front/file" | sha256sum; done >"$WORK/parallel.$n" &
    fetching[n]=$!
done
kill -USR2 "$main"
for n in $(seq 1 6); do wait "${fetching[n]}"; done
echo "during a reload $(cat "$WORK"/parallel.* | sort | uniq -c | sed 's/^ *//')"
echo "after a reload $(fetch "http://127.0.0.1:$front/file" | sha256sum)"
stop "$main"
