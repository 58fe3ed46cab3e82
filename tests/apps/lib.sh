# What the cases share. Source it first.
set -uo pipefail
started=()

# Everything that was started is stopped, by its number, when the case ends.
cleanup() {
    local code=$? pid
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done
    for pid in "${started[@]}"; do stop "$pid"; done
    exit "$code"
}

# Waits for the end of what was told to end. It is told again after a second: a shell that has yet to become the program may lose a signal.
stop() {
    local pid=$1 looks=0
    while [ "$(ps -o state= -p "$pid" | tr -d ' ')" != Z ] && [ -e "/proc/$pid" ]; do
        sleep 0.05
        looks=$((looks + 1))
        if [ $((looks % 20)) -eq 0 ]; then kill "$pid" 2>/dev/null; fi
    done
    wait "$pid" 2>/dev/null
}
trap cleanup EXIT

# A case that cannot run here.
skip() {
    echo "$*" >&2
    exit 77
}

need() {
    local program
    for program in "$@"; do command -v "$program" >/dev/null || skip "no $program on this machine"; done
}

# The programs under test: over TCP as they are, over Beeline with the command in front.
with_mode() {
    if [ "$MODE" = beeline ]; then "$BEELINE" run --quiet -- "$@"; else "$@"; fi
}

# Starts a server in the background; its process id is in $server afterwards.
launch() {
    # beeline replaces itself by the program, and so must the shell that starts it: the number is the program's own.
    if [ "$MODE" = beeline ]; then
        exec_prefix=("$BEELINE" run --quiet --)
    else
        exec_prefix=()
    fi
    "${exec_prefix[@]}" "$@" >&2 &
    server=$!
    started+=("$server")
}

# What was run, for the tables.
version() {
    local line
    line=$("$@" 2>&1 </dev/null | grep -m1 '[0-9]\.[0-9]')
    printf '%s\n' "$line" >>"$WORK/version"
}

free_port() {
    python3 "$(dirname "${BASH_SOURCE[0]}")/free_port.py" "$$"
}

# Waits until somebody listens on a port.
await_port() {
    local port=$1 tries
    for tries in $(seq 1 200); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return 0; fi
        sleep 0.05
    done
    echo "nobody listens on the port" >&2
    exit 1
}

# Waits until a command succeeds.
await() {
    local tries
    for tries in $(seq 1 200); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.05
    done
    echo "waited in vain: $*" >&2
    exit 1
}

# Waits until a port has a listener, without connecting to it: for servers that serve one client, or count them.
await_listener() {
    await sh -c "ss -Htln sport = :$1 | grep -q LISTEN"
}

# Stops a process that `launch` has started, and waits for its end.
stop() {
    kill "$1"
    wait "$1" || true
}

# A process (or one of its children) must have carried at least so many connections over lanes.
expect_lanes() {
    [ "$MODE" = beeline ] || return 0
    local pid=$1 least=$2 all accelerated=0 one
    all="$pid $(pgrep -P "$pid" | tr '\n' ' ')"
    for one in $all; do
        local counted
        counted=$("$BEELINE" stat "$one" --json 2>/dev/null \
            | python3 -c 'import json, sys; print(sum(p["accelerated"] for p in json.load(sys.stdin)["processes"]))' 2>/dev/null)
        accelerated=$((accelerated + ${counted:-0}))
    done
    if [ "$accelerated" -lt "$least" ]; then
        echo "process $pid carried $accelerated connections over lanes, expected $least" >&2
        for one in $all; do "$BEELINE" stat "$one" >&2; done
        exit 1
    fi
}

# Random bytes that are the same every time.
some_bytes() {
    local count=$1
    python3 -c '
import hashlib, sys
left, block = int(sys.argv[1]), 0
while left > 0:
    piece = b"".join(hashlib.sha256(b"%d/%d" % (block, i)).digest() for i in range(2048))[:left]
    sys.stdout.buffer.write(piece)
    left -= len(piece)
    block += 1
' "$count"
}
