#!/usr/bin/env bash
# title: libevent 2.1.12 (Debian's source), over epoll, poll and select
# seconds: 400
# libevent's regression tests, once with each way of waiting.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/libevent

prepare() {
    [ -x "$source/build/bin/regress" ] && return
    rm -rf "$source"
    . "$here/../source.bash"
    debian_source libevent "$source"
    cd "$source/libevent"
    mkdir build
    ln -sfn libevent/build ../build
    cd build
    ../configure --disable-static --enable-silent-rules >&2
    # Debian's patches make the build believe that it must generate itself anew.
    make -s -j2 AUTOCONF=: AUTOMAKE=: ACLOCAL=: AUTOHEADER=: all test/regress >&2
    # The program itself, past libtool's script.
    mkdir -p bin
    cp -P .libs/*.so* bin/
    cp test/.libs/regress bin/regress
}

# A way of waiting and a group of tests.
units() {
    local method group
    for method in epoll changelist poll select; do
        for group in http bufferevent ssl dns main listener util signal et rpc thread finalize; do
            echo "$method.$group"
        done
    done
}

# regress prints `group/test: [forking] OK`, or what is wrong over several lines.
run() {
    local method=${1%.*} group=${1#*.} command=("$source/build/bin/regress" --timeout 60)
    case "$method" in
        epoll) ;;
        changelist) export EVENT_EPOLL_USE_CHANGELIST=yes ;;
        poll) export EVENT_NOEPOLL=yes ;;
        select) export EVENT_NOEPOLL=yes EVENT_NOPOLL=yes ;;
    esac
    export EVENT_SHOW_METHOD=yes LD_LIBRARY_PATH=$source/build/bin
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet -- "${command[@]}"); fi
    # Whether clocks are precise says more of how busy the machine is.
    "${command[@]}" "$group/.." :util/monotonic_prc | tee -a /dev/stderr | awk '
        match($0, /^[a-z]+\/[A-Za-z0-9_]+: /) {
            if (name != "") print outcome, name
            name = substr($0, 1, RLENGTH - 2)
            outcome = "fail"
        }
        name != "" && /OK$/ { outcome = "pass" }
        name != "" && /(SKIPPED|DISABLED)$/ { outcome = "skip" }
        END { if (name != "") print outcome, name }' >"$OUTCOMES" || true
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
