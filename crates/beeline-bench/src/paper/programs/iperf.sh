# iperf 2, one stream.
$there $on_second iperf -s -B "$second" -p "$PORT" >"$WORK/said" 2>&1 &
server=$!
at_end() { kill "$server" 2>/dev/null || true; }
await_listener
$on_first iperf -c "$second" -p "$PORT" -t "$SECONDS_WHOLE" -l "$BYTES" -y C >"$WORK/out"
awk -F, 'NF >= 9 { rate = $9 / 8 } END { if (rate) print "bytes_per_second", rate }' "$WORK/out"
