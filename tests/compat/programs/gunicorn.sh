# gunicorn: pre-forked Python workers, answers of many sizes, uploads, a worker killed, a reload
. "$(dirname "$0")/../../apps/lib.sh"
need gunicorn curl python3
version gunicorn --version
port=$(free_port)
cat >"$WORK/app.py" <<'PY'
import hashlib

def app(environ, start):
    if environ["REQUEST_METHOD"] == "GET":
        body = b"x" * int(environ["PATH_INFO"].strip("/") or 0)
    else:
        body = hashlib.sha256(environ["wsgi.input"].read()).hexdigest().encode()
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
PY
launch gunicorn --chdir "$WORK" --workers 3 --bind "127.0.0.1:$port" --worker-tmp-dir "$WORK" --pid "$WORK/pid" app:app
await test -s "$WORK/pid"
main=$(cat "$WORK/pid")
await_port "$port"
fetch() { with_mode curl -sS --max-time 60 "$@"; }
for size in 0 1 1000 65536 5000000; do echo "$size $(fetch "http://127.0.0.1:$port/$size" | sha256sum)"; done
some_bytes 5000000 >"$WORK/upload"
echo "upload $(fetch --data-binary "@$WORK/upload" "http://127.0.0.1:$port/")"
crowd() {
    for n in $(seq 1 8); do
        for k in 1 2 3 4; do fetch "http://127.0.0.1:$port/300000" | sha256sum; done >"$WORK/parallel.$n" &
        fetching[n]=$!
    done
    for n in $(seq 1 8); do wait "${fetching[n]}"; done
    echo "$1 $(cat "$WORK"/parallel.* | sort | uniq -c | sed 's/^ *//')"
}
crowd "crowd"
kill -KILL "$(pgrep -P "$main" | head -n1)"
await sh -c "[ \$(pgrep -c -P $main) -eq 3 ]"
crowd "after a worker was killed"
expect_lanes "$main" 30
kill -HUP "$main"
sleep 1
crowd "after a reload"
