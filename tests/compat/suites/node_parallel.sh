#!/usr/bin/env bash
# title: Node.js 18.20.4's test/parallel (Debian's source, npm's binary)
# seconds: 500
# Node's own tests of net, http, https, tls, cluster and child_process, each a program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/node
# The program itself, not the script in front of it.
node=$source/npm/node_modules/node/bin/node

prepare() {
    [ -e "$source/done" ] && return
    rm -rf "$source"
    . "$here/../source.bash"
    debian_source nodejs "$source"
    mkdir "$source/npm"
    npm install --silent --no-audit --no-fund --prefix "$source/npm" node@18.20.4 >&2
    "$node" --version >&2
    touch "$source/done"
}

# http's are many, child processes' and cluster's take longest.
units() { printf '%s\n' cluster.{0,1} child-process http.{0,1,2} net tls https; }

tests_of() {
    local topic=${1%.*} part=${1#*.} parts
    case "$topic" in cluster) parts=2 ;; http) parts=3 ;; *) parts=1 part=0 ;; esac
    find "$source/nodejs/test/parallel" -name "test-$topic-*.*js" -printf '%f\n' | sort |
        awk -v part="$part" -v parts="$parts" 'NR % parts == part'
}

run() {
    local test flags command=()
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet --); fi
    # Sockets are made in it, and their names may have 107 bytes.
    export NODE_TEST_DIR
    NODE_TEST_DIR=$(mktemp -d /tmp/node.XXXX)
    trap 'rm -rf "$NODE_TEST_DIR"' EXIT
    cd "$source/nodejs"
    tests_of "$1" | while read -r test; do
        echo "begin $test"
        echo "== $test" >&2
        # A test says what it needs on Node's command line.
        read -ra flags < <(sed -n 's,^// Flags: *,,p;10q' "test/parallel/$test" | tr '\n' ' '; echo)
        local code=0
        timeout 60 "${command[@]}" "$node" "${flags[@]}" "test/parallel/$test" >"$WORK/output" 2>&1 </dev/null || code=$?
        tail -c 3000 "$WORK/output" >&2
        if [ "$code" -ne 0 ]; then
            echo "fail $test"
        elif grep -q '^1\.\.0 # Skipped' "$WORK/output"; then
            echo "skip $test"
        else
            echo "pass $test"
        fi
    done >"$OUTCOMES"
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
