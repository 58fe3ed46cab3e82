#!/usr/bin/env bash
# Real programs, unchanged: each case runs over TCP and over Beeline, and must say the same both times.
#
# A case (cases/*.sh) starts servers and clients and prints facts: contents, checksums, counts, exit codes; no times and
# no ports. It also states which servers must have used lanes. What the programs print themselves goes to a log that is
# shown when the case fails.
#
#   tests/apps/run.sh [NAME...]      BEELINE=path/to/beeline to test another build
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export BEELINE=${BEELINE:-${CARGO_TARGET_DIR:-$root/target}/release/beeline}
if [ ! -x "$BEELINE" ]; then
    echo "no beeline at $BEELINE: build it first (make all)" >&2
    exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0
skipped=0

# Runs one case in one mode (tcp or beeline); facts to one file, everything else to another.
run_case() {
    local case=$1 mode=$2
    export MODE=$mode WORK=$scratch/$(basename "$case" .sh)-$mode
    mkdir -p "$WORK"
    timeout --kill-after=5 "${CASE_SECONDS:-120}" bash "$case" >"$WORK.facts" 2>"$WORK.log"
}

for case in "$here"/cases/*.sh; do
    name=$(basename "$case" .sh)
    if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
    run_case "$case" tcp
    tcp=$?
    if [ "$tcp" -eq 77 ]; then
        echo "skip  $name: $(tail -n1 "$scratch/$name-tcp.log")"
        skipped=$((skipped + 1))
        continue
    fi
    run_case "$case" beeline
    beeline=$?
    if [ "$tcp" -eq 0 ] && [ "$beeline" -eq 0 ] && cmp -s "$scratch/$name-tcp.facts" "$scratch/$name-beeline.facts"; then
        echo "pass  $name"
        passed=$((passed + 1))
        continue
    fi
    echo "FAIL  $name (exit code over TCP $tcp, over Beeline $beeline)"
    diff -u --label tcp --label beeline "$scratch/$name-tcp.facts" "$scratch/$name-beeline.facts" | sed 's/^/      /'
    for mode in tcp beeline; do
        tail -n 15 "$scratch/$name-$mode.log" | sed "s/^/      $mode: /"
    done
    failed=$((failed + 1))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
