#!/usr/bin/env bash
# title: uvloop 0.23.0 (PyPI's source)
# seconds: 300
# The tests of asyncio's loop over libuv, by its own wheel: TCP, Unix sockets, TLS, processes, signals, forks, aiohttp.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$CACHE/uvloop
python=/usr/bin/python3.11

prepare() {
    [ -e "$source/done" ] && return
    rm -rf "$source"
    mkdir -p "$source"
    cd "$source"
    local pip=("$python" -m pip --disable-pip-version-check -q)
    # Building it takes more than downloading it twice: the wheel has no tests.
    "${pip[@]}" install --root-user-action=ignore --target "$source/packages" uvloop==0.23.0 aiohttp psutil pyopenssl >&2
    "${pip[@]}" download --no-deps --no-binary uvloop --no-build-isolation uvloop==0.23.0 >&2
    tar -xf uvloop-0.23.0.tar.gz
    # Beside `tests`, the directory `uvloop` would be taken for the package.
    mkdir suite
    mv uvloop-0.23.0/tests suite/
    touch "$source/done"
}

units() {
    local file
    # The longest first; what reads sources or needs another name server than none is left out.
    printf '%s\n' test_tcp test_process
    for file in "$source"/suite/tests/test_*.py; do
        case "$file" in
            *sourcecode* | *dns* | */test_tcp.py | */test_process.py) ;;
            *) basename "$file" .py ;;
        esac
    done
}

run() {
    local tries=0 command=("$python" "$here/uvloop_module.py" "tests.$1" "$OUTCOMES")
    export PYTHONPATH=$source/packages:$here
    cd "$source/suite"
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet -- "${command[@]}"); fi
    : >"$OUTCOMES"
    until grep -q '^end' "$OUTCOMES" || [ "$tries" -eq 3 ]; do
        "${command[@]}" >&2 || true
        tries=$((tries + 1))
    done
}

case "$1" in
    prepare) prepare ;;
    units) units ;;
    run) run "$2" ;;
esac
