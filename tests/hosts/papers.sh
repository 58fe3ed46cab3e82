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
for table in servernet:push-pull vpi:mtu forty-gig:mtu; do
    run=$into/hosts-${table%:*}
    # A run goes on between the same hosts only, and these are new ones.
    rm -rf "$run"
    PAPER=${table%:*} "$(dirname "$0")/bench.sh" --quick --only "${table#*:}/" --into "$run" || status=1
done
exit $status
