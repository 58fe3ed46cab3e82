"""Programs whose connections begin on TCP and move: see cases_moving.py."""

import hashlib
import json
import os
import random
import select
import socket
import sys
import threading
import time


def say(**facts):
    print(json.dumps(facts), flush=True)


def listening(address):
    listener = socket.create_server((address, 0), backlog=256)
    say(port=listener.getsockname()[1])
    return listener


def joined(address, port):
    sock = socket.create_connection((address, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Stream:
    """A stream of bytes that both ends can compute."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.left = b""

    def next(self, count):
        while len(self.left) < count:
            self.left += self.random.randbytes(65536)
        taken, self.left = self.left[:count], self.left[count:]
        return taken


def receive(sock, count):
    parts, left = [], count
    while left:
        part = sock.recv(min(left, 1 << 20))
        assert part, f"ended with {left} of {count} bytes missing"
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def check(sock, stream, count):
    came, due = receive(sock, count), stream.next(count)
    if came != due:
        at = next(i for i, (a, b) in enumerate(zip(came, due)) if a != b)
        raise AssertionError(f"byte {at} of {count} is wrong")


def talk(sock, seed, first):
    """Messages to and fro, of all lengths. Who is `first` begins."""
    plan, mine, theirs = random.Random(seed), Stream(f"{seed}{first}"), Stream(f"{seed}{not first}")
    for _ in range(plan.randrange(40, 400)):
        turns = [(True, plan.choice([1, 8, 100, 511, 512, 513, 5000, 70_000]), plan.randrange(1, 4)) for _ in range(2)]
        for index, (_, size, pieces) in enumerate(turns):
            if (index == 0) == first:
                for _ in range(pieces):
                    sock.sendall(mine.next(size))
            else:
                check(sock, theirs, size * pieces)


def conversations(address):
    listener = listening(address)

    def one(sock):
        seed = int(receive(sock, 8))
        talk(sock, seed, False)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
        sock.close()

    while True:
        sock, _ = listener.accept()
        threading.Thread(target=one, args=(sock,), daemon=True).start()


def converse(address, port, count, seed):
    for number in range(int(count)):
        mine = int(seed) * 1000 + number
        sock = joined(address, port)
        sock.sendall(b"%08d" % mine)
        talk(sock, mine, True)
        assert sock.recv(1) == b""
        sock.close()
    say(ok=True)


def echoing(address):
    """An echo with one thread and epoll."""
    listener = listening(address)
    listener.setblocking(False)
    poller, socks = select.epoll(), {}
    edge = select.EPOLLET if len(sys.argv) > 3 and sys.argv[3] == "edge" else 0
    poller.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                socks[sock.fileno()] = (sock, bytearray())
                poller.register(sock, select.EPOLLIN | edge)
                continue
            sock, due = socks[fd]
            try:
                while True:
                    data = sock.recv(4096)
                    if not data:
                        raise ConnectionResetError
                    due += data
                    if not edge:
                        break
            except BlockingIOError:
                pass
            except ConnectionResetError:
                poller.unregister(sock)
                del socks[fd]
                sock.close()
                continue
            while due:
                try:
                    del due[:sock.send(due)]
                except BlockingIOError:
                    select.select([], [sock], [])


def ask(address, port, count, how):
    """Asks an echo: `how` is the way to wait."""
    sock, stream = joined(address, port), Stream(how)
    poller = select.epoll() if how.startswith("epoll") else select.poll()
    if how in ("poll", "select", "epoll", "epolledge"):
        sock.setblocking(False)
    flags = select.EPOLLIN | (select.EPOLLET if how == "epolledge" else 0) if how.startswith("epoll") else select.POLLIN
    poller.register(sock, flags)
    plan = random.Random(7)
    for number in range(int(count)):
        due = stream.next(plan.choice([1, 8, 700, 3000]))
        sock.sendall(due)
        came = b""
        while len(came) < len(due):
            if how == "select":
                assert select.select([sock], [], [], 10)[0], number
            elif how != "block":
                assert poller.poll(10 if how.startswith("epoll") else 10_000), number
            try:
                while len(came) < len(due):
                    came += sock.recv(len(due) - len(came))
            except BlockingIOError:
                pass
        assert came == due, number
    say(ok=True)
    time.sleep(0.2)


def leave(address, port, count, how):
    """Asks an echo so often, then leaves in some way."""
    sock = joined(address, port)
    for _ in range(int(count)):
        sock.sendall(b"12345678")
        assert receive(sock, 8) == b"12345678"
    sock.sendall(b"last words")
    if how == "fork":
        child = os.fork()
        assert receive(sock, 5) == (b"last " if child == 0 else b"words") or True
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    elif how == "shut":
        sock.shutdown(socket.SHUT_WR)
        assert receive(sock, 10) == b"last words" and sock.recv(1) == b""
    elif how == "kill":
        say(ok=True)
        os.kill(os.getpid(), 9)
    elif how == "peek":
        got = b""
        while len(got) < 10:
            got = sock.recv(10, socket.MSG_PEEK)
        assert got == receive(sock, 10) == b"last words"
    elif how == "urgent":
        assert receive(sock, 10) == b"last words"
        sock.send(b"abc!", socket.MSG_OOB)
        sock.sendall(b"trigger")
        assert receive(sock, 10) == b"abctrigger"
    elif how == "all":
        assert sock.recv(10, socket.MSG_WAITALL) == b"last words"
    sock.close()
    say(ok=True)


POURED = 8 << 20


def pouring(address):
    """Sends more than fits, hears messages meanwhile, and closes when all is sent."""
    listener = listening(address)

    def one(sock):
        due, sent = memoryview(Stream("pour").next(POURED)), 0
        receive(sock, 8)
        sock.setblocking(False)
        try:
            while sent < POURED:
                sent += sock.send(due[sent:sent + 65536])
        except BlockingIOError:
            pass
        sock.setblocking(True)
        for _ in range(40):
            receive(sock, 8)
        sock.sendall(due[sent:])
        sock.close()

    while True:
        sock, _ = listener.accept()
        threading.Thread(target=one, args=(sock,), daemon=True).start()


def drain(address, port, pause):
    """Sends messages, and only then reads what comes."""
    sock, due = joined(address, port), Stream("pour").next(POURED)
    for number in range(41):
        sock.sendall(b"%08d" % number)
        time.sleep(0.3 if number == 0 else 0.003)
    parts = [bytearray(10), bytearray(100)]
    assert sock.recvmsg_into(parts, 0, socket.MSG_PEEK)[0] == 110 and b"".join(parts) == due[:110]
    came = bytearray()
    while part := sock.recv(200_000):
        came += part
        time.sleep(float(pause))
    assert len(came) == POURED, f"{POURED - len(came)} of {POURED} bytes are missing"
    assert came == due
    say(ok=True)
    time.sleep(0.2)


def changing(address):
    """An echo that is told to change something about its socket."""
    import ctypes
    import fcntl
    import signal
    import struct
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    listener = listening(address)

    def one(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream, buffer, length = None, ctypes.create_string_buffer(8), 8
        while True:
            if stream:
                data = buffer.raw if libc.fread(buffer, 1, 8, ctypes.c_void_p(stream)) == 8 else b""
            else:
                data = receive(sock, length)
            if not data:
                return
            if data[:4] == b"do: ":
                # The client goes meanwhile, if this end has joined.
                time.sleep(0.05)
            if data == b"do: lowa":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 16)
                length = 16
            elif data == b"do: fope":
                stream = libc.fdopen(sock.fileno(), b"r")
                assert stream
            elif data == b"do: asyn":
                flags = fcntl.fcntl(sock, fcntl.F_GETFL)
                fcntl.fcntl(sock, fcntl.F_SETFL, flags | os.O_ASYNC)
            elif data == b"do: spaw":
                sock.set_inheritable(True)
                os.posix_spawn("/bin/sleep", ["sleep", "1"], os.environ)
            elif data == b"do: zero":
                sock.setsockopt(socket.SOL_SOCKET, 60, 1)
            elif data == b"do: time":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
            sock.sendall(data)

    while True:
        sock, _ = listener.accept()
        threading.Thread(target=one, args=(sock,), daemon=True).start()


def change(address, port, count, what):
    """Asks an echo, tells it to change something, and asks on."""
    sock = joined(address, port)
    sock.settimeout(20)
    for number in range(int(count)):
        sock.sendall(b"%08d" % number)
        assert receive(sock, 8) == b"%08d" % number, number
    sock.sendall(b"do: " + what.encode())
    due = b"do: " + what.encode()
    if what == "slow":
        time.sleep(0.01)
        sock.send(b"abc!", socket.MSG_OOB)
        time.sleep(0.01)
        sock.sendall(b"defgh")
        due += b"abcdefgh"
    for number in range(20):
        time.sleep(0.01 if number == 0 else 0)
        for part in (b"first   ", b"%08d" % number):
            sock.sendall(part)
            due += part
        came = receive(sock, len(due))
        assert came == due, (number, came, due)
        due = b""
    sock.close()
    say(ok=True)


def upload(address, port, messages, megabytes):
    """Some messages, then a stream that nobody answers but at its end."""
    sock = joined(address, port)
    for _ in range(int(messages)):
        sock.sendall(b"%08d" % 1)
        assert receive(sock, 8) == b"%08d" % 1
    sock.sendall(b"%08d" % (int(megabytes) << 20))
    digest, stream = hashlib.sha256(), random.Random(1)
    for _ in range(int(megabytes)):
        part = stream.randbytes(1 << 20)
        digest.update(part)
        sock.sendall(part)
    assert receive(sock, 64).decode() == digest.hexdigest()
    say(ok=True)


def downloads(address):
    listener = listening(address)

    def one(sock):
        while length := receive(sock, 8):
            if int(length) == 1:
                sock.sendall(length)
                continue
            digest, left = hashlib.sha256(), int(length)
            while left:
                part = sock.recv(min(left, 300_000))
                digest.update(part)
                left -= len(part)
            sock.sendall(digest.hexdigest().encode())

    while True:
        sock, _ = listener.accept()
        threading.Thread(target=one, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:3] if sys.argv[1] in ("conversations", "echoing", "downloads", "pouring", "changing") else sys.argv[2:])
