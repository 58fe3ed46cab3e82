"""The programs behind bridge.sh and nodes.sh: a server that sends back what it gets, and clients that check it.

    bridged.py serve ADDRESS PORT
    bridged.py check ADDRESS PORT MEGABYTES           so much there and back
    bridged.py check ADDRESS PORT MEGABYTES MIDDLE CUT
                                                      the same; makes the file MIDDLE when half is back, and ends no
                                                      sooner than MEGABYTES after there is a file CUT
    bridged.py talk ADDRESS PORT MESSAGES             small messages, then `talked`; ends with its standard input

Each byte is compared with the one that was sent there, so one that is lost, doubled or moved is found. A client fails if
its connection did not go through the bridge, which shows in its port: those of lanes are outside the range from which
the kernel takes ports for TCP.
"""

import os
import pathlib
import random
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bridge"))
from app import Receiver, Stream, exactly  # noqa: E402

SIZES = [1, 777, 4096, 65536, 1 << 20]
CHUNK_BYTES = 1 << 17
# Small enough to go over the home of a connection alone.
TALK_BYTES = 16384


def echo(connection):
    with connection:
        try:
            while data := connection.recv(1 << 17):
                connection.sendall(data)
        except OSError as error:
            print("the server:", error, file=sys.stderr)


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
        # Blocking: a connect that must not block leaves the bridge to itself after 20 ms, which here is nothing.
        connection = socket.create_connection((address, port))
        connection.settimeout(600)
        if not low <= connection.getsockname()[1] <= high:
            return connection
        connection.close()
        time.sleep(3)
    sys.exit("every connection went over TCP")


def check(address, port, megabytes, middle=None, cut=None):
    connection = bridged(address, port)
    seed, least = megabytes, megabytes << 20
    sizes, stream = random.Random(seed), Stream(seed)
    sent, ended = 0, threading.Event()

    def send():
        nonlocal sent
        end = None if cut else least
        while end is None or sent < end:
            if end is None and os.path.exists(cut):
                end = sent + least
            count = min(sizes.choice(SIZES), (end or 1 << 60) - sent)
            connection.sendall(stream.part(sent, count))
            sent += count
        ended.set()
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    receiver = Receiver(connection, seed)
    try:
        while True:
            receiver.take(receiver.offset + CHUNK_BYTES)
            if middle and receiver.offset >= least // 2:
                pathlib.Path(middle).touch()
                middle = None
    except EOFError:
        pass
    sender.join()
    if not ended.is_set() or receiver.offset != sent:
        sys.exit(f"{receiver.offset} of {sent} bytes came back")
    print(f"{sent >> 20} MB there and back, whole; longest pause {receiver.pause:.1f} s", flush=True)


def talk(address, port, messages):
    connection = bridged(address, port)
    stream = Stream(1)
    for number in range(messages):
        message = stream.part(number * TALK_BYTES, TALK_BYTES)
        connection.sendall(message)
        if exactly(connection, TALK_BYTES) != message:
            sys.exit(f"message {number} came back wrong")
    print("talked", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    what, address, port, *rest = sys.argv[1:]
    if what == "serve":
        serve(address, int(port))
    elif what == "check":
        check(address, int(port), int(rest[0]), *rest[1:])
    else:
        talk(address, int(port), int(rest[0]))
