# What every script has. In the environment: WORK (a directory that is removed afterwards), PORT (free, as is the next),
# CPU_FIRST and CPU_SECOND (of the two ends; empty where the scheduler chooses), BYTES, SECONDS_EACH (how long a sample is), SECONDS_WHOLE (the same for programs that know whole ones), WAY and PATTERN.
# A script prints `mean_us NUMBER` (one way, of a message there and back), `bytes_per_second NUMBER`, or both.
at_end() { :; }
trap at_end EXIT
trap 'exit 143' TERM INT HUP
# Before the command of the one end and of the other: ends that share a CPU are another measurement.
on_first=${CPU_FIRST:+taskset -c $CPU_FIRST}
on_second=${CPU_SECOND:+taskset -c $CPU_SECOND}
export on_first on_second
# By the rank that the MPI gives it: `sh $WORK/rank COMMAND...`
rank() {
    cat >"$WORK/rank" <<'END'
case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${LAMRANK:-0}}} in
    0) exec $on_first "$@" ;;
    *) exec $on_second "$@" ;;
esac
END
    chmod 644 "$WORK/rank"
}
# absent REASON: this host cannot have it.
absent() { echo "$1" >&2; exit 77; }
fail() { echo "$1" >&2; exit 1; }
# last FILE: its last line that has words.
last() { grep "[[:alpha:]]" "$1" | tail -n 1; }
# await COMMAND...: until it succeeds, ten seconds at most.
await() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || fail "$1: waited for ten seconds in vain"
        sleep 0.05
    done
}
# Without connecting: some servers serve one client only. 0A is LISTEN.
is_listening() { grep -Eqs "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$PORT") [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6; }
await_listener() { await is_listening; }
# netpipe FILE: its last line has bytes, megabits (of 2^20) a second, and seconds one way.
netpipe() {
    awk 'NF == 3 { us = $3 * 1e6; rate = $2 * 131072 }
        END { if (rate) { print "mean_us", us; print "bytes_per_second", rate } }' "$1"
}
