# wrk: a hundred connections to nginx, kept alive and closed each time
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need wrk nginx
version wrk --version
port=$(free_port)
mkdir -p "$WORK/www"
some_bytes 4000 >"$WORK/www/file"
cat >"$WORK/nginx.conf" <<CONF
daemon off;
pid $WORK/nginx.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path $WORK/body;
    proxy_temp_path $WORK/proxy;
    fastcgi_temp_path $WORK/fastcgi;
    uwsgi_temp_path $WORK/uwsgi;
    scgi_temp_path $WORK/scgi;
    keepalive_requests 1000000;
    server {
        listen 127.0.0.1:$port backlog=1024;
        root $WORK/www;
        location /text { return 200 "hello\n"; }
    }
}
CONF
launch nginx -p "$WORK" -c "$WORK/nginx.conf" -e stderr
main=$server
await_port "$port"
chmod 755 "$WORK" "$WORK/www"
# Errors are facts, rates are not.
load() {
    local what=$1
    shift
    with_mode wrk -t 2 -d 3 "$@" >"$WORK/wrk.$what"
    echo "$what exit code $? answered $(grep -c 'requests in' "$WORK/wrk.$what") errors $(grep -cE 'Socket errors|Non-2xx' "$WORK/wrk.$what")"
    cat "$WORK/wrk.$what" >&2
}
load kept -c 100 "http://127.0.0.1:$port/file"
load text -c 20 "http://127.0.0.1:$port/text"
load closed -c 20 -H 'Connection: close' "http://127.0.0.1:$port/text"
expect_lanes "$main" 100
