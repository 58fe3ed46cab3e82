#!/usr/bin/env bash
# `beeline bench --hosts` between two guests over ssh, TCP against the bridge over verbs. The guests have two NUMA nodes
# with a port at each, so the layouts of programs and rails are measured, too. Emulated machines: the figures say something
# of each other at best.
#
#   tests/rdma/bench.sh                     what `make bench-rdma` does: one round of everything but crowds, then paper.toml, then as with `planned`
#   tests/rdma/bench.sh --only layout       arguments go to the bench
#   tests/rdma/bench.sh paper forty-gig --only cores/bytes=4/place --rounds 3 --duration 3000       the plan of a paper
#       (`beeline bench paper`); in shorter samples an emulated machine sends too little to tell which rail carried it
#   tests/rdma/bench.sh planned             planned.toml over rails that tc limits, beside `beeline plan virtual-machines`
#
# BEELINE_BIN   where the programs are (default: target/release)
# LIMIT         seconds after which a run is given up (default: 3000)
# KEEP          a directory for the figures as JSON, if they are wanted, and the guests' logs
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${RDMA_GUEST:-}" ]; then
    binaries=$(realpath "${BEELINE_BIN:-$here/../../target/release}")
    for program in beeline beelined libbeeline.so; do
        [ -e "$binaries/$program" ] || { echo "there is no $binaries/$program; \`make all\` builds it" >&2; exit 1; }
    done
    [ $# -gt 0 ] || set -- all
    exec "$here/run.sh" --guests 2 --numa --timeout "${LIMIT:-3000}" ${KEEP:+--keep "$KEEP"} "$here/bench.sh" "$binaries" "$@"
fi

# From here on in a guest.
binaries=$1
shift
. "$here/with-bridge.sh"

if [ "$RDMA_GUEST" = 2 ]; then
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"
    rdma_barrier keys
    mkdir -p /run/sshd
    # The shell that runs what ssh asks for: what it prepares may take an emulated machine minutes.
    [ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc
    cp "$RDMA_SHARED/user.pub" "$work/user.pub"
    /usr/sbin/sshd -D -e -f /dev/null -p 2222 -h "$work/host" -o ListenAddress="${ours[0]}" -o PidFile=none \
        -o AuthorizedKeysFile="$work/user.pub" -o StrictModes=no -o UsePAM=no -o UseDNS=no &
    server=$!
    sleep 3
    rdma_barrier serving
    rdma_barrier measured
    kill $server
    exit 0
fi
ssh-keygen -q -t ed25519 -N '' -f "$work/user"
cp "$work/user.pub" "$RDMA_SHARED/"
rdma_barrier keys
mkdir -p -m 700 ~/.ssh
# One connection for all sessions: making one takes an emulated machine seconds.
cat >~/.ssh/config <<END
Host guest2
    HostName ${theirs[0]}
    Port 2222
    User root
    IdentityFile $work/user
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
    ControlMaster auto
    ControlPath /run/ssh-%C
    ControlPersist yes
END
rdma_barrier serving
# measure COMMAND...: between the guests. MPIs' launchers are silent for long.
measure() {
    "$binaries/beeline" "$@" --hosts local,guest2 --remote "$binaries/beeline" --library "$binaries/libbeeline.so" \
        --bridge-sockets "$admin,$admin" --patience 300
}
# limit RATE...: what each rail carries from then on, at both ends.
limit() {
    local rail=0 rate
    local -a set
    for rate in "$@"; do
        rail=$((rail + 1))
        # The bucket holds what TCP sends at once; the queue what Soft-RoCE lets wait, which a loss would set back.
        set=(tc qdisc replace dev "port$rail" root tbf rate "$rate" burst 64kb limit 1mb)
        "${set[@]}" && ssh guest2 "${set[@]}" || return
    done
}
# planned OPTION...: over rails of the rates of `beeline plan virtual-machines`, and what that says beside.
planned() {
    local result=0
    limit 40mbit 20mbit || return
    measure bench paper "$here/planned.toml" --into "$RDMA_SHARED/planned" "$@" || result=$?
    "$binaries/beeline" plan virtual-machines --measured "$RDMA_SHARED/planned" || result=$?
    return $result
}
case $1 in
    all)
        result=0
        measure bench --save "$RDMA_SHARED/bench.json" --rounds 1 --duration 500 --except crowd || result=$?
        measure bench paper "$here/paper.toml" --into "$RDMA_SHARED/paper" || result=$?
        planned || result=$?
        ;;
    planned) planned "${@:2}"; result=$? ;;
    paper) measure bench paper --into "$RDMA_SHARED/paper" "${@:2}"; result=$? ;;
    *) measure bench --save "$RDMA_SHARED/bench.json" "$@"; result=$? ;;
esac
ssh -O exit guest2 2>/dev/null
rdma_barrier measured
exit $result
