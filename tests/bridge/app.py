"""The programs of the bridge's cases: a server that does what a client's first line says, and clients.

    app.py serve KIND ADDRESS          prints its port, then serves; `any`, `deaf`, which listens and never accepts,
                                       `late`, which accepts its first client after a second, or `inetd`, which
                                       leaves that to programs without the library
    app.py KIND ADDRESS PORT ARGS...   a client; prints facts as JSON, a line each

Bytes come from streams that repeat after a prime number of bytes, and each byte is compared: so one that is lost,
doubled or moved is found, and its offset told.
"""

import errno
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

PERIOD = 1048583
SIZES = (1, 3 << 20, 7, 65536, 1 << 20, 777, 300000, 4096, 9000, 4097, 1 << 17)


class Stream:
    def __init__(self, seed):
        block = random.Random(seed).randbytes(PERIOD)
        self.bytes = memoryview(block + block + block + block + block)

    def part(self, offset, count):
        return self.bytes[offset % PERIOD:offset % PERIOD + count]


def say(**facts):
    print(json.dumps(facts), flush=True)


def transmit(sock, total, seed, sizes=SIZES):
    stream, sent, turn = Stream(seed), 0, 0
    while sent < total:
        count = min(sizes[turn % len(sizes)], total - sent)
        sock.sendall(stream.part(sent, count))
        sent, turn = sent + count, turn + 1


class Receiver:
    def __init__(self, sock, seed):
        self.sock, self.stream, self.offset, self.pause, self.last = sock, Stream(seed), 0, 0.0, time.monotonic()

    def take(self, total):
        """Receives up to `total` bytes in all, or to the end; checks each."""
        while self.offset < total:
            data = self.sock.recv(min(1 << 19, total - self.offset))
            now = time.monotonic()
            self.pause, self.last = max(self.pause, now - self.last), now
            if not data:
                raise EOFError(f"the end after {self.offset} of {total} bytes")
            if data != self.stream.part(self.offset, len(data)):
                expected = self.stream.part(self.offset, len(data))
                wrong = next(i for i in range(len(data)) if data[i] != expected[i])
                raise ValueError(f"wrong byte at {self.offset + wrong}, in {len(data)} bytes from {self.offset}")
            self.offset += len(data)


def exactly(sock, count):
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            break
        data += more
    return data


# ---- the server

def line_of(sock):
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            return []
        line += byte
    return line.decode().split()


def serve_duplex(sock, up, down, seed):
    up, down, seed = int(up), int(down), int(seed)
    sender = threading.Thread(target=transmit, args=(sock, down, seed + 1))
    sender.start()
    try:
        receiver = Receiver(sock, seed)
        receiver.take(up)
        verdict = "good" if sock.recv(1) == b"" else "bytes after the end"
    except (ValueError, EOFError) as why:
        verdict = str(why)
    sender.join()
    sock.sendall(verdict.encode())


def serve_echo(sock):
    while data := sock.recv(1 << 18):
        sock.sendall(data)


def serve_names(sock):
    sock.sendall(json.dumps([sock.getsockname(), sock.getpeername()]).encode())
    sock.recv(1)


def serve_slow(sock, seconds, total, seed):
    """Reads nothing for some seconds, then everything."""
    time.sleep(float(seconds))
    try:
        Receiver(sock, int(seed)).take(int(total))
        sock.sendall(b"good")
    except (ValueError, EOFError) as why:
        sock.sendall(str(why).encode())


def serve_first(sock):
    """Says how it ends before the client does, and reads on."""
    sock.sendall(b"hello")
    sock.shutdown(socket.SHUT_WR)
    total = 0
    while data := sock.recv(1 << 18):
        total += len(data)
    say(received=total)


def serve_leave(sock):
    """Closes with bytes unread."""
    sock.recv(1, socket.MSG_PEEK)
    time.sleep(0.2)


