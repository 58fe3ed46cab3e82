#!/usr/bin/env bash
# `make test-rdma`: the tests of beeline-fabric over verbs on Soft-RoCE, of the choice of rails on a host of two packages,
# and of two bridges with programs that talk through them, in virtual machines (run.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."

# The test binaries, copied: the guests read them bit by bit, and a build must be able to go on meanwhile.
binaries=$(mktemp -d "${TMPDIR:-/tmp}/beeline-rdma-tests-XXXXXX")
trap 'rm -rf "$binaries"' EXIT
while read -r name path; do cp "$path" "$binaries/$name"; done < <(
    cargo test --no-run -p beeline-fabric -p beeline-hwloc --tests 2>&1 | tee /dev/stderr |
        sed -nE 's|^ *Executable tests/([a-z]+)\.rs \((.*)\)$|\1 \2|p'
)
for name in connections transfers endings hosts packages; do
    [ -x "$binaries/$name" ] || { echo "no test binary $name" >&2; exit 1; }
done

cargo build --release -p beelined -p beeline -p beeline-preload
release=${CARGO_TARGET_DIR:-target}/release
cp "$release"/{beeline,beelined,libbeeline.so} "$binaries/"

step() {
    local start=$SECONDS
    printf '\n== %s\n' "$1"
    shift
    "$@"
    printf '== done in %s s\n' "$((SECONDS - start))"
}
run=tests/rdma/run.sh suite=tests/rdma/suite.sh
step "one guest, two rails" $run --timeout 2400 $suite one "$binaries"/{connections,transfers,endings}
step "two guests, two rails" $run --guests 2 --timeout 1800 $suite two "$binaries/hosts"
step "two bridges, two rails, one of them cut" $run --guests 2 --timeout 900 tests/rdma/bridge.sh "$binaries"
step "two packages, a rail at each" $run --numa --timeout 600 $suite numa "$binaries/connections" "$binaries/packages"
