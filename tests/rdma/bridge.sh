#!/usr/bin/env bash
# What `make test-rdma` runs in two guests: a bridge in each, over the verbs provider alone, and programs that talk
# through it. The second rail is cut twice in the middle of a transfer: silently, under one that is pulled, and mended;
# then its port goes down, under one that is pushed. Over iWARP nothing is pulled, whatever is asked for.
#
#   bridge.sh DIRECTORY      with beeline, beelined and libbeeline.so
set -uo pipefail
binaries=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/with-bridge.sh"

# Each connection has a lane of its own: pieces of one that had another connection before are pushed.
run=("$binaries/beeline" run -o pool_lanes_max=0 --library "$binaries/libbeeline.so" python3 -u -B "$here/bridged.py")
server=
if [ "$RDMA_GUEST" = 2 ]; then
    "${run[@]}" serve "${ours[0]}" 7000 &
    server=$!
    sleep 3
fi
rdma_barrier serving
result=0
if [ "$RDMA_GUEST" = 1 ]; then "${run[@]}" check "${theirs[0]}" 7000 4 || result=1; fi
rdma_barrier whole

# cut HOW MOVED: the rail is cut in the middle of what guest 1 transfers, and mended when both have noticed.
cut() {
    local how=$1 moved=$2 lost began transfer=
    local middle=$RDMA_SHARED/middle-$1 cut=$RDMA_SHARED/cut-$1 failed=$RDMA_SHARED/failed-$1
    set_tunable pull_min "$([ "$moved" = pulls ] && echo 4096 || echo 4294967295)"
    [ "$RDMA_DRIVER" = rxe ] || moved=pushes
    lost=$(total links_lost) began=$(total "$moved")
    rdma_barrier "before-$how"
    if [ "$RDMA_GUEST" = 1 ]; then
        # It goes on until there is the second file, so that the cut is in the middle of it.
        { "${run[@]}" check "${theirs[0]}" 7000 16 "$middle" "$cut" || { touch "$failed"; false; }; } &
        transfer=$!
    fi
    until [ -e "$middle" ] || [ -e "$failed" ]; do sleep 0.2; done
    both_carry || result=1
    "$how"
    await "the loss of a link" lost_more_than "$lost" || result=1
    rdma_barrier "lost-$how"
    [ "$RDMA_GUEST" = 1 ] || touch "$cut"
    # What is in flight goes on over the other rail alone for a while.
    sleep 5
    "mend_$how" || result=1
    if [ -n "$transfer" ]; then wait $transfer || result=1; fi
    [ "$(total "$moved")" -gt "$began" ] || { echo "no $moved" >&2; result=1; }
    rdma_barrier "mended-$how"
}
# Every packet vanishes, and no end is told.
silence() { tc qdisc add dev port2 root netem loss 100%; }
mend_silence() {
    tc qdisc del dev port2 root
    await "a link over the mended rail" linked "${#ours[@]}"
}
# Soft-RoCE of Linux 6.1 makes no connections any more on a device whose port was down when one of its connections
# ended, as rping shows, too. So the rail does not come back.
take_down() { [ "$RDMA_GUEST" = 1 ] || ip link set port2 down; }
mend_take_down() { [ "$RDMA_GUEST" = 1 ] || ip link set port2 up; }
lost_more_than() { [ "$(total links_lost)" -gt "$1" ]; }
# What a link says when it has nothing to carry is less.
both_carry() {
    status | python3 -c '
import json, sys
links = [(link["rail"], link["bytes_sent"]) for link in json.load(sys.stdin)["data"]["links"] if link["up"]]
print("sent by rail:", *(f"{rail} {count >> 10} KiB" for rail, count in links))
sys.exit(sum(count > 256 << 10 for _, count in links) < 2)'
}
cut silence pulls
cut take_down pushes
[ "$RDMA_DRIVER" = rxe ] || [ "$(total pulls)" = 0 ] || { echo "$(total pulls) pulls over iWARP" >&2; result=1; }
[ "$(total reset)" = 0 ] || { echo "$(total reset) connections were reset" >&2; result=1; }
[ "$(total breaches)" = 0 ] || { echo "$(total breaches) breaches" >&2; result=1; }
[ $result = 0 ] || status
[ -z "$server" ] || kill $server
rdma_barrier done
exit $result
