# nginx, binary upgrade: a new master takes over the listeners from the old one by exec, while clients fetch
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need nginx curl
version nginx -v
port=$(free_port)
mkdir -p "$WORK/www"
some_bytes 3000000 >"$WORK/www/file"
cat >"$WORK/nginx.conf" <<CONF
pid $WORK/nginx.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 128; }
http {
    access_log off;
    client_body_temp_path $WORK/body;
    proxy_temp_path $WORK/proxy;
    fastcgi_temp_path $WORK/fastcgi;
    uwsgi_temp_path $WORK/uwsgi;
    scgi_temp_path $WORK/scgi;
    server { listen 127.0.0.1:$port; root $WORK/www; }
}
CONF
# The new master is what the old one was started as.
with_mode "$(command -v nginx)" -p "$WORK" -c "$WORK/nginx.conf" -e stderr >&2
await test -s "$WORK/nginx.pid"
old=$(cat "$WORK/nginx.pid")
started+=("$old")
chmod 755 "$WORK" "$WORK/www"
await_port "$port"
fetch() { with_mode curl -sS --max-time 30 "http://127.0.0.1:$port/file" | sha256sum; }
several() { for n in $(seq 1 10); do fetch; done | sort | uniq -c | sed "s/^ */$1 /"; }

several "old master"
expect_lanes "$old" 10
# All the time until the end.
(for n in $(seq 1 60); do fetch; done | sort | uniq -c | sed 's/^ *//' >"$WORK/throughout") &
throughout=$!
kill -USR2 "$old"
await test -s "$WORK/nginx.pid.oldbin"
await sh -c "[ -s $WORK/nginx.pid ] && [ \$(cat $WORK/nginx.pid) != $old ]"
new=$(cat "$WORK/nginx.pid")
started+=("$new")
several "both masters"
kill -WINCH "$old"
several "old workers gone"
kill -QUIT "$old"
await sh -c "! kill -0 $old"
several "new master"
wait "$throughout"
echo "throughout $(cat "$WORK/throughout")"
kill -QUIT "$new"
await sh -c "! kill -0 $new"
