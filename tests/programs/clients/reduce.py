"""PyTorch's all-reduce over gloo between two processes: reduce.py serve PORT | reduce.py ask PORT SECONDS

The one that serves is rank 0 of a new group for whoever asks."""

import os
import socket
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as group

torch.set_num_threads(1)
FLOATS, BATCH = 65_536, 20
mode, port = sys.argv[1], int(sys.argv[2])


def take_part(rank, store, until):
    """All-reduces until rank 1 finds that it is time; how many there were."""
    group.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{store}", rank=rank, world_size=2)
    own = torch.arange(FLOATS, dtype=torch.float32) * (rank + 1)
    expected = torch.arange(FLOATS, dtype=torch.float32) * 3
    rounds, more = 0, torch.ones(1)
    while more.item():
        for _ in range(BATCH):
            sum = own.clone()
            group.all_reduce(sum)
            if not torch.equal(sum, expected):
                sys.exit("another sum than expected")
        rounds += BATCH
        more.fill_(float(time.monotonic() < until))
        group.broadcast(more, src=1)
    group.destroy_process_group()
    return rounds


if mode == "serve":
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        with listener.accept()[0] as asking:
            # Whoever says nothing only looked whether this is up.
            if store := asking.recv(16):
                take_part(0, int(store), 0)

seconds = float(sys.argv[3])
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    store = probe.getsockname()[1]
with socket.create_connection(("127.0.0.1", port)) as asking:
    asking.sendall(str(store).encode())
    start = time.monotonic()
    rounds = take_part(1, store, start + seconds)
print(f"all-reduces/s: {rounds / (time.monotonic() - start):.1f}")
