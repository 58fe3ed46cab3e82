# Runs in a guest, in its view of the host's root, with the run's shared directory at /run/rdma: brings up the network
# and one Soft-RoCE or soft-iWARP device on each port, runs the command, and leaves its exit status in verdict-N.
set -u
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
shared=/run/rdma
# GUEST comes on the kernel's command line; the rest is what run.sh was asked for.
guest=$(sed -n 's/.*beeline\.guest=\([0-9]*\).*/\1/p' /proc/cmdline)
. $shared/settings
echo "guest up after $(cut -d' ' -f1 /proc/uptime) s, $(uname -r)"

give_up() {
    echo "$1"
    echo 99 >$shared/verdict-$guest
    exit 99
}

ulimit -l unlimited
ulimit -c 0
rm -rf /lib/modules
ln -s "$IMAGE/modules" /lib/modules
# rdma_rxe fails without crc32, and its dependencies do not say so; siw, which is not among the kernel's modules, needs
# ib_core and libcrc32c. tcp_diag says who listens where, sch_netem cuts rails, sch_tbf limits them; the kernel would load them, but
# looks for modprobe in the initramfs.
for module in crc32_generic libcrc32c rdma_rxe ib_uverbs rdma_ucm tcp_diag sch_netem sch_tbf; do
    modprobe $module || give_up "no module $module"
done
[ "$DRIVER" = rxe ] || insmod "$SIW" || give_up "no module $SIW"
ip link set lo up

# Ports: dummies, or network cards known by their address.
if [ "$NICS" = dummy ]; then
    modprobe dummy numdummies=0
    for rail in $(seq "$RAILS"); do ip link add "port$rail" type dummy; done
else
    modprobe "$NICS"
    for rail in $(seq "$RAILS"); do
        mac=$(printf '52:54:00:00:%02x:%02x' "$rail" "$guest")
        for try in $(seq 100); do
            entry=$(grep -l "$mac" /sys/class/net/*/address 2>/dev/null | head -1) && [ -n "$entry" ] && break
            sleep 0.1
        done
        [ -n "$entry" ] || give_up "no network card $mac"
        ip link set "$(basename "$(dirname "$entry")")" name "port$rail" || give_up "cannot name port$rail"
    done
fi

addresses=() peers=()
for rail in $(seq "$RAILS"); do
    addresses+=("10.9.$rail.$guest")
    for other in $(seq "$GUESTS"); do
        [ "$other" = "$guest" ] || peers+=("10.9.$rail.$other")
    done
    ip addr add "10.9.$rail.$guest/24" dev "port$rail"
    ip link set "port$rail" up || give_up "port$rail does not come up"
done
for rail in $(seq "$RAILS"); do
    # The address has to be there before its GID is; dummies are never "up", only "unknown".
    for try in $(seq 100); do
        grep -qE 'up|unknown' "/sys/class/net/port$rail/operstate" && break
        sleep 0.1
    done
    device=$DRIVER$((rail - 1))
    rdma link add "$device" type "$DRIVER" netdev "port$rail" || give_up "no RDMA device on port$rail"
    for try in $(seq 100); do
        # Soft-RoCE's GID is the IPv4 address, soft-iWARP's is the port's hardware address and always there.
        if [ "$DRIVER" = rxe ]; then
            grep -q ffff "/sys/class/infiniband/$device/ports/1/gids/1" 2>/dev/null && break
        else
            grep -q ACTIVE "/sys/class/infiniband/$device/ports/1/state" && break
        fi
        sleep 0.1
    done
done

# What the command can use, and what it can source.
export RDMA_GUEST=$guest RDMA_GUESTS=$GUESTS RDMA_SHARED=$shared RDMA_DRIVER=$DRIVER
export RDMA_ADDRESSES="${addresses[*]}" RDMA_PEERS="${peers[*]}"
# rdma_barrier NAME: returns when every guest has come to it.
rdma_barrier() {
    touch "$RDMA_SHARED/at-$1-$RDMA_GUEST"
    for other in $(seq "$RDMA_GUESTS"); do
        until [ -e "$RDMA_SHARED/at-$1-$other" ]; do sleep 0.2; done
    done
}
export -f rdma_barrier
rdma_barrier up
cd "$DIRECTORY" || give_up "no $DIRECTORY"
"${COMMAND[@]}"
status=$?
rdma_barrier over
echo $status >$shared/verdict-$guest
echo "guest done after $(cut -d' ' -f1 /proc/uptime) s, status $status"
