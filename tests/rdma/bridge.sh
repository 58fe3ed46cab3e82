#!/usr/bin/env bash
# What `make test-rdma` runs in two guests: a bridge in each, over the verbs provider alone, and programs that talk
# through it, with one rail cut and mended meanwhile.
#
#   bridge.sh DIRECTORY      with beeline, beelined and libbeeline.so
set -uo pipefail
binaries=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/with-bridge.sh"

run=("$binaries/beeline" run --library "$binaries/libbeeline.so" python3 "$here/bridged.py")
if [ "$RDMA_GUEST" = 2 ]; then
    "${run[@]}" serve "${ours[0]}" 7000 &
    server=$!
    sleep 3
    rdma_barrier serving
    rdma_barrier whole
    # The second rail dies under the next transfer, and comes back.
    rdma_barrier cutting
    sleep 2
    ip link set port2 down
    sleep 8
    ip link set port2 up
    rdma_barrier cut
    kill $server
    result=0
else
    rdma_barrier serving
    "${run[@]}" check "${theirs[0]}" 7000 4
    result=$?
    rdma_barrier whole
    rdma_barrier cutting
    if [ $result = 0 ]; then
        "${run[@]}" check "${theirs[0]}" 7000 24
        result=$?
    fi
    rdma_barrier cut
    status
fi
rdma_barrier done
exit $result
