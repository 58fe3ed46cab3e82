#!/usr/bin/env bash
# title: Twisted 26.10.0, Tornado 6.6.1 and trio 0.35.0 (PyPI)
# seconds: 600
# The tests that Python's event loops came with: Twisted's all, of the others those of TCP, TLS, HTTP, processes, and what is
# built on them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/frameworks
python=/usr/bin/python3.11

prepare() {
    [ -e "$source/done" ] && return
    rm -rf "$source"
    "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$source" \
        "twisted[all-non-platform,test]==26.10.0" tornado==6.6.1 trio==0.35.0 pyhamcrest pytest trustme >&2
    touch "$source/done"
}

units() {
    # Packages of Twisted; `rest` is what has no unit of its own.
    printf 'twisted.%s\n' test internet conch web trial rest
    printf 'tornado.test.%s_test\n' httpserver httpclient simple_httpclient iostream process tcpclient web websocket ioloop
    echo trio
}

run() {
    local command=("$python" "$here/framework_tests.py" "$1" "$OUTCOMES")
    export PYTHONPATH=$source
    cd "$WORK"
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet -- "${command[@]}"); fi
    timeout 580 "${command[@]}" >&2 || true
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
