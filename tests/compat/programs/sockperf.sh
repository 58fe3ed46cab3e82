# sockperf: ping-pong, throughput and load over TCP, one connection and many
. "$(dirname "$0")/../../apps/lib.sh"
need sockperf
version sockperf --version
port=$(free_port)
launch sockperf server --tcp -i 127.0.0.1 -p "$port"
main=$server
await_listener "$port"
measure() {
    local what=$1
    shift
    with_mode sockperf "$@" --tcp -i 127.0.0.1 -p "$port" -t 2 >"$WORK/$what" 2>&1
    echo "$what exit code $? $(grep -cE 'Summary: (Latency|Message Rate)' "$WORK/$what")"
    grep -E 'dropped messages|duplicated|out-of-order' "$WORK/$what" | sed 's/\x1b\[[0-9;]*m//g; s/.*# dropped/dropped/' >&2
}
measure ping-pong ping-pong
measure ping-pong-large ping-pong -m 60000
measure throughput throughput -m 1400
measure load under-load --mps 5000
expect_lanes "$main" 4
