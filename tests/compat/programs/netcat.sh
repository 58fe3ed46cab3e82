# netcat: a file each way, half-close, a scan, a listener that is kept
. "$(dirname "$0")/../../apps/lib.sh"
nc=$(command -v nc.openbsd) || skip "no OpenBSD netcat on this machine"
echo "OpenBSD netcat $(dpkg-query -W -f '${Version}' netcat-openbsd)" >>"$WORK/version"
some_bytes 20000000 >"$WORK/there"
some_bytes 7000000 >"$WORK/back"
port=$(free_port)
exec_nc() { if [ "$MODE" = beeline ]; then exec "$BEELINE" run --quiet -- "$nc" "$@"; else exec "$nc" "$@"; fi; }
(exec_nc -N -l 127.0.0.1 "$port" <"$WORK/back" >"$WORK/received") &
started+=($!)
await_listener "$port"
with_mode "$nc" -N 127.0.0.1 "$port" <"$WORK/there" >"$WORK/received back"
echo "exit code $?"
wait "${started[0]}"
echo "server exit code $?"
sha256sum <"$WORK/received"
sha256sum <"$WORK/received back"
kept=$(free_port)
(exec_nc -k -l 127.0.0.1 "$kept" >"$WORK/kept") &
started+=($!)
await_listener "$kept"
for n in 1 2 3; do echo "line $n" | with_mode "$nc" -N 127.0.0.1 "$kept"; done
await grep -q 'line 3' "$WORK/kept"
cat "$WORK/kept"
with_mode "$nc" -z 127.0.0.1 "$kept"
echo "scan $?"
with_mode "$nc" -z 127.0.0.1 1
echo "scan of nothing $?"
