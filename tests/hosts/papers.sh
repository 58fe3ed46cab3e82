#!/usr/bin/env bash
# The tables of the papers' plans that one host does not have, between two network namespaces: a part of `make papers`.
#
#   tests/hosts/papers.sh INTO      a directory of a run for each plan goes into this one
#
# Takes root: without it nothing is measured, and that is said.
set -euo pipefail
into=$1
if [ "$(id -u)" != 0 ]; then
    echo "papers.sh: network namespaces take root: nothing is pushed, pulled or sent over an interface here" >&2
    exit
fi
status=0
# run RUN PLAN "TABLE..." OPTION...: a run goes on between the same hosts only, and these are new ones.
run() {
    local table only=()
    for table in $3; do only+=(--only "$table/"); done
    rm -rf "${into:?}/$1"
    PAPER=$2 "$(dirname "$0")/bench.sh" --quick "${only[@]}" --into "$into/$1" "${@:4}" || status=1
}
run hosts-servernet servernet "push-pull both-ways-moved cut-through"
run hosts-vpi vpi "mtu coalescing moved moved-latency"
run hosts-forty-gig forty-gig "mtu mtu-latency dip-mtu"
run hosts-sockets-mx sockets-mx zero-copy-threshold
# A rank of each MPI in each namespace.
run hosts-mpi forty-gig "mpi-hosts mpi-hosts-bandwidth"
# How far a rail is from a CPU: with the reason where no rail says so, as with veth.
run hosts-cores forty-gig cores
# Two fabrics, each alone and both at once. What tc and sockets hold back is some 20 ms of what passes, which a short sample would see.
RATES=800mbit run hosts-vpi-fast vpi "two-fabrics two-fabrics-latency" --duration 1000
RATES=300mbit run hosts-vpi-slow vpi "two-fabrics two-fabrics-latency" --duration 1000
RAILS=2 RATES="800mbit 300mbit" run hosts-vpi-both vpi "two-fabrics two-fabrics-latency" --duration 1000
"${BEELINE_BIN:-$(dirname "$0")/../../target/release}/beeline" plan namespaces --measured "$into/hosts-vpi-fast" \
    --measured "$into/hosts-vpi-slow" --measured "$into/hosts-vpi-both" || status=1
exit $status
