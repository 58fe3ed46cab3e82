#!/usr/bin/env bash
# title: tokio 1.54.1, polling 3.11.0 and async-io 2.6.0 (their published crates)
# seconds: 200
# The tests that came with the crates and that have to do with sockets, readiness, signals and processes.
set -euo pipefail
crates=(tokio-1.54.1 polling-3.11.0 async-io-2.6.0)
source=$CACHE/rust
programs=$source/programs

tests_of() {
    case "$1" in
        tokio-*) printf '%s\n' tcp_{accept,accept_ready,connect,echo,into_split,into_std,peek,shutdown,socket,split,stream} udp \
            uds_{cred,datagram,socket,split,stream} net_{bind_resource,lookup_host,panic,quickack,unix_pipe} unix_shutdown \
            io_{async_fd,copy_bidirectional,driver,driver_drop,read,write_all,util_empty} \
            process_{issue_42,issue_2174,kill_on_drop,smoke} rt_{basic,common,threaded,handle,handle_block_on} \
            signal_{ctrl_c,drop_recv,drop_rt,drop_signal,multi_rt,notify_both,twice,usr1} time_{rt,sleep} ;;
        polling-*) printf '%s\n' concurrent_modification io many_connections multiple_pollers notify other_modes precision timeout ;;
        async-io-*) printf '%s\n' async block_on issue_182 timer ;;
    esac
}

# The crates come to cargo's registry as dependencies; copies of them, made packages of their own, are built with tests.
prepare() {
    [ -e "$programs/done" ] && return
    rm -rf "$source"
    mkdir -p "$source/fetch/src" "$programs"
    cd "$source/fetch"
    touch src/lib.rs
    {
        printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\n'
        local crate
        for crate in "${crates[@]}"; do echo "${crate%-*} = \"=${crate##*-}\""; done
    } >Cargo.toml
    cargo fetch >&2
    export CARGO_TARGET_DIR=$source/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0
    local crate test
    for crate in "${crates[@]}"; do
        cp -r "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate" "$source/"
        cd "$source/$crate"
        printf '\n[workspace]\n' >>Cargo.toml
        local wanted=(--keep-going --message-format=json)
        while read -r test; do wanted+=(--test "$test"); done < <(tests_of "$crate")
        if [[ $crate = tokio-* ]]; then wanted+=(--features full); fi
        # A test that needs what was not published is left out.
        { cargo build -q "${wanted[@]}" || true; } | python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        shutil.copy2(message["executable"], sys.argv[1] + message["target"]["name"])
' "$programs/${crate%-*}."
    done
    local crate
    for crate in "${crates[@]}"; do ls "$programs/${crate%-*}".* >&2; done
    touch "$programs/done"
}

# libtest prints `test NAME ... ok`; names are taken from its own list, because tests print, too.
run() {
    local program=$programs/$1 list command=()
    cd "$source/${1%%.*}"-*
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet --); fi
    list=$("$program" --list --format terse | sed -n 's/: test$//p')
    # One after the other, in the order of the list: the last one that began is the one that hangs.
    RUST_TEST_THREADS=2 "${command[@]}" timeout 100 "$program" --color never >"$WORK/output" 2>&1 || true
    cat "$WORK/output" >&2
    while read -r test; do
        if grep -qE "^test $test( - should panic)? \.\.\. .*ok$" "$WORK/output"; then echo "pass $test"
        elif grep -qE "^test $test \.\.\. .*ignored" "$WORK/output"; then echo "skip $test"
        elif grep -qE "^test $test( - should panic)? \.\.\. .*FAILED$" "$WORK/output"; then echo "fail $test"
        else echo "begin $test"; fi
    done <<<"$list" >"$OUTCOMES"
}

case "$1" in
    prepare) prepare ;;
    units) find "$programs" -name '*.*' -printf '%f\n' | sort ;;
    run) run "$2" ;;
esac
