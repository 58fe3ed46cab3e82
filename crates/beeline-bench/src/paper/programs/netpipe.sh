# NetPIPE over sockets.
$there $on_second NPtcp -P "$PORT" -o "$WORK/server" -p 0 -l "$BYTES" -u "$BYTES" >"$WORK/said" 2>&1 &
server=$!
at_end() { kill "$server" 2>/dev/null || true; }
await_listener
$on_first NPtcp -P "$PORT" -h "$second" -o "$WORK/out" -p 0 -l "$BYTES" -u "$BYTES"
netpipe "$WORK/out"
