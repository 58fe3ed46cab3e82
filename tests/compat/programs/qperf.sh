# qperf: latency, bandwidth and message rate of TCP, in both directions
. "$(dirname "$0")/../../apps/lib.sh"
need qperf
version qperf --version
port=$(free_port)
launch qperf -lp "$port"
main=$server
await_listener "$port"
with_mode qperf -lp "$port" -t 1 127.0.0.1 tcp_lat tcp_bw -m 64K tcp_bw -m 1 tcp_lat >"$WORK/results"
echo "exit code $?"
grep -E '^[a-z_]+:|^    [a-z]+ ' "$WORK/results" | sed 's/=.*//; s/  */ /g'
