# PHP-FPM behind nginx: scripts over FastCGI on TCP, a large answer, an upload, several at once
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
fpm=$(ls /usr/sbin/php-fpm* 2>/dev/null | tail -n1)
[ -n "$fpm" ] || skip "no php-fpm on this machine"
need nginx curl
version "$fpm" -v
front=$(free_port)
back=$(free_port)
mkdir -p "$WORK/www"
cat >"$WORK/www/index.php" <<'PHP'
<?php
if (isset($_GET['bytes'])) { echo substr(str_repeat("0123456789abcdef", $_GET['bytes'] / 16 + 1), 0, $_GET['bytes']); }
else { echo $_SERVER['REQUEST_METHOD'], " ", md5(file_get_contents('php://input')), "\n"; }
PHP
chmod -R a+rX "$WORK"
cat >"$WORK/fpm.conf" <<CONF
[global]
error_log = /dev/stderr
daemonize = no
[www]
user = www-data
group = www-data
listen = 127.0.0.1:$back
pm = static
pm.max_children = 3
CONF
cat >"$WORK/nginx.conf" <<CONF
daemon off;
pid $WORK/nginx.pid;
error_log stderr warn;
events { worker_connections 128; }
http {
    access_log off;
    client_body_temp_path $WORK/body;
    proxy_temp_path $WORK/proxy;
    fastcgi_temp_path $WORK/fastcgi;
    uwsgi_temp_path $WORK/uwsgi;
    scgi_temp_path $WORK/scgi;
    client_max_body_size 100m;
    server {
        listen 127.0.0.1:$front;
        location / {
            fastcgi_pass 127.0.0.1:$back;
            fastcgi_param SCRIPT_FILENAME $WORK/www/index.php;
            fastcgi_param REQUEST_METHOD \$request_method;
            fastcgi_param QUERY_STRING \$query_string;
            fastcgi_param CONTENT_TYPE \$content_type;
            fastcgi_param CONTENT_LENGTH \$content_length;
        }
    }
}
CONF
launch "$fpm" -n -y "$WORK/fpm.conf"
await_listener "$back"
launch nginx -p "$WORK" -c "$WORK/nginx.conf" -e stderr
main=$server
await_port "$front"
fetch() { with_mode curl -sS --max-time 60 "$@"; }
echo "plain $(fetch "http://127.0.0.1:$front/")"
echo "large $(fetch "http://127.0.0.1:$front/?bytes=5000000" | sha256sum)"
some_bytes 3000000 >"$WORK/upload"
echo "upload $(fetch --data-binary "@$WORK/upload" "http://127.0.0.1:$front/")"
for n in $(seq 1 8); do
    fetch "http://127.0.0.1:$front/?bytes=1000000" | sha256sum >"$WORK/parallel.$n" &
    fetching[n]=$!
done
for n in $(seq 1 8); do wait "${fetching[n]}"; done
echo "in parallel $(cat "$WORK"/parallel.* | sort | uniq -c | sed 's/^ *//')"
expect_lanes "$main" 8
