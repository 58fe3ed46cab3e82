#!/usr/bin/env bash
# Runs a command inside virtual machines that have a real RDMA stack: Debian's kernel with Soft-RoCE (rdma_rxe), or with
# soft-iWARP (siw).
#
#   tests/rdma/run.sh [--guests 1|2] [--rails N] [--iwarp] [--numa] [--systemd] [--timeout SECONDS] [--memory MB]
#       [--keep DIR] COMMAND [ARG...]
#
# Each guest sees this machine's root, read-only underneath, with a layer of its own to write to; so what was built
# here runs there. The command runs as root in the current directory, once in each guest, with
#   RDMA_GUEST      1 or 2                    RDMA_GUESTS   how many
#   RDMA_ADDRESSES  this guest's, one a rail  RDMA_PEERS    the other guest's
#   RDMA_SHARED     a directory that guests and host share; --keep copies it to DIR
#   RDMA_DRIVER     rxe or siw
#   rdma_barrier X  (a bash function) waits for all guests
# Rail n is network device portn with RDMA device rxe(n-1), with --iwarp siw(n-1), and address 10.9.n.GUEST. One guest has
# dummy devices, which talk to themselves; two are joined by a cable for each rail. With --numa a guest has two packages
# with two CPUs and one NUMA node each, and rail n sits at node n-1 (2 rails). Debian's kernels have no siw: --iwarp builds
# it when it is first asked for (siw.sh). With --systemd the guest's first process is systemd, and the command a service.
#
# The result is 0 if the command succeeded in every guest. One that has not ended after SECONDS is made to say where its
# CPUs and tasks are, or where QEMU is, and ends. KVM is not used: it is not everywhere, and the guests are to do the
# same everywhere. So times in there mean nothing.
set -euo pipefail

guests=1 rails=2 driver=rxe numa=no systemd= limit=600 memory=1024 keep=
while [ $# -gt 0 ]; do
    case $1 in
        --guests) guests=$2; shift 2 ;;
        --rails) rails=$2; shift 2 ;;
        --iwarp) driver=siw; shift ;;
        --numa) numa=yes rails=2 memory=2048; shift ;;
        --systemd) systemd=beeline.systemd; shift ;;
        --timeout) limit=$2; shift 2 ;;
        --memory) memory=$2; shift 2 ;;
        --keep) keep=$2; shift 2 ;;
        --) shift; break ;;
        -*) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || { echo "no command; see the head of $0" >&2; exit 2; }
