# Sourced by what runs in two guests: starts a bridge over the verbs provider alone, and waits until both have found each
# other. Takes $binaries, a directory with beeline, beelined and libbeeline.so, and sets
#
#   $ours, $theirs    addresses, one a rail       $other    the other guest's number
#   $admin            the bridge's socket         $work     a directory that goes with the script
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
TOML
chmod 600 "$work/beelined.toml"
"$binaries/beelined" run --config "$work/beelined.toml" &
bridge=$!
trap 'kill $bridge 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
status() { "$binaries/beelined" status --json --socket "$admin"; }
links() { status | python3 -c 'import json, sys; print(sum(link["up"] for link in json.load(sys.stdin)["data"]["links"]))'; }
await_links() {
    for _ in $(seq 300); do [ "$(links 2>/dev/null)" = "$1" ] && return; sleep 1; done
    echo "there are $(links) links, not $1" >&2
    status >&2
    exit 1
}
await_links "${#ours[@]}"
rdma_barrier linked
