#!/usr/bin/env bash
# `beeline bench --hosts` between two network namespaces of this host with a bridge in each, joined by pairs of veth.
#
#   tests/hosts/bench.sh                    what `make bench-hosts` does: everything over one rail, compared with the
#                                           floors; connections that the library would leave to TCP; streams over two
#                                           rails of 1 Gbit/s each
#   tests/hosts/bench.sh --quick --only pingpong       arguments go to the bench; then there is one run
#   PAPER=servernet tests/hosts/bench.sh --quick       the plan of a paper (`beeline bench paper`), with a report
#
# PAPER         a plan that is run instead of the bench (default: none)
# BEELINE_BIN   where the programs are (default: target/release)
# RAILS         how many pairs (default: 1)        RATE     the bandwidth of each, as tc takes it (default: no bound)
# RATES         a bandwidth for each pair: RAILS=2 RATES="1gbit 300mbit"
# WAY           netns (the usual one), or ssh: the instrument runs in the client's namespace and reaches both by ssh, as hosts
#               `alpha` and `beta`, with an ssh server of its own in each
# WORK          a directory for what is needed meanwhile, which stays (default: one that goes); RESUME  a run that is gone on with
# LIMIT         seconds after which a run is given up (default: 900)
#
# Takes root. Nothing is left behind.
set -euo pipefail

