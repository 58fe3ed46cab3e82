#!/usr/bin/env bash
# What `make test-rdma` runs in two guests before it cuts rails: a guest whose neighbour takes a port down, and that goes
# on sending there, lives on; and once the port is up again it hears what is sent.
set -euo pipefail
read -r -a ours <<<"$RDMA_ADDRESSES"
read -r -a theirs <<<"$RDMA_PEERS"
# A port that is down answers nobody who asks for its hardware address, and it is the first that was ever asked for.
ip neigh replace "${theirs[1]}" lladdr "$(printf '52:54:00:00:%02x:%02x' 2 $((3 - RDMA_GUEST)))" dev port2 nud permanent

[ "$RDMA_GUEST" = 1 ] || ip link set port2 down
rdma_barrier down
if [ "$RDMA_GUEST" = 1 ]; then
    # 60 MB: more than the ring of a card, QEMU and a socket hold together.
    python3 -c '
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(40000):
    sender.sendto(bytes(1472), (sys.argv[1], 7000))
' "${theirs[1]}"
    echo "sent to a port that is down"
fi
rdma_barrier sent

if [ "$RDMA_GUEST" = 2 ]; then
    ip link set port2 up
    python3 -c '
import pathlib, socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind((sys.argv[1], 7000))
receiver.settimeout(60)
pathlib.Path(sys.argv[2]).touch()
while receiver.recv(2000) != b"again":
    pass
pathlib.Path(sys.argv[3]).touch()
' "${ours[1]}" "$RDMA_SHARED/listens" "$RDMA_SHARED/heard"
    echo "heard at a port that is up again"
else
    until [ -e "$RDMA_SHARED/listens" ]; do sleep 0.2; done
    # What is sent once may still be lost: the port may not be up yet, or much may lie before it.
    for _ in $(seq 300); do
        if [ -e "$RDMA_SHARED/heard" ]; then break; fi
        python3 -c '
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"again", (sys.argv[1], 7000))
' "${theirs[1]}"
        sleep 0.2
    done
    [ -e "$RDMA_SHARED/heard" ]
fi
