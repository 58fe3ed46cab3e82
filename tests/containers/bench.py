"""Programs to measure with: see cases_bench.py."""

import socket
import statistics
import sys
import time

# As many get lanes before it is known that they are short-lived.
FIRST = 8


def serve(address):
    listener = socket.create_server((address, 0), backlog=1024)
    listener.settimeout(60)
    print(listener.getsockname()[1], flush=True)
    while True:
        sock, _ = listener.accept()
        sock.setblocking(True)
        kind = sock.recv(1)
        if kind == b"p":
            while data := sock.recv(8):
                sock.send(data)
        elif kind == b"s":
            buffer = bytearray(1 << 20)
            while sock.recv_into(buffer):
                pass
            sock.send(b"x")
        else:
            sock.send(kind)
        sock.close()


def joined(address, port, kind):
    sock = socket.create_connection((address, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(kind)
    return sock


def pingpong(address, port, count):
    sock, count = joined(address, port, b"p"), int(count)
    for _ in range(count // 10):
        sock.send(b"12345678")
        sock.recv(8)
    began = time.perf_counter()
    for _ in range(count):
        sock.send(b"12345678")
        sock.recv(8)
    print((time.perf_counter() - began) / count * 1e6, flush=True)
    # Stays until it was looked at.
    time.sleep(0.2)


def stream(address, port, size, count):
    sock, size, count = joined(address, port, b"s"), int(size), int(count)
    data = bytes(size)
    for _ in range(count // 10):
        sock.sendall(data)
    began = time.perf_counter()
    for _ in range(count):
        sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1)
    print(size * count / (time.perf_counter() - began) / 1e9, flush=True)
    time.sleep(0.2)


def connects(address, port, count):
    """Medians of the first connections, and of those that are made when a second has passed."""
    took, later, began = [], [], time.perf_counter()
    while len(later) < int(count):
        made = time.perf_counter()
        sock = joined(address, port, b"c")
        sock.recv(1)
        sock.close()
        (took if made - began < 1 else later).append(time.perf_counter() - made)
        time.sleep(0.001)
    print([statistics.median(each) * 1e6 for each in (took[:FIRST], took, later)], flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
