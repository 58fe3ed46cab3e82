# Sourced by what runs in two guests: starts a bridge over the verbs provider alone, and waits until both have found each
# other. Takes $binaries, a directory with beeline, beelined and libbeeline.so, and sets
#
#   $ours, $theirs    addresses, one a rail       $other    the other guest's number
#   $admin            the bridge's socket         $work     a directory that goes with the script
#
# and the functions below.
read -r -a ours <<<"$RDMA_ADDRESSES"
read -r -a theirs <<<"$RDMA_PEERS"
other=$((3 - RDMA_GUEST))
work=$(mktemp -d)
admin=/run/beelined.sock
quoted() { printf '"%s",' "$@"; }
cat >"$work/beelined.toml" <<TOML
name = "guest$RDMA_GUEST"
listen = ["${ours[0]}:4797"]
admin_socket = "$admin"
insecure = true
addresses = [$(quoted "${ours[@]}")]
# An emulated machine may do nothing for seconds.
peer_timeout_s = 60
[[peers]]
name = "guest$other"
control = ["${theirs[0]}:4797"]
addresses = [$(quoted "${theirs[@]}")]
[rails]
allow = [{ provider = "verbs" }]
[tunables]
# What is tried and measured is the bridge, also where it is slower than TCP, as it is where a CPU is emulated.
compare_s = 0
TOML
chmod 600 "$work/beelined.toml"
"$binaries/beelined" run --config "$work/beelined.toml" &
bridge=$!
trap 'kill $bridge 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
status() { "$binaries/beelined" status --json --socket "$admin"; }
# What a Python expression gives for `data`, the data plane's part of the status.
told() { status | python3 -c 'import json, sys; data = json.load(sys.stdin)["data"]; print(eval(sys.argv[1]))' "$1"; }
total() { told "data['totals']['$1']"; }
set_tunable() { "$binaries/beelined" set "$1" "$2" --socket "$admin" >/dev/null; }
linked() { [ "$(told "sum(link['up'] for link in data['links'])" 2>/dev/null)" = "$1" ]; }
# await WHAT COMMAND...: until the command succeeds.
await() {
    for _ in $(seq 150); do "${@:2}" && return; sleep 1; done
    echo "there is not: $1" >&2
    status >&2
    return 1
}
await "a link for each rail" linked "${#ours[@]}" || exit 1
rdma_barrier linked
