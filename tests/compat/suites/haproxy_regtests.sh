#!/usr/bin/env bash
# title: HAProxy 2.6's regression tests (Debian's source), by varnishtest
# seconds: 600
# HAProxy between clients and servers of the test's own: HTTP/1 and 2, TLS, splicing, checks, peers, reloads, its CLI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/haproxy

prepare() {
    [ -e "$source/done" ] && return
    rm -rf "$source"
    . "$here/../source.bash"
    debian_source haproxy "$source"
    # HAProxy's own script knows which tests this HAProxy can pass; it is given a program that writes down what it is told.
    cd "$source/haproxy"
    HAPROXY_PROGRAM=/usr/sbin/haproxy VTEST_PROGRAM=/bin/echo sh scripts/run-regtests.sh |
        sed -n '/^-b/p' | grep -oE 'reg-tests/\S+\.vtc' | sort -u >"$source/tests.new"
    mv "$source/tests.new" "$source/tests"
    [ -s "$source/tests" ] && touch "$source/done"
}

# A folder each, and the small ones together.
units() { printf '%s\n' checks http-messaging http-rules ssl stream-{0,1} other-{0,1,2}; }

tests_of() {
    case "$1" in
        stream-*) grep -E '^reg-tests/(cache|compression|connection|converter|stick-table|server|stats)/' ;;
        other-*) grep -vE '^reg-tests/(checks|http-messaging|http-rules|ssl|cache|compression|connection|converter|stick-table|server|stats)/' ;;
        *) grep "^reg-tests/$1/" ;;
    esac <"$source/tests" | case "$1" in
        stream-?) awk -v part="${1#*-}" 'NR % 2 == part' ;;
        other-?) awk -v part="${1#*-}" 'NR % 3 == part' ;;
        *) cat ;;
    esac
}

run() {
    local test command=()
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet --); fi
    cd "$source/haproxy"
    export HAPROXY_PROGRAM=/usr/sbin/haproxy HAPROXY_ARGS=-dM TMPDIR
    # Sockets are made in it, and their names may have 107 bytes.
    TMPDIR=$(mktemp -d /tmp/ha.XXXX)
    trap 'rm -rf "$TMPDIR"' EXIT
    tests_of "$1" | while read -r test; do
        echo "begin $test"
        echo "== $test" >&2
        local code=0
        "${command[@]}" varnishtest -b $((2 << 20)) -k -t 30 -l "$test" >"$WORK/output" 2>&1 </dev/null || code=$?
        [ "$code" -eq 0 ] || grep -v "^----" "$WORK/output" | tail -n 150 | cut -c1-200 >&2
        case "$code" in
            0) echo "pass $test" ;;
            77) echo "skip $test" ;;
            *) echo "fail $test" ;;
        esac
    done >"$OUTCOMES"
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
