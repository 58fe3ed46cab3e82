#!/usr/bin/env bash
# `beeline bench --hosts` between two network namespaces of this host, joined by a pair of veth, with a bridge in each.
# Arguments go to the bench: `tests/hosts/bench.sh --quick --only pingpong`. BEELINE_BIN holds the programs
# (default: target/release). RAILS=2 joins them by two pairs. Nothing is left behind.
set -euo pipefail

cd "$(dirname "$0")/../.."
bin=$(realpath "${BEELINE_BIN:-target/release}")
rails=${RAILS:-1}
if [ "$(id -u)" != 0 ]; then
    echo "bench.sh: network namespaces take root" >&2
    exit 1
fi
for program in beeline beelined libbeeline.so; do
    if [ ! -e "$bin/$program" ]; then
        echo "bench.sh: there is no $bin/$program; \`make all\` builds it (the bridge where libfabric and hwloc are)" >&2
        exit 1
    fi
done

work=$(mktemp -d)
client=beeline-bench-a-$$
server=beeline-bench-b-$$
bridges=()

cleanup() {
    trap - EXIT
    for pid in "${bridges[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    ip netns delete "$client" 2>/dev/null || true
    ip netns delete "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ip netns add "$client"
ip netns add "$server"
for name in "$client" "$server"; do
    ip -n "$name" link set lo up
done
for ((rail = 0; rail < rails; rail++)); do
    ip -n "$client" link add "veth$rail" type veth peer name "veth$rail" netns "$server"
    ip -n "$client" addr add "10.99.$rail.1/24" dev "veth$rail"
    ip -n "$server" addr add "10.99.$rail.2/24" dev "veth$rail"
    for name in "$client" "$server"; do
        ip -n "$name" link set "veth$rail" up
    done
done

# libfabric passes over a port that the kernel does not yet call up.
for name in "$client" "$server"; do
    for ((i = 0; i < 100; i++)); do
        waiting=$(ip -n "$name" -o link show type veth | grep -vc 'state UP' || true)
        [ "$waiting" = 0 ] && break
        sleep 0.05
    done
done

# bridge NAME NAMESPACE OWN PEER'S-NAME PEER'S
bridge() {
    cat > "$work/$1.toml" <<END
name = "$1"
listen = ["$3"]
admin_socket = "$work/$1.sock"
insecure = true
addresses = ["$3"]

[[peers]]
name = "$4"
control = ["$5"]
addresses = ["$5"]

[rails]
deny = [{ netdev = "lo" }]
END
    ip netns exec "$2" "$bin/beelined" run --config "$work/$1.toml" 2> "$work/$1.log" &
    bridges+=($!)
}

bridge alpha "$client" 10.99.0.1 beta 10.99.0.2
bridge beta "$server" 10.99.0.2 alpha 10.99.0.1

# Until there is a link over each pair.
for ((i = 0; ; i++)); do
    up=$("$bin/beelined" status --json --socket "$work/alpha.sock" 2>/dev/null | grep -c '"up": *true' || true)
    [ "$up" -ge "$rails" ] && break
    if [ "$i" = 100 ]; then
        echo "bench.sh: the bridges do not find each other:" >&2
        tail -n 20 "$work"/*.log >&2
        exit 1
    fi
    sleep 0.1
done

"$bin/beeline" bench --hosts "netns:$client,netns:$server" \
    --bridge-sockets "$work/alpha.sock,$work/beta.sock" "$@"
