# Bun: fetch and an HTTP server, which wait by a system call of their own
# prepares: yes
# expects: raw_system_calls
directory=$CACHE/bun
if [ "${1:-}" = prepare ]; then
    command -v npm >/dev/null || exit 0
    mkdir -p "$directory" && cd "$directory"
    [ -x node_modules/@oven/bun-linux-x64-baseline/bin/bun ] || npm install --silent --no-save @oven/bun-linux-x64-baseline@1 >&2
    exit
fi
. "$(dirname "$0")/../../apps/lib.sh"
bun=$directory/node_modules/@oven/bun-linux-x64-baseline/bin/bun
[ -x "$bun" ] || skip "no npm on this machine"
need node python3
echo "Bun $("$bun" --version)" >>"$WORK/version"
export BUN_INSTALL=$WORK HOME=$WORK
cat >"$WORK/serve.js" <<'JS'
const big = new Uint8Array(1 << 20).map((_, i) => (i * 7) & 255);
Bun.serve({ port: +process.argv[2], hostname: "127.0.0.1", async fetch(request) {
    const url = new URL(request.url);
    if (url.pathname === "/echo") return new Response(await request.arrayBuffer());
    if (url.pathname === "/big") return new Response(big);
    return new Response("hello " + url.searchParams.get("i"));
} });
JS
cat >"$WORK/fetch.js" <<'JS'
const at = "http://127.0.0.1:" + process.argv[2];
for (let i = 0; i < 50; i++) if ((await (await fetch(at + "/?i=" + i)).text()) !== "hello " + i) throw i;
console.log("fetched 50,", (await (await fetch(at + "/big")).arrayBuffer()).byteLength, "bytes");
JS
cat >"$WORK/serve_node.js" <<'JS'
require("http").createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    response.end(url.pathname === "/big" ? Buffer.alloc(1 << 20, 7) : "hello " + url.searchParams.get("i"));
}).listen(+process.argv[2], "127.0.0.1");
JS
port=$(free_port)
launch node "$WORK/serve_node.js" "$port"
await_listener "$port"
for round in 1 2 3; do with_mode "$bun" "$WORK/fetch.js" "$port"; done
port=$(free_port)
launch "$bun" "$WORK/serve.js" "$port"
await_listener "$port"
with_mode "$bun" "$WORK/fetch.js" "$port"
with_mode python3 -c '
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
for n in range(300):
    connection.request("GET", "/?i=%d" % n)
    assert connection.getresponse().read() == b"hello %d" % n
body = bytes(range(256)) * 40000
connection.request("POST", "/echo", body)
print("python", connection.getresponse().read() == body)
' "$port"
