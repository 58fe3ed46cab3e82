# stunnel: a server and a client around a web server, large files in parallel
. "$(dirname "$0")/../../apps/lib.sh"
need stunnel openssl curl python3
version stunnel -version
web=$(free_port)
outer=$(free_port)
inner=$(free_port)
mkdir -p "$WORK/www"
some_bytes 10000000 >"$WORK/www/file"
openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 10 -keyout "$WORK/key" -out "$WORK/certificate" 2>/dev/null
cat "$WORK/key" "$WORK/certificate" >"$WORK/pem"
chmod 600 "$WORK/pem"
printf 'foreground = yes\npid =\n[s]\ncert = %s\naccept = 127.0.0.1:%s\nconnect = 127.0.0.1:%s\n' "$WORK/pem" "$outer" "$web" \
    >"$WORK/server.conf"
printf 'foreground = yes\npid =\n[c]\nclient = yes\nCAfile = %s\nverifyChain = yes\naccept = 127.0.0.1:%s\nconnect = 127.0.0.1:%s\n' \
    "$WORK/certificate" "$inner" "$outer" >"$WORK/client.conf"
launch python3 -m http.server --bind 127.0.0.1 --directory "$WORK/www" "$web"
await_listener "$web"
launch stunnel "$WORK/server.conf"
main=$server
launch stunnel "$WORK/client.conf"
await_listener "$outer"
await_listener "$inner"
fetch() { with_mode curl -sS --max-time 60 "$@"; }
for n in 1 2 3 4; do
    fetch "http://127.0.0.1:$inner/file" | sha256sum >"$WORK/parallel.$n" &
    fetching[n]=$!
done
for n in 1 2 3 4; do wait "${fetching[n]}"; done
sort "$WORK"/parallel.* | uniq -c | sed 's/^ *//'
echo "directly $(fetch --cacert "$WORK/certificate" --connect-to "localhost::127.0.0.1:$outer" https://localhost/file | sha256sum)"
expect_lanes "$main" 8
