#!/usr/bin/env bash
# `make test-rdma`: the tests of beeline-fabric over verbs on Soft-RoCE, of the choice of rails on a host of two packages,
# of two bridges with programs that talk through them, and of the layouts of programs and rails with load between the
# nodes, in virtual machines (run.sh). `make test-iwarp`, which is `all.sh --iwarp`: the same on soft-iWARP, but for the
# hosts of two packages.
#
# LIMIT     seconds that it may take in all, builds left out (default: 3600). Each step has a limit of its own, too.
set -euo pipefail
cd "$(dirname "$0")"
iwarp=()
case "${1:-}" in
    "") ;;
    --iwarp) iwarp=(--iwarp) ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' all.sh >&2
        [ "$1" = --help ] && exit 0
        exit 2
        ;;
esac

cd ../..

# The test binaries, copied: the guests read them bit by bit, and a build must be able to go on meanwhile.
binaries=$(mktemp -d "${TMPDIR:-/tmp}/beeline-rdma-tests-XXXXXX")
trap 'rm -rf "$binaries"' EXIT
while read -r name path; do cp "$path" "$binaries/$name"; done < <(
    cargo test --no-run -p beeline-fabric -p beeline-hwloc --tests 2>&1 | tee -a /dev/stderr |
        sed -nE 's|^ *Executable tests/([a-z]+)\.rs \((.*)\)$|\1 \2|p'
)
for name in connections transfers endings hosts packages; do
    [ -x "$binaries/$name" ] || { echo "no test binary $name" >&2; exit 1; }
done

cargo build --release -p beelined -p beeline -p beeline-preload
release=${CARGO_TARGET_DIR:-target}/release
cp "$release"/{beeline,beelined,libbeeline.so} "$binaries/"

limit=${LIMIT:-3600}
SECONDS=0
# step NAME SECONDS OPTION... COMMAND...: what run.sh is to run, within so many seconds.
step() {
    local name=$1 most=$2 start=$SECONDS left=$((limit - SECONDS))
    shift 2
    [ "$left" -gt 0 ] || { echo "the $limit s are up before: $name" >&2; exit 1; }
    printf '\n== %s\n' "$name"
    tests/rdma/run.sh "${iwarp[@]}" --timeout $((most < left ? most : left)) "$@"
    printf '== done in %s s\n' "$((SECONDS - start))"
}
suite=tests/rdma/suite.sh
step "one guest, two rails" 1200 $suite one "$binaries"/{connections,transfers,endings}
step "two guests, two rails" 900 --guests 2 $suite two "$binaries/hosts"
step "two guests, a port of one down" 300 --guests 2 tests/rdma/cable.sh
step "two bridges, two rails, one of them cut" 900 --guests 2 tests/rdma/bridge.sh "$binaries"
if [ "${#iwarp[@]}" = 0 ]; then
    step "two packages, a rail at each" 600 --numa $suite numa "$binaries/connections" "$binaries/packages"
    step "two bridges on hosts of two packages" 900 --guests 2 --numa tests/rdma/nodes.sh "$binaries"
    step "layouts of programs and rails, load between the nodes" 900 --guests 2 --numa tests/rdma/layouts.sh "$binaries"
fi
printf '\nAll passed, in %s s.\n' "$SECONDS"
