#!/usr/bin/env bash
# What `make test-rdma` runs in two guests: a bridge in each, over the verbs provider alone, and programs that talk
# through it, with one rail cut and mended meanwhile.
#
#   bridge.sh DIRECTORY      with beeline, beelined and libbeeline.so
set -uo pipefail
binaries=$1
here=$(cd "$(dirname "$0")" && pwd)
read -r -a ours <<<"$RDMA_ADDRESSES"
read -r -a theirs <<<"$RDMA_PEERS"
other=$((3 - RDMA_GUEST))
work=$(mktemp -d)
quoted() { printf '"%s",' "$@"; }
cat >"$work/beelined.toml" <<TOML
name = "guest$RDMA_GUEST"
listen = ["${ours[0]}:4797"]
admin_socket = "$work/beelined.sock"
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
status() { "$binaries/beelined" status --json --config "$work/beelined.toml"; }
links() { status | python3 -c 'import json, sys; print(sum(link["up"] for link in json.load(sys.stdin)["data"]["links"]))'; }
await_links() {
    for _ in $(seq 300); do [ "$(links 2>/dev/null)" = "$1" ] && return; sleep 1; done
    echo "there are $(links) links, not $1" >&2
    status >&2
    exit 1
}
await_links "${#ours[@]}"
rdma_barrier linked

run=("$binaries/beeline" run --library "$binaries/libbeeline.so" python3 "$here/bridged.py")
if [ "$RDMA_GUEST" = 2 ]; then
    "${run[@]}" serve "${ours[0]}" 7000 &
    server=$!
    sleep 3
    rdma_barrier serving
    rdma_barrier whole
    # The second rail dies under the next transfer, and comes back.
    rdma_barrier cutting
    sleep 2
    ip link set port2 down
    sleep 8
    ip link set port2 up
    rdma_barrier cut
    kill $server
    result=0
else
    rdma_barrier serving
    "${run[@]}" check "${theirs[0]}" 7000 4
    result=$?
    rdma_barrier whole
    rdma_barrier cutting
    if [ $result = 0 ]; then
        "${run[@]}" check "${theirs[0]}" 7000 24
        result=$?
    fi
    rdma_barrier cut
    status
fi
rdma_barrier done
exit $result
