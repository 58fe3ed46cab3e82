#!/usr/bin/env bash
# What `make test-rdma` runs of the layouts of programs and rails (`beeline bench paper socket-direct`), in two guests with two NUMA nodes
# and a port at each: with load between the nodes each layout has its figures, over its rails, and the report its table of gains.
#
#   layouts.sh DIRECTORY     with beeline, beelined and libbeeline.so
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# Figures of an emulated machine say nothing: one round is enough to see that there are some.
"$here/bench.sh" "$1" paper socket-direct --rounds 1 --duration 3000 --only layouts/bytes=65536/place=both/load=between-nodes \
    --only layouts/bytes=65536/place=remote/load=between-nodes --only layouts-latency/bytes=64/place=both/load=between-nodes
result=$?
if [ "$RDMA_GUEST" = 1 ]; then python3 -B "$here/layouts.py" "$RDMA_SHARED/paper" || result=1; fi
exit $result
