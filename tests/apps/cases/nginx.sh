# nginx and curl: forked workers, a large file with and without sendfile, keep-alive, a proxy in front, an upload, a
# reload while serving.
. "$(dirname "$0")/../lib.sh"
PATH=$PATH:/usr/sbin
need nginx curl python3
version nginx -v
front=$(free_port)
back=$(free_port)
mkdir -p "$WORK/www" "$WORK/logs"
some_bytes 20000000 >"$WORK/www/large"
some_bytes 777 >"$WORK/www/small"
cat >"$WORK/nginx.conf" <<CONF
daemon off;
pid $WORK/nginx.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 256; }
http {
    access_log off;
    client_body_temp_path $WORK/body;
    proxy_temp_path $WORK/proxy;
    fastcgi_temp_path $WORK/fastcgi;
    uwsgi_temp_path $WORK/uwsgi;
    scgi_temp_path $WORK/scgi;
    client_max_body_size 100m;
    keepalive_requests 100000;
    upstream back { server 127.0.0.1:$back; keepalive 8; }
    server {
        listen 127.0.0.1:$back;
        root $WORK/www;
        location /sendfile/ { alias $WORK/www/; sendfile on; }
        location /copied/ { alias $WORK/www/; sendfile off; }
        location /length { client_body_in_single_buffer on; return 200 "\$content_length\n"; }
    }
    server {
        listen 127.0.0.1:$front;
        location / {
            proxy_pass http://back;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }
    }
}
CONF
launch nginx -p "$WORK" -c "$WORK/nginx.conf" -e stderr
main=$server
await_port "$front"
await_port "$back"
# Files for the workers, which may run as another user.
chmod 755 "$WORK" "$WORK/www" && chmod 644 "$WORK"/www/*
fetch() { with_mode curl -sS --max-time 60 "$@"; }

for path in sendfile copied; do
    echo "$path $(fetch "http://127.0.0.1:$back/$path/large" | sha256sum)"
    echo "$path small $(fetch "http://127.0.0.1:$back/$path/small" | sha256sum)"
done
echo "through the proxy $(fetch "http://127.0.0.1:$front/copied/large" | sha256sum)"
echo "part $(fetch -r 1000-70000 "http://127.0.0.1:$front/copied/large" | sha256sum)"
echo "upload $(fetch -T "$WORK/www/large" "http://127.0.0.1:$front/length")"
echo "missing $(fetch -o /dev/null -w '%{http_code}' "http://127.0.0.1:$front/nothing")"
# Forty requests over one connection.
echo "kept alive $(fetch "http://127.0.0.1:$front/copied/small?[1-40]" | sha256sum)"
for n in $(seq 1 8); do
    fetch "http://127.0.0.1:$front/copied/large" | sha256sum >"$WORK/parallel.$n" &
    fetching[n]=$!
done
for n in $(seq 1 8); do wait "${fetching[n]}"; done
echo "in parallel $(sort -u "$WORK"/parallel.* | wc -l) $(cat "$WORK/parallel.1")"
expect_lanes "$main" 8

kill -HUP "$main"
for n in $(seq 1 20); do fetch "http://127.0.0.1:$front/copied/small" | sha256sum; done | sort | uniq -c | sed 's/^ */after a reload /'
