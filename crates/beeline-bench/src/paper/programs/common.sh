# What every script has. In the environment: WORK (a directory that is removed afterwards), PORT (free, as is the next),
# CPU_FIRST and CPU_SECOND (of the two ends; empty where the scheduler chooses), BYTES, SECONDS_EACH (how long a sample is), SECONDS_WHOLE (the same for programs that know whole ones),
# SECONDS_MOST (after which a program that hangs is ended), WAY and PATTERN.
# A script prints `mean_us NUMBER` (one way, of a message there and back), `bytes_per_second NUMBER`, or both.
# Between hosts it runs at the first. Then SERVER is an address of the second, THERE says how that host is reached (netns:NAME,
# ssh:NAME or local), and by ssh RUN_THERE stands before what has the library preloaded there.
at_end() { :; }
at_the_very_end() {
    at_end
    case ${THERE:-} in ssh:*) $there rm -rf "$WORK" ;; esac
}
trap at_the_very_end EXIT
trap 'exit 143' TERM INT HUP
# Before the command of the one end and of the other: ends that share a CPU are another measurement.
on_first=${CPU_FIRST:+taskset -c $CPU_FIRST}
on_second=${CPU_SECOND:+taskset -c $CPU_SECOND}
export on_first on_second
# absent REASON: this host cannot have it.
absent() { echo "$1" >&2; exit 77; }
fail() { echo "$1" >&2; exit 1; }
# Where the two ends are. A program that is started end by end has $there before the command of its second.
first=127.0.0.1 second=127.0.0.1 first_device=lo second_device=lo there=
if [ -n "${SERVER:-}" ]; then
    cat >"$WORK/there" <<'END'
# there COMMAND...: at the second host, where a shell reads the words, as it does behind ssh.
case $THERE in
    netns:*) exec ip netns exec "${THERE#netns:}" sh -c "$*" ;;
    ssh:*)
        quoted=$(printf %s "$*" | sed "s/'/'\\\\''/g")
        exec ssh -T -o BatchMode=yes -o ConnectTimeout=10 -- "${THERE#ssh:}" "exec $RUN_THERE sh -c '$quoted'"
        ;;
    *) exec sh -c "$*" ;;
esac
END
    there="sh $WORK/there"
    # Of `10.99.0.2 dev veth0 src 10.99.0.1`, say.
    behind() { awk -v word="$1" '{ for (i = 1; i < NF; i++) if ($i == word) { print $(i + 1); exit } }'; }
    second=$SERVER
    first=$(ip -o route get "$second" | behind src)
    first_device=$(ip -o route get "$second" | behind dev)
    second_device=$($there ip -o route get "$first" | behind dev)
    [ -n "$second_device" ] || fail "there is no way from $second to ${first:-here}"
    case $THERE in ssh:*) $there mkdir -m 700 "$WORK" ;; esac
fi
# share FILE: one in $WORK that the second end reads, too.
share() { case ${THERE:-} in ssh:*) $there "cat >$1" <"$1" ;; esac; }
# rank [FIRST SECOND]: makes `sh $WORK/rank COMMAND...`, which runs it by the rank that the MPI gives it, after what the two say.
rank() {
    cat >"$WORK/rank" <<END
case \${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\${LAMRANK:-0}}} in
    0) ${1:-:}; exec $on_first "\$@" ;;
    *) ${2:-:}; exec $on_second "\$@" ;;
esac
END
    chmod 644 "$WORK/rank"
    share "$WORK/rank"
}
# agent: makes $WORK/agent, with which an MPI starts what it has at a host, in ssh's place: [-OPTION...] HOST COMMAND...
agent() {
    cat >"$WORK/agent" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
[ "\$host" != "$first" ] || exec sh -c "\$*"
exec sh "$WORK/there" "\$*"
END
    chmod 755 "$WORK/agent"
}
# rdma_devices: the devices of the two ends' interfaces as UCX calls them (rxe0:1); on one host its first one. Absent without.
rdma_devices() {
    by_sysfs
    # UCX makes its connections by datagrams, and looks at whom they are addressed to: of Soft-RoCE's it finds all to be another's. What
    # has no slot is software.
    [ -e "/sys/class/infiniband/${first_rdma%:*}/device" ] || export UCX_UD_VERBS_ETH_DGID_CHECK=n
}
by_sysfs() {
    of='s|.*/infiniband/\([^/]*\)/ports/\([0-9]*\).*|\1:\2|'
    if [ -z "$there" ]; then
        first_rdma=$(ls -d /sys/class/infiniband/*/ports/1 2>/dev/null | head -n 1 | sed "$of")
        [ -n "$first_rdma" ] || absent "this host has no RDMA device"
        second_rdma=$first_rdma
        return
    fi
    # Entries that are empty cannot be read.
    first_rdma=$(grep -lsx "$first_device" /sys/class/infiniband/*/ports/*/gid_attrs/ndevs/* | head -n 1 | sed "$of")
    [ -n "$first_rdma" ] || absent "no RDMA device belongs to $first_device"
    second_rdma=$($there "grep -lsx $second_device /sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*" | head -n 1 | sed "$of")
    [ -n "$second_rdma" ] || absent "no RDMA device belongs to $second_device at the other host"
}
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
is_listening() {
    $there cat /proc/net/tcp /proc/net/tcp6 | grep -Eqs "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$PORT") [0-9A-F]+:0000 0A"
}
await_listener() { await is_listening; }
# netpipe FILE: its last line has bytes, megabits (of 2^20) a second, and seconds one way.
netpipe() {
    awk 'NF == 3 { us = $3 * 1e6; rate = $2 * 131072 }
        END { if (rate) { print "mean_us", us; print "bytes_per_second", rate } }' "$1"
}
