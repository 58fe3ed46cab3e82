"""Reads a node of ZooKeeper, one request after the other: znode.py PORT SECONDS"""

import sys
import time

from kazoo.client import KazooClient

port, seconds = int(sys.argv[1]), float(sys.argv[2])
client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=10)
client.start(timeout=20)
client.ensure_path("/beeline")
expected = b"x" * 64
version = client.set("/beeline", expected).version
reads, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    data, about = client.get("/beeline")
    if data != expected or about.version != version:
        sys.exit(f"version {about.version} has {data!r}")
    reads += 1
client.stop()
print(f"reads/s: {reads / seconds:.1f}")
