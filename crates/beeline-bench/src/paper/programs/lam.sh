# LAM MPI: NetPIPE's ping-pong, or the patterns SendRecv and Exchange. It has a daemon, and refuses root.
own="setsid -w"
if [ "$(id -u)" = 0 ]; then
    chmod 711 "$WORK"
    # Not nobody: that uid also stands for users that cannot be told, whom Beeline never trusts.
    own="setpriv --reuid=daemon --regid=daemon --clear-groups"
fi
rank
mkdir "$WORK/lam"
chmod 777 "$WORK/lam"
cd "$WORK/lam"
export HOME="$WORK/lam" TMPDIR="$WORK/lam" LAM_MPI_SESSION_PREFIX="$WORK/lam"
echo localhost >hosts
transport=tcp
[ "$WAY" = tcp ] || transport=usysv
# Its daemon keeps what it inherits open: files, not pipes.
at_end() { timeout 5 $own lamhalt >"$WORK/halt" 2>&1 || true; }
$own lamboot hosts >"$WORK/boot" 2>&1 || fail "lamboot: $(last "$WORK/boot")"
case $PATTERN in
    pingpong) set -- NPlam -o out -p 0 -l "$BYTES" -u "$BYTES" ;;
    *) set -- /usr/bin/python3 "$WORK/patterns.py" lam "$PATTERN" "$BYTES" "$SECONDS_EACH" ;;
esac
$own mpirun.lam -ssi rpi "$transport" -np 2 /bin/sh "$WORK/rank" "$@" >"$WORK/said" 2>&1 || fail "mpirun.lam: $(last "$WORK/said")"
case $PATTERN in
    pingpong) netpipe out ;;
    *) cat "$WORK/said" ;;
esac
