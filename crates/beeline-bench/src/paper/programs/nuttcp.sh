# nuttcp, the ttcp of today, one stream. NTttcp is Microsoft's ttcp.
$there $on_second nuttcp -S --nofork -P "$PORT" >"$WORK/said" 2>&1 &
server=$!
at_end() { kill "$server" 2>/dev/null || true; }
await_listener
$on_first nuttcp -P "$PORT" -p "$((PORT + 1))" -l "$BYTES" -T "$SECONDS_WHOLE" -fparse "$second" >"$WORK/out"
awk '{ for (i = 1; i <= NF; i++) if (split($i, pair, "=") == 2 && pair[1] == "rate_Mbps") rate = pair[2] * 125000 }
    END { if (rate) print "bytes_per_second", rate }' "$WORK/out"
