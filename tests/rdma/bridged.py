"""A server that sends back what it gets, and a client that checks it: the programs behind bridge.sh.

    bridged.py serve ADDRESS PORT
    bridged.py check ADDRESS PORT MEGABYTES

The client fails if its connection did not go through the bridge, which shows in its port: those of lanes are outside
the range from which the kernel takes ports for TCP.
"""

import hashlib
import random
import socket
import sys
import threading
import time

SIZES = [1, 777, 4096, 65536, 1 << 20]


def echo(connection):
    with connection:
        while data := connection.recv(1 << 17):
            connection.sendall(data)


def serve(address, port):
    listener = socket.create_server((address, port))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def bridged(address, port):
    """A connection through the bridge: what is slow here may be silent for the first attempts."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    for _ in range(30):
        connection = socket.create_connection((address, port), timeout=600)
        if not low <= connection.getsockname()[1] <= high:
            return connection
        connection.close()
        time.sleep(3)
    sys.exit("every connection went over TCP")


def check(address, port, megabytes):
    connection = bridged(address, port)
    total = megabytes << 20
    sent = hashlib.sha256()
    numbers = random.Random(megabytes)
    block = numbers.randbytes(1 << 20)

    def send():
        left = total
        while left:
            part = block[: min(left, numbers.choice(SIZES))]
            connection.sendall(part)
            sent.update(part)
            left -= len(part)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    came, count = hashlib.sha256(), 0
    while data := connection.recv(1 << 17):
        came.update(data)
        count += len(data)
    sender.join()
    if count != total or came.digest() != sent.digest():
        sys.exit(f"{count} of {total} bytes came back, or not the same")
    print(f"{megabytes} MB there and back, whole")


if __name__ == "__main__":
    what, address, port, *rest = sys.argv[1:]
    if what == "serve":
        serve(address, int(port))
    else:
        check(address, int(port), int(rest[0]))