if [ $# = 0 ] && [ -z "${PAPER:-}${RESUME:-}" ]; then
    failed=0
    "$0" --check || failed=1
    "$0" --only connect --options bridge_short_lived=on || failed=1
    RAILS=2 RATE=1gbit "$0" --only stream-1m --only streams || failed=1
    exit $failed
fi

here=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(realpath "${BEELINE_BIN:-$here/target/release}")
rails=${RAILS:-1} rate=${RATE:-} limit=${LIMIT:-900} way=${WAY:-netns}
read -r -a rates <<<"${RATES:-}"
give_up() {
    echo "bench.sh: $1" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || give_up "network namespaces take root"
for program in beeline beelined libbeeline.so; do
    [ -e "$bin/$program" ] ||
        give_up "there is no $bin/$program; \`make all\` builds it (the bridge where libfabric and hwloc are)"
done

work=${WORK:-$(mktemp -d)}
client=beeline-bench-a-$$
server=beeline-bench-b-$$
bridges=()

clean_up() {
    trap - EXIT
    for pid in "${bridges[@]}"; do kill "$pid" 2>/dev/null || true; done
    for ((i = 0; i < 50; i++)); do
        jobs -r | grep -q . || break
        sleep 0.1
    done
    for pid in "${bridges[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$client" 2>/dev/null || true
    ip netns delete "$server" 2>/dev/null || true
    [ -n "${WORK:-}" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

ip netns add "$client"
ip netns add "$server"
for name in "$client" "$server"; do ip -n "$name" link set lo up; done
for ((rail = 0; rail < rails; rail++)); do
    ip -n "$client" link add "veth$rail" type veth peer name "veth$rail" netns "$server"
    ip -n "$client" addr add "10.99.$rail.1/24" dev "veth$rail"
    ip -n "$server" addr add "10.99.$rail.2/24" dev "veth$rail"
    for name in "$client" "$server"; do
        this=${rates[rail]:-$rate}
        [ -z "$this" ] || tc -n "$name" qdisc add dev "veth$rail" root tbf rate "$this" burst 256kb latency 50ms
        ip -n "$name" link set "veth$rail" up
    done
done

# libfabric passes over a port that the kernel does not yet call up.
for name in "$client" "$server"; do
    for ((i = 0; ; i++)); do
        waiting=$(ip -n "$name" -o link show type veth | grep -vc 'state UP' || true)
        [ "$waiting" = 0 ] && break
        [ "$i" -lt 100 ] || give_up "the veth of $name do not come up"
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
allow = [{ provider = "tcp" }]
deny = [{ netdev = "lo" }]

[tunables]
# What is measured is the bridge, also where TCP is faster.
compare_s = 0
drain_s = 0
END
    ip netns exec "$2" "$bin/beelined" run --config "$work/$1.toml" 2> "$work/$1.log" &
    bridges+=($!)
}
bridge alpha "$client" 10.99.0.1 beta 10.99.0.2
bridge beta "$server" 10.99.0.2 alpha 10.99.0.1
for name in alpha beta; do
    for ((i = 0; ; i++)); do
        [ -S "$work/$name.sock" ] && break
        [ "$i" -lt 100 ] || give_up "the bridge $name does not start: $(tail -n 3 "$work/$name.log")"
        sleep 0.1
    done
done

if [ "$way" = ssh ]; then
    mkdir -p "$work/bin" /run/sshd
    printf '#!/bin/sh\nexec %s -F %s/ssh.conf "$@"\n' "$(command -v ssh)" "$work" > "$work/bin/ssh"
    chmod 755 "$work/bin/ssh"
    rm -f "$work"/*key*
    ssh-keygen -q -t ed25519 -N '' -f "$work/key"
    ssh-keygen -q -t ed25519 -N '' -f "$work/hostkey"
    printf 'IdentityFile %s/key\nIdentitiesOnly yes\nUser root\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' \
        "$work" > "$work/ssh.conf"
    for host in alpha:10.99.0.1 beta:10.99.0.2; do
        printf 'Host %s\n    HostName %s\n' "${host%:*}" "${host#*:}" >> "$work/ssh.conf"
        printf '%s\n' "ListenAddress ${host#*:}" "HostKey $work/hostkey" "AuthorizedKeysFile $work/key.pub" 'StrictModes no' 'UsePAM yes' \
            'PasswordAuthentication no' 'PidFile none' > "$work/${host%:*}.sshd"
    done
    ip netns exec "$client" "$(command -v sshd)" -D -e -f "$work/alpha.sshd" 2> "$work/alpha.sshd.log" &
    bridges+=($!)
    ip netns exec "$server" "$(command -v sshd)" -D -e -f "$work/beta.sshd" 2> "$work/beta.sshd.log" &
    bridges+=($!)
    for place in "$client:alpha:10.99.0.1" "$server:beta:10.99.0.2"; do
        IFS=: read -r namespace name address <<< "$place"
        for ((i = 0;; i++)); do
            ip netns exec "$namespace" bash -c ": < /dev/tcp/$address/22" 2>/dev/null && break
            [ "$i" -lt 100 ] || give_up "the ssh server of $name does not start: $(tail -n 3 "$work/$name.sshd.log")"
            sleep 0.1
        done
    done
    echo "$client" > "$work/client"
    echo "$server" > "$work/server"
fi

# The bench waits until the bridges have found each other.
status=0
what=(bench)
[ -z "${PAPER:-}" ] || what=(bench paper "$PAPER")
hosts=(--hosts "netns:$client,netns:$server")
run=("$bin/beeline")
if [ "$way" = ssh ]; then
    hosts=(--hosts alpha,beta --remote "$bin/beeline" --library "$bin/libbeeline.so")
    run=(ip netns exec "$client" env PATH="$work/bin:$PATH" "$bin/beeline")
fi
hosts+=(--bridge-sockets "$work/alpha.sock,$work/beta.sock")
[ -z "${RESUME:-}" ] || { what=(bench paper --resume "$RESUME") && hosts=(); }
timeout --kill-after=20 "$limit" "${run[@]}" "${what[@]}" "${hosts[@]}" "$@" || status=$?
[ "$status" != 124 ] || give_up "the bench did not end within $limit s"
for pid in "${bridges[@]}"; do
    kill -0 "$pid" 2>/dev/null || { echo "bench.sh: a bridge has died:" && tail -n 5 "$work"/*.log; } >&2
done
exit "$status"
