#!/usr/bin/env bash
# title: CPython 3.11 (Debian's libpython3.11-testsuite)
# Everything in CPython's own tests that has to do with sockets, readiness, servers, and processes that inherit them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=/usr/bin/python3.11
tests=/usr/lib/python3.11/test

units() {
    cd "$tests"
    # The longest first.
    printf '%s\n' test_multiprocessing_spawn test_multiprocessing_fork test_socket test_signal test_ssl \
        test_asyncio.test_{events,unix_events} test_subprocess test_multiprocessing_forkserver test_multiprocessing_main_handling test_logging
    for file in test_asyncio/test_*.py; do
        case "$file" in
            *windows* | */test_events.py | */test_unix_events.py) ;;
            *) basename "$file" .py | sed 's/^/test_asyncio./' ;;
        esac
    done
    printf '%s\n' test_{select,selectors,epoll,poll,eintr,socketserver,httpservers,httplib,ftplib,smtplib,smtpd,poplib,imaplib} \
        test_{xmlrpc,docxmlrpc,urllib,urllib2,urllib2_localnet,asyncore,asynchat,telnetlib,nntplib,wsgiref} \
        test_{os,posix,fcntl,threading,threadsignals,fork1,wait3,wait4,popen,pty,faulthandler}
}

run() {
    local tries=0 command=("$python" "$here/cpython_module.py" "$1" "$OUTCOMES" 90)
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet -- "${command[@]}"); fi
    : >"$OUTCOMES"
    # A test that hangs or kills the process is noted, and the rest goes on without it.
    until grep -q '^end' "$OUTCOMES" || [ "$tries" -eq 5 ]; do
        "${command[@]}" || true
        tries=$((tries + 1))
    done
}

case "$1" in
    prepare) [ -e "$tests/test_socket.py" ] && [ -x "$python" ] ;;
    units) units | awk '!seen[$0]++' | while read -r unit; do [ -e "$tests/${unit//.//}.py" ] && echo "$unit"; done ;;
    run) run "$2" ;;
esac
