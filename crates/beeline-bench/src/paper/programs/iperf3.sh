# iperf3, one stream.
$there $on_second iperf3 -s -1 -B "$second" -p "$PORT" >"$WORK/said" 2>&1 &
server=$!
at_end() { kill "$server" 2>/dev/null || true; }
await_listener
$on_first iperf3 -c "$second" -p "$PORT" -t "$SECONDS_WHOLE" -l "$BYTES" -f k >"$WORK/out"
awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Kbits/sec") rate = $(i - 1) * 125 }
    END { if (rate) print "bytes_per_second", rate }' "$WORK/out"
