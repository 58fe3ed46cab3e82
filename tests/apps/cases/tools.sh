# Beeline's own commands beside programs that talk: what doctor tries, and what ss and top list.
. "$(dirname "$0")/../lib.sh"
need python3

# The path is said of Beeline's connections only; over TCP its commands know of none.
[ "$MODE" = beeline ] && path=lane || path=none

echo "doctor $("$BEELINE" doctor --json | python3 -c '
import json, sys
found = {finding["what"]: finding for finding in json.load(sys.stdin)["host"]}
trial = found["trial"]
print(trial["state"], trial["says"].split(":")[0])')"

launch python3 -c '
import socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    server = listener.accept()[0]
    while data := server.recv(100):
        server.sendall(data)
thread = threading.Thread(target=serve)
thread.start()
time.sleep(0.2)
client = socket.create_connection(listener.getsockname())
while True:
    client.sendall(b"x" * 100)
    client.recv(100)
    time.sleep(0.001)
'
pid=$server
ends() { "$BEELINE" ss --json "$pid" | python3 -c '
import json, sys
rows = json.load(sys.stdin)["connections"]
print(len(rows), sorted({row["path"] for row in rows}), len({row["local"] for row in rows} ^ {row["remote"] for row in rows}))'; }
case $path in
lane)
    await sh -c "'$BEELINE' ss $pid | grep -q '^lane '"
    shown=$(ends)
    busiest=$("$BEELINE" top "$pid" --count 2 --delay 0.3 | awk '$1 == "lane" && $(NF - 1) > 0 { ends++ } END { print ends }')
    doctor=$("$BEELINE" doctor "$pid" | grep -c "2 over lanes, 2 of them open, and 0 over TCP")
    tcp=$("$BEELINE" ss "$pid" --path tcp)
    ;;
none)
    shown="2 ['lane'] 0" busiest=4 doctor=1 tcp="There is no open connection."
    ;;
esac
echo "ends $shown"
echo "busy ends, looked at twice: $busiest"
echo "doctor of the process $doctor"
echo "over TCP: $tcp"
