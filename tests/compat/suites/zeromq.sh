#!/usr/bin/env bash
# title: libzmq 4.3.4 (Debian's source)
# seconds: 400
# libzmq's own tests, each a program. Its I/O threads have an epoll set each, and connect, bind and reconnect by the hundred.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/zeromq
build=$source/build

prepare() {
    [ -e "$build/done" ] && return
    rm -rf "$source"
    . "$here/../source.bash"
    debian_source zeromq3 "$source"
    mkdir "$build"
    cd "$build"
    cmake ../zeromq3 -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=ON -DBUILD_STATIC=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF >&2
    make -s -j2 >&2
    touch "$build/done"
}

# What is of no interest here: clocks, encoders, what needs a network beyond the host.
tests() {
    find "$build/bin" -name 'test_*' -printf '%f\n' | sort | grep -vE '^test_(pair_tipc|sub_forward_tipc|.*_tipc|.*_vmci|z85|base85)'
}

# As many units as let two run beside each other; a test sleeps more than it works.
units() { printf '%s\n' 0 1 2 3; }

run() {
    local unit=$1 test command=() number=0
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet --); fi
    cd "$build"
    tests | while read -r test; do
        number=$((number + 1))
        [ $((number % 4)) -eq "$unit" ] || continue
        echo "begin $test"
        echo "== $test" >&2
        # Races of its threads show themselves in some runs only.
        local code=0 times=1
        if [ "$test" = test_shutdown_stress ]; then times=10; fi
        while [ "$times" -gt 0 ] && [ "$code" -eq 0 ]; do
            timeout 60 "${command[@]}" "bin/$test" >"$WORK/output" 2>&1 </dev/null || code=$?
            times=$((times - 1))
        done
        cat "$WORK/output" >&2
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
