#!/usr/bin/env bash
# All tests, from fast to slow. Prints each step with its time; stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
    local start=$SECONDS
    printf '\n== %s\n' "$1"
    shift
    "$@"
    printf '== done in %s s\n' "$((SECONDS - start))"
}

mapfile -t workspace < <(ci/workspace.sh)
step "format and lints" ci/lint.sh
step "release build" cargo build --release "${workspace[@]}"
step "what lies together in the library" ci/layout.py
step "unit and integration tests" cargo test --release "${workspace[@]}"
step "models of the lane (loom)" ci/loom.sh
step "socket semantics: the kernel is the oracle" target/release/semantics --library target/release/libbeeline.so
step "the same between ends that have met before, and were slept upon" \
    env BEELINE_TEST_AGAIN=1 BEELINE_TEST_SLEPT=1 BEELINE_TEST_OPTIONS=standing=on \
    target/release/semantics --library target/release/libbeeline.so
step "random sequences: the kernel is the oracle" target/release/semantics random --seed 1 --ops-total 500000 \
    --library target/release/libbeeline.so
step "a fault for each of some connections" target/release/semantics faults --seed 1 --connections 2000 \
    --library target/release/libbeeline.so
step "installed, used and removed" tests/install/run.sh
step "the Debian package" ci/deb.sh
step "the package installed, used and purged, and the examples for containers" tests/deb/run.py
step "real programs" tests/apps/run.sh
step "more programs, and tests of others" tests/compat/run.py --fast
step "the bridge, between network namespaces" tests/bridge/run.py
step "the site's emulator, store and harness" site/test.sh
step "the papers' instrument, between hosts that are lost and come back" tests/hosts/ssh.py
