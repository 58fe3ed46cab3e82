#!/usr/bin/env bash
# What `make test-rdma` runs in two guests with two NUMA nodes and a port at each: whose program runs at a node, its
# connection takes the port of that node.
#
#   nodes.sh DIRECTORY       with beeline, beelined and libbeeline.so
set -uo pipefail
binaries=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/with-bridge.sh"

result=0
if [ "$RDMA_GUEST" = 2 ]; then
    "$binaries/beeline" run --library "$binaries/libbeeline.so" python3 -u -B "$here/bridged.py" serve "${ours[0]}" 7000 &
    server=$!
    sleep 3
    rdma_barrier serving
    rdma_barrier talked
    kill $server
else
    rdma_barrier serving
    python3 -u -B "$here/nodes.py" "$binaries" "$admin" "${theirs[0]}" 7000 || { result=1; status; }
    rdma_barrier talked
fi
rdma_barrier done
exit $result
