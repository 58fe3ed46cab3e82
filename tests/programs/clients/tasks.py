"""Gives work to Dask's two workers: tasks.py scatter|submit PORT SECONDS"""

import sys
import time

import numpy
from distributed import Client

mode, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


def double(number):
    return 2 * number


with Client(f"tcp://127.0.0.1:{port}", timeout="20s") as client:
    client.wait_for_workers(2, timeout=20)
    done, start = 0, time.monotonic()
    if mode == "scatter":
        # There by one connection, back by another; a new content each time, as equal ones have one key.
        while time.monotonic() < start + seconds:
            block = numpy.full(131_072, float(done))
            if not numpy.array_equal(client.gather(client.scatter(block)), block):
                sys.exit("another block came back")
            done += 1
        print(f"megabytes/s: {2 * done * block.nbytes / 1e6 / (time.monotonic() - start):.1f}")
    else:
        while time.monotonic() < start + seconds:
            numbers = range(done, done + 50)
            if client.gather(client.map(double, numbers)) != [2 * number for number in numbers]:
                sys.exit("another result came back")
            done += 50
        print(f"tasks/s: {done / (time.monotonic() - start):.1f}")