def serve_linger(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def serve_handed(sock, how):
    """Another program echoes: one that gets the connection by its number, or as its standard input and output."""
    if how == "stdio":
        subprocess.run(["cat"], stdin=sock, stdout=sock)
    else:
        body = ("import socket,sys\nsock = socket.socket(fileno=int(sys.argv[1]))\n"
                "while data := sock.recv(1 << 18):\n sock.sendall(data)\n")
        subprocess.run([sys.executable, "-c", body, str(sock.fileno())], pass_fds=[sock.fileno()])


def serve_shut(sock, total):
    """Ends its direction after some bytes, and closes nothing when the other has ended."""
    transmit(sock, int(total), 3)
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(1000):
        pass
    sys.stdin.readline()


def serve_urgent(sock):
    """Reads what lies before the urgent byte, then that, then the rest."""
    exactly(sock, 1)
    select.select([], [], [sock], 5)
    before = b""
    while not sock_at_mark(sock):
        before += sock.recv(1000)
    urgent = sock.recv(1, socket.MSG_OOB)
    after = b""
    while data := sock.recv(1000):
        after += data
    sock.sendall(json.dumps([before.decode(), urgent.decode(), after.decode()]).encode())


def sock_at_mark(sock):
    return struct.unpack("i", fcntl.ioctl(sock, 0x8905, b"\0\0\0\0"))[0] != 0


def serve_pour(sock, seed):
    """Sends without end."""
    transmit(sock, 1 << 50, int(seed))


def serve_swallow(sock, seed):
    """Receives without end, and tells how it ended."""
    receiver = Receiver(sock, int(seed))
    try:
        receiver.take(1 << 50)
    except EOFError:
        say(end="eof", bytes=receiver.offset)
    except OSError as error:
        say(end=errno.errorcode[error.errno], bytes=receiver.offset)


def serve_one(sock):
    try:
        words = line_of(sock)
        if words:
            globals()["serve_" + words[0]](sock, *words[1:])
    except OSError as error:
        print("server:", error, file=sys.stderr)
    finally:
        sock.close()


def serve6():
    """Listens on all addresses of both families."""
    serve("any", "::")


def serve_at(address, port):
    """Listens on a port that the caller has chosen."""
    serve("any", address, port)


def serve(kind, address, port=0):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = family == socket.AF_INET6 and address == "::"
    listener = socket.create_server((address, int(port)), family=family, backlog=1024, dualstack_ipv6=both)
    print(listener.getsockname()[1], flush=True)
    if kind == "deaf":
        sys.stdin.readline()
        return
    if kind == "late":
        select.select([listener], [], [])
        time.sleep(1)
    while kind == "inetd":
        select.select([listener], [], [])
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        subprocess.run([sys.executable, "-B", __file__, "accept_one", str(listener.fileno())],
                       pass_fds=[listener.fileno()], env=plain)
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


def accept_one(number):
    serve_one(socket.socket(fileno=int(number)).accept()[0])


# ---- clients

def connect(address, port, words=None, own=None):
    # Blocking: a connect that must not block leaves a slow bridge to itself after 20 ms.
    sock = socket.create_connection((address, int(port)), source_address=own)
    if words:
        sock.sendall((words + "\n").encode())
    return sock


def talk(sock, up, down, seed):
    sender = threading.Thread(target=lambda: (transmit(sock, up, seed), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    receiver = Receiver(sock, seed + 1)
    receiver.take(down)
    verdict = b""
    while data := sock.recv(1000):
        verdict += data
    sender.join()
    assert verdict == b"good", f"the server says: {verdict.decode()}"
    return receiver


def names(address, port, own_address=None, own_port=0):
    with connect(address, port, "names", own_address and (own_address, int(own_port))) as sock:
        theirs = json.loads(sock.recv(1000))
        low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
        mine = sock.getsockname()
        say(mine=mine, peer=sock.getpeername(), theirs=theirs, ephemeral=low <= mine[1] <= high)
        sys.stdin.readline()


def duplex(address, port, up, down, count="1"):
    """Both directions at once, on some connections at once."""
    up, down, count = int(up), int(down), int(count)
    began, failures, pauses = time.monotonic(), [], []

    def one(index):
        seed = 1000 + 2 * index
        try:
            with connect(address, port, f"duplex {up} {down} {seed}") as sock:
                pauses.append(talk(sock, up, down, seed).pause)
        except (OSError, EOFError, ValueError, AssertionError) as error:
            failures.append(f"connection {index}: {error!r}")

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    assert not failures, failures[:5]
    say(seconds=seconds, megabytes_per_second=(up + down) * count / seconds / 1e6, pause=max(pauses))


def among(up, down, *places):
    """Connections to several servers, all open at once, and then both directions of each at once when that is asked for."""
    socks = []
    for place in places:
        address, port = place.rsplit(":", 1)
        socks.append(socket.create_connection((address, int(port)), timeout=60))
        socks[-1].settimeout(None)
    say(open=len(socks))
    assert sys.stdin.readline(), "nobody goes on"
    failures = []

    def one(index, sock):
        seed = 2000 + 2 * index
        try:
            sock.sendall(f"duplex {up} {down} {seed}\n".encode())
            talk(sock, int(up), int(down), seed)
        except (OSError, EOFError, ValueError, AssertionError) as error:
            failures.append(f"{places[index]}: {error!r}")

    threads = [threading.Thread(target=one, args=each) for each in enumerate(socks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
    say(good=len(socks))


def pipelined(address, port, messages, size):
    """Many small messages without waiting for answers."""
    messages, size = int(messages), int(size)
    sock = connect(address, port, "echo")
    stream = Stream(7)

    def pour():
        for index in range(messages):
            sock.sendall(stream.part(index * size, size))
        sock.shutdown(socket.SHUT_WR)

    threading.Thread(target=pour).start()
    Receiver(sock, 7).take(messages * size)
    assert sock.recv(1) == b""
    say(ok=True)


def many(address, port, count):
    """Many connections open; each works, before and after all are there."""
    socks = []
    for index in range(int(count)):
        socks.append(connect(address, port, "echo"))
        socks[-1].sendall(b"first %d" % index)
    say(open=len(socks))
    for index, sock in enumerate(socks):
        wanted = b"first %d" % index
        assert exactly(sock, len(wanted)) == wanted
    sys.stdin.readline()
    for index, sock in enumerate(socks):
        sock.sendall(b"again %d" % index)
    for index, sock in enumerate(socks):
        wanted = b"again %d" % index
        assert exactly(sock, len(wanted)) == wanted
    say(again=len(socks))
    sys.stdin.readline()


def brief(address, port, count):
    """Connections that say one word each; one that says more; and brief ones again."""
    def some(words):
        for _ in range(int(count)):
            with connect(address, port, "echo") as sock:
                for _ in range(words):
                    sock.sendall(b"word")
                    assert exactly(sock, 4) == b"word"

    some(1)
    say(open=int(count))
    line = sys.stdin.readline()
    assert line, "nobody goes on"
    time.sleep(1.2)
    with connect(address, port, "echo") as sock:
        sock.sendall(b"after a pause")
        assert exactly(sock, 13) == b"after a pause"
    some(40)
    say(again=int(count))
    sys.stdin.readline()


def slow(address, port, total, seconds):
    sock = connect(address, port, f"slow {seconds} {total} 5")
    began = time.monotonic()
    transmit(sock, int(total), 5)
    sent = time.monotonic() - began
    say(answer=sock.recv(100).decode(), sending=sent)


def first(address, port, total):
    """The server ends its direction first; ours goes on."""
    sock = connect(address, port, "first")
    answer = exactly(sock, 6)
    transmit(sock, int(total), 3)
    say(answer=answer.decode())


def ending_of(sock):
    try:
        while data := sock.recv(1 << 18):
            pass
        return "eof"
    except OSError as error:
        return errno.errorcode[error.errno]


def leave(address, port):
    sock = connect(address, port, "leave")
    sock.sendall(b"x" * 100)
    say(end=ending_of(sock))


def linger(address, port):
    sock = connect(address, port, "linger")
    say(end=ending_of(sock))


def urgent(address, port, count):
    began, parts = time.monotonic(), []
    for _ in range(int(count)):
        sock = connect(address, port, "urgent")
        sock.sendall(b".before")
        sock.send(b"!", socket.MSG_OOB)
        sock.sendall(b"after")
        sock.shutdown(socket.SHUT_WR)
        data = b""
        while more := sock.recv(1000):
            data += more
        parts.append(json.loads(data))
    say(parts=parts, seconds=time.monotonic() - began)


def pour(address, port):
    """Sends until it breaks."""
    sock = connect(address, port, "swallow 9")
    say(mine=sock.getsockname())
    try:
        transmit(sock, 1 << 50, 9)
    except OSError as error:
        say(end=errno.errorcode[error.errno])


def swallow(address, port):
    """Receives until it breaks."""
    sock = connect(address, port, "pour 9")
    say(mine=sock.getsockname())
    serve_swallow(sock, "9")


def handed(address, port, how, total):
    """What another program echoes, byte for byte."""
    total, sock = int(total), connect(address, port, f"handed {how}")
    sender = threading.Thread(target=lambda: (transmit(sock, total, 5), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    receiver = Receiver(sock, 5)
    receiver.take(total)
    sender.join()
    say(ended=sock.recv(1) == b"")


def closes(address, port):
    """Sends some bytes, closes, and lives on."""
    sock = connect(address, port, "swallow 9")
    sock.sendall(Stream(9).part(0, 10_000))
    sock.close()
    say(closed=True)
    sys.stdin.readline()


def wait(address, port):
    """Is connected and does nothing until the end comes."""
    sock = connect(address, port)
    say(mine=sock.getsockname())
    say(end=ending_of(sock))


def shut(address, port, total):
    """Ends its direction at once, and reads when both have ended."""
    sock = connect(address, port, f"shut {total}")
    sock.shutdown(socket.SHUT_WR)
    sys.stdin.readline()
    receiver = Receiver(sock, 3)
    receiver.take(int(total))
    say(ended=sock.recv(1) == b"")
    sys.stdin.readline()


def pooled(address, port, count, size):
    """Many connections that say little each; for each line after that one of them says much."""
    size, socks = int(size), [connect(address, port, "echo") for _ in range(int(count))]
    for sock in socks:
        sock.sendall(b"x" * size)
        assert exactly(sock, size) == b"x" * size
    say(open=len(socks))
    while line := sys.stdin.readline():
        much = Stream(3).part(0, int(line))
        threading.Thread(target=socks[0].sendall, args=(much,)).start()
        assert exactly(socks[0], len(much)) == much
        say(much=len(much))


def quits(address, port, count):
    """Connections that are closed when much of what came is unread."""
    for _ in range(int(count)):
        sock = connect(address, port, "pour 9")
        sock.recv(1 << 20)
        time.sleep(0.3)
        sock.close()
    say(closed=int(count))


def polled(address, port, kind):
    """Connects without blocking, and waits by poll or epoll; talks and ends the same way."""
    sock = socket.socket()
    sock.setblocking(False)
    code = sock.connect_ex((address, int(port)))
    assert code in (0, errno.EINPROGRESS), code
    if kind == "epoll":
        waiter = select.epoll()
        waiter.register(sock, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
        ready = lambda: dict(waiter.poll(5)).get(sock.fileno(), 0)
    else:
        waiter = select.poll()
        waiter.register(sock, select.POLLOUT)
        ready = lambda: dict(waiter.poll(5000)).get(sock.fileno(), 0)
    assert ready() & select.POLLOUT
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    sock.send(b"echo\n")
    if kind == "poll":
        waiter.modify(sock, select.POLLIN)
    for index in range(200):
        wanted = b"message %d" % index
        sock.send(wanted)
        got = b""
        while len(got) < len(wanted):
            try:
                got += sock.recv(100)
            except BlockingIOError:
                assert ready(), f"no event for message {index}"
        assert got == wanted
    sock.shutdown(socket.SHUT_WR)
    while True:
        try:
            assert sock.recv(100) == b""
            break
        except BlockingIOError:
            assert ready(), "no event for the end"
    say(ok=True)


def refused(address, port):
    """Is not connected; says how."""
    try:
        socket.create_connection((address, int(port)), timeout=1.5).close()
        say(error=None)
    except TimeoutError:
        say(error="TIMEOUT")
    except OSError as error:
        say(error=errno.errorcode[error.errno])


def swarm(address, port, count):
    """Connections made at once by as many threads, which stay open."""
    def one():
        with connect(address, port, "echo") as sock:
            sock.sendall(b"word")
            assert exactly(sock, 4) == b"word"
            done.acquire()
    done = threading.Semaphore(0)
    threads = [threading.Thread(target=one) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    time.sleep(1)
    say(open=len(threads))
    sys.stdin.readline()
    for thread in threads:
        done.release()


def makes(address, port, seconds):
    """Connections for some seconds, one after the other, each with some words, checked; and how long the longest took."""
    deadline, made, longest, failures = time.monotonic() + float(seconds), 0, 0.0, []
    while (began := time.monotonic()) < deadline:
        try:
            with connect(address, port, "echo") as sock:
                for index in range(20):
                    wanted = b"%08d" % (made * 20 + index)
                    sock.sendall(wanted)
                    assert exactly(sock, 8) == wanted
        except (OSError, AssertionError) as error:
            failures.append(repr(error))
        made, longest = made + 1, max(longest, time.monotonic() - began)
        time.sleep(0.002)
    say(made=made, longest=longest, failures=failures)


def talk_until(address, port, seconds):
    """Says a word now and then; says whether that still goes after some seconds."""
    sock = connect(address, port, "echo")
    sock.settimeout(5)
    began = time.monotonic()
    sock.sendall(b"word")
    say(first=exactly(sock, 4).decode())
    try:
        while time.monotonic() - began < float(seconds):
            sock.sendall(b"word")
            if exactly(sock, 4) != b"word":
                raise ConnectionError("the end")
            time.sleep(0.05)
        say(alive=True)
    except OSError as error:
        say(alive=False, error=repr(error), seconds=time.monotonic() - began)


def ping(address, port, seconds):
    """Small messages for some seconds; how many, and the longest wait for one."""
    sock = connect(address, port, "echo")
    deadline, count, longest = time.monotonic() + float(seconds), 0, 0.0
    while (began := time.monotonic()) < deadline:
        wanted = b"%08d" % count
        sock.sendall(wanted)
        assert exactly(sock, 8) == wanted
        longest, count = max(longest, time.monotonic() - began), count + 1
    say(count=count, longest=longest)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
