# iperf3: one stream, several, backwards, both ways, an exact number of bytes, without copying, and UDP beside it.
. "$(dirname "$0")/../lib.sh"
need iperf3 python3
version iperf3 --version
port=$(free_port)
launch iperf3 -s -p "$port"
main=$server
# Not by connecting: iperf3 would take that for a client.
await sh -c "ss -Htln sport = :$port | grep -q LISTEN"

measure() {
    local what=$1
    shift
    with_mode iperf3 -c 127.0.0.1 -p "$port" -J "$@" >"$WORK/result.json"
    local code=$?
    python3 - "$what" "$code" "$WORK/result.json" <<'PY'
import json, sys
what, code, path = sys.argv[1:]
result = json.load(open(path))
end = result.get("end", {})
sums = [end.get(name, {}).get("bytes", 0) for name in ("sum_sent", "sum_received")]
print(what, "exit code", code, "streams", len(end.get("streams", [])), "some data", all(sums) or what == "udp",
      "error", result.get("error"))
PY
}

measure forward -t 1
measure backwards -t 1 -R
measure "four streams" -t 1 -P 4
measure "both ways" -t 1 --bidir
measure "exact bytes" -n 200M
measure "exact bytes backwards" -n 200M -R
measure "small writes" -t 1 -l 100
measure "large writes" -t 1 -l 1M
measure "small windows" -t 1 -w 32K
measure "without copying" -t 1 -Z
measure "IPv6" -t 1 -6 -c ::1
measure udp -u -t 1 -b 10M
expect_lanes "$main" 10