case $guests in 1 | 2) ;; *) echo "1 or 2 guests, not $guests" >&2; exit 2 ;; esac
command -v qemu-system-x86_64 >/dev/null || { echo "no QEMU: ci/packages.sh rdma" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
image=$("$here/image.sh")
siw=
[ "$driver" = rxe ] || siw=$("$here/siw.sh" "$image")
run=$(mktemp -d "${TMPDIR:-/tmp}/beeline-rdma-XXXXXX")
shared=$run/shared
mkdir "$shared"
machines=()
clean_up() {
    for machine in "${machines[@]}"; do kill "$machine" 2>/dev/null || true; done
    wait 2>/dev/null || true
    if [ -n "$keep" ]; then mkdir -p "$keep" && cp -r "$shared/." "$run"/*.log "$keep/" 2>/dev/null || true; fi
    rm -rf "$run"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

nics=dummy
if [ "$numa" = yes ]; then nics=e1000e; elif [ "$guests" = 2 ]; then nics=virtio_net; fi
cp "$here/guest.sh" "$shared/"
{
    printf 'IMAGE=%q GUESTS=%q RAILS=%q NICS=%q DIRECTORY=%q\n' "$image" "$guests" "$rails" "$nics" "$PWD"
    printf 'DRIVER=%q SIW=%q\n' "$driver" "$siw"
    printf 'COMMAND=('
    printf '%q ' "$@"
    printf ')\n'
} >"$shared/settings"

# The arguments of one guest's network cards: for each rail a card, and a cable to the other guest or a loose end.
#
# A cable loses what its other end does not take, as where a port is down. For that there is a hub between card and
# cable, with a third end that nobody plugs into: that takes everything, so QEMU always reads, and drops what it cannot
# deliver when 10,000 packets wait. Without the hub QEMU would stop reading, and soon the one at the other end would stand
# still with all of its guest: the end that listens (`server=on`) blocks where a cable is full. cable.sh tries it.
cards() {
    local guest=$1 rail mac cable bus
    [ "$nics" = dummy ] && return
    for rail in $(seq "$rails"); do
        mac=$(printf '52:54:00:00:%02x:%02x' "$rail" "$guest")
        cable="hubport,hubid=$rail,id=net$rail"
        if [ "$guests" = 2 ]; then
            cable="stream,id=cable$rail,addr.type=unix,addr.path=$run/cable$rail"
            if [ "$guest" = 1 ]; then cable+=,server=on; else cable+=,server=off; fi
            echo "-netdev $cable -netdev hubport,hubid=$rail,id=far$rail,netdev=cable$rail"
            echo "-netdev stream,id=nobody$rail,addr.type=unix,addr.path=$run/nobody$rail-$guest,server=on"
            echo "-netdev hubport,hubid=$rail,id=loose$rail,netdev=nobody$rail"
            cable="hubport,hubid=$rail,id=net$rail"
        fi
        bus=
        if [ "$numa" = yes ]; then
            echo "-device pxb-pcie,id=host$rail,bus=pcie.0,bus_nr=$((rail * 64)),numa_node=$((rail - 1))"
            echo "-device pcie-root-port,id=slot$rail,bus=host$rail,chassis=$rail"
            bus=,bus=slot$rail
        fi
        echo "-netdev $cable -device ${nics/virtio_net/virtio-net-pci},netdev=net$rail,mac=$mac$bus"
    done
}

# An interrupt that nothing masks (NMI) lets a guest panic, and with that say where its CPUs and tasks are. It has so many
# seconds for it.
where="unknown_nmi_panic panic_print=0x41" patience=10
boot() {
    local guest=$1
    local -a cpus=(-smp 2 -m "$memory") network
    if [ "$numa" = yes ]; then
        local half=$((memory / 2))
        cpus=(-smp 4,sockets=2,cores=2,threads=1 -m "$memory"
            -object "memory-backend-ram,id=memory0,size=${half}M" -object "memory-backend-ram,id=memory1,size=${half}M"
            -numa node,nodeid=0,cpus=0-1,memdev=memory0 -numa node,nodeid=1,cpus=2-3,memdev=memory1
            -numa dist,src=0,dst=1,val=21)
    fi
    read -r -a network <<<"$(cards "$guest" | tr '\n' ' ')"
    mkfifo "$run/monitor$guest.in" "$run/monitor$guest.out"
    timeout --kill-after=5 $((limit + guests * patience)) \
        qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
        -machine q35 -accel tcg,thread=multi "${cpus[@]}" "${network[@]}" \
        -kernel "$image/vmlinuz" -initrd "$image/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1 $where no_timer_check mitigations=off beeline.guest=$guest $systemd" \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,bus=pcie.0,fsdev=host,mount_tag=host \
        -fsdev "local,id=share,path=$shared,security_model=none" -device virtio-9p-pci,bus=pcie.0,fsdev=share,mount_tag=share \
        -chardev "pipe,id=monitor,path=$run/monitor$guest" -mon chardev=monitor -pidfile "$run/qemu$guest.pid" \
        -serial stdio </dev/null > >(sed -u 's/\r//g' | tee "$run/guest-$guest.log" | sed -u "s/^/guest $guest| /") 2>&1 &
    machines+=($!)
}

for guest in $(seq "$guests"); do
    boot "$guest"
    # The second guest plugs into the cables of the first.
    if [ "$guest" = 1 ] && [ "$guests" = 2 ]; then
        for try in $(seq 100); do [ -S "$run/cable$rails" ] && break; sleep 0.1; done
    fi
done

lives() { kill -0 "${machines[$1 - 1]}" 2>/dev/null; }
# ended SECONDS GUEST...: waits until none of these guests lives, so long at most; fails if one still does.
ended() {
    local deadline=$((SECONDS + $1)) guest alive
    while true; do
        alive=
        for guest in "${@:2}"; do if lives "$guest"; then alive=yes; fi; done
        [ -n "$alive" ] || return 0
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.5
    done
}
# ask GUEST: has it say where it is and end; or where its QEMU is, if that does not hear.
ask() {
    echo "guest $1 has not ended after $limit s. Where it is:" >&2
    # Open for reading, too: so the shell does not wait for a QEMU that has ended just now.
    echo nmi 1<>"$run/monitor$1.in"
    ended "$patience" "$1" && return
    echo "guest $1 does not say it. Its QEMU's threads, and what this machine's kernel has them wait for:" >&2
    local thread
    for thread in "/proc/$(cat "$run/qemu$1.pid")/task"/*; do
        echo "    $(cat "$thread/comm"): $(cat "$thread/wchan")" >&2
    done
}
if ! ended "$limit" $(seq "$guests"); then
    for guest in $(seq "$guests"); do if lives "$guest"; then ask "$guest"; fi; done
fi
for machine in "${machines[@]}"; do wait "$machine" || true; done

for guest in $(seq "$guests"); do
    verdict=$(cat "$shared/verdict-$guest" 2>/dev/null || echo "none: it died, or its $limit s were up")
    if [ "$verdict" != 0 ]; then
        echo "FAILED: guest $guest: status $verdict" >&2
        exit 1
    fi
done
