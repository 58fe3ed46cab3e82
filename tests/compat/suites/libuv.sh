#!/usr/bin/env bash
# title: libuv 1.44.2 (Debian's source)
# seconds: 200
# libuv's own tests, each in a process of its own, but for those of files and threads alone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/libuv

prepare() {
    [ -e "$source/done" ] && return
    rm -rf "$source"
    . "$here/../source.bash"
    debian_source libuv1 "$source"
    mkdir "$source/build"
    cd "$source/build"
    cmake ../libuv1 -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON >&2
    make -s -j2 uv_run_tests >&2
    # It is run where it finds test/fixtures.
    touch "$source/done"
}

tests() {
    UV_RUN_AS_ROOT=1 "$source/build/uv_run_tests" --list | awk "/^[a-z]/ { print \$1 }" |
        grep -vE '^(fs_|barrier|condvar|mutex|rwlock|semaphore|thread_|threadpool_|dlerror|idna|utf8|strscpy|random_|tty_|platform|getter)'
}

# One after the other: they bind to the same names in /tmp.
units() { echo all; }

run() {
    local test command=()
    export UV_RUN_AS_ROOT=1
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet --); fi
    cd "$source/libuv1"
    tests | while read -r test; do
        echo "== $test" >&2
        # The program prints TAP for its single test only when it runs all; alone, it ends with the outcome.
        if timeout 40 "${command[@]}" "$source/build/uv_run_tests" "$test" >"$WORK/output" 2>&1 </dev/null; then
            if grep -qiE '# skip|skipped' "$WORK/output"; then echo "skip $test"; else echo "pass $test"; fi
        else
            echo "fail $test"
        fi
        cat "$WORK/output" >&2
    done >"$OUTCOMES"
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
