#!/usr/bin/env bash
# `make test-rdma`: the tests of beeline-fabric over verbs on Soft-RoCE, and of the choice of rails on a host of two
# packages, in virtual machines (run.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."

# The test binaries, by name.
declare -A binary
while read -r name path; do binary[$name]=$(realpath "$path"); done < <(
    cargo test --no-run -p beeline-fabric -p beeline-hwloc --tests 2>&1 | tee /dev/stderr |
        sed -nE 's|^ *Executable tests/([a-z]+)\.rs \((.*)\)$|\1 \2|p'
)
for name in connections transfers endings hosts packages; do
    [ -x "${binary[$name]:-}" ] || { echo "no test binary $name" >&2; exit 1; }
done

step() {
    local start=$SECONDS
    printf '\n== %s\n' "$1"
    shift
    "$@"
    printf '== done in %s s\n' "$((SECONDS - start))"
}
run=tests/rdma/run.sh suite=tests/rdma/suite.sh
step "one guest, two rails" $run --timeout 1500 $suite one "${binary[connections]}" "${binary[transfers]}" "${binary[endings]}"
step "two guests, two rails" $run --guests 2 --timeout 900 $suite two "${binary[hosts]}"
step "two packages, a rail at each" $run --numa --timeout 300 $suite numa "${binary[connections]}" "${binary[packages]}"
