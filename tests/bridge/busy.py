"""Programs to measure with while CPUs are busy: see cases_busy.py."""

import json
import selectors
import socket
import sys
import time


def spin():
    """Keeps a CPU."""
    print("on", flush=True)
    while True:
        pass


def serve(address):
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
    began = time.process_time()
    while data := sock.recv(64):
        sock.send(data)
    print(time.process_time() - began, flush=True)


def ask(address, port):
    """Round trips for as many seconds as each line of the input says: how many, their median and 99th percentile, the longest, and
    their CPU time."""
    sock = socket.create_connection((address, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("on", flush=True)
    for line in sys.stdin:
        took, end, index, used = [], time.perf_counter() + float(line), 0, time.process_time()
        while (began := time.perf_counter()) < end:
            question = index.to_bytes(8, "little")
            sock.send(question)
            assert sock.recv(8) == question
            took.append(time.perf_counter() - began)
            index += 1
        used = time.process_time() - used
        took.sort()
        print(json.dumps({"count": index, "median": took[index // 2] * 1e6, "p99": took[index * 99 // 100] * 1e6,
                          "most": took[-1] * 1e6, "cpu": used}), flush=True)


def drink(address):
    """Reads whatever comes, on any number of connections, until one of them ends."""
    listener = socket.create_server((address, 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    selector, buffer = selectors.DefaultSelector(), bytearray(1 << 20)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                sock, _ = listener.accept()
                selector.register(sock, selectors.EVENT_READ)
            elif not key.fileobj.recv_into(buffer):
                return


def pour(address, port, count):
    """Sends on so many connections, for ever."""
    selector, much = selectors.DefaultSelector(), bytes(1 << 20)
    for _ in range(int(count)):
        sock = socket.create_connection((address, int(port)))
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_WRITE)
    print("on", flush=True)
    while True:
        for key, _ in selector.select():
            key.fileobj.send(much)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
