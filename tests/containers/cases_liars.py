"""Strangers that lie to the agent, or keep it busy."""

import os
import signal
import socket
import struct
import sys
import time

from pods import SOCKET, Pods
from world import case, note, until

# Of `crates/beeline-wire/src/agent.rs` and of the kernel.
MAGIC, VERSION = 0x424C6167, 2
QUERY, CONFIRM, ASK, ANNOUNCE, ATTACH = range(1, 6)
LIKELY, UNKNOWN, PROBE, REFUSED, FULL, OTHER_VERSION, LANE, NONE, DONE = range(1, 10)
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_SAVE_SYN, TCP_SAVED_SYN = 19, 20, 21, 27, 28


def question(kind, one=None, two=None, number=0, version=VERSION):
    def written(address):
        if address is None:
            return bytes(24)
        return struct.pack("=BBHI16s", 4, 0, address[1], 0, bytes(10) + b"\xff\xff" + socket.inet_aton(address[0]))
    return struct.pack("=IHBBII", MAGIC, version, kind, 0, number, 0) + written(one) + written(two)


class Liar:
    """Speaks with the agent by hand, from the network namespace of a pod."""

    def __init__(self, pod=None):
        make = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = within(pod, make) if pod else make()
        self.socket.settimeout(3)
        self.socket.connect(str(SOCKET))

    def ask(self, message, *descriptors):
        self.tell(message, *descriptors)
        return self.answer()

    def tell(self, message, *descriptors):
        fds = [item if isinstance(item, int) else item.fileno() for item in descriptors]
        socket.send_fds(self.socket, [message], fds) if fds else self.socket.send(message)

    def answer(self):
        answer, fds, _, _ = socket.recv_fds(self.socket, 100, 4)
        return (answer[6] if answer else None), fds


def within(pod, body):
    """Runs `body` with the sockets that it makes in a pod's network namespace."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{pod.name}", os.O_RDONLY)
    assert libc.setns(there, 0x40000000) == 0
    try:
        return body()
    finally:
        assert libc.setns(home, 0x40000000) == 0
        os.close(home)
        os.close(there)


def made_offer(a, destination, confirms=True):
    """An offer by hand: its TCP socket, connected, the client's end of the lane, and the carrier."""
    liar = Liar(a)
    tcp = within(a, socket.socket)
    code, fds = liar.ask(question(QUERY, destination), tcp)
    assert code == LIKELY, code
    mine = socket.socket(fileno=fds[0])
    mine.settimeout(3)
    within(a, lambda: tcp.connect(destination))
    if confirms:
        liar.tell(question(CONFIRM, tcp.getsockname()))
    return tcp, mine, liar


def number_of(accepted):
    syn = accepted.getsockopt(socket.IPPROTO_TCP, TCP_SAVED_SYN, 256)
    at = (syn[0] & 15) * 4 + 4
    return struct.unpack("!I", syn[at:at + 4])[0]


def asked(pod, accepted, number=None, remote=None):
    number = number_of(accepted) if number is None else number
    return Liar(pod).ask(question(ASK, accepted.getsockname(), remote or accepted.getpeername(), number))


@case()
def liars_get_nothing():
    """Sockets and messages that are not what they should be: refused, and nobody else notices."""
    pods = Pods()
    a, b = pods.pair()
    x, y = pods.pair("x", "y")
    before = pods.agent_descriptors()
    listener = within(b, lambda: socket.create_server((b.address, 7000)))
    listener.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)
    there = (b.address, 7000)
    assert Liar(b).ask(question(ANNOUNCE, there))[0] == DONE
    fresh = lambda: within(a, socket.socket)

    # What is no question at all.
    wrongs = (b"x", bytes(64), question(QUERY, there)[:-1], question(QUERY, there) + b"x", question(9), question(QUERY))
    for wrong in wrongs:
        assert Liar(a).ask(wrong)[0] == REFUSED
    assert Liar(a).ask(question(QUERY, there, version=3))[0] == OTHER_VERSION
    # Too few descriptors, too many, and of other kinds.
    assert Liar(a).ask(question(QUERY, there))[0] == REFUSED
    assert Liar(a).ask(question(QUERY, there), fresh(), fresh())[0] == REFUSED
    assert Liar(a).ask(question(ATTACH), fresh())[0] == REFUSED
    with open("/dev/null") as null:
        for strange in (null, within(a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)), socket.socketpair()[0]):
            assert Liar(a).ask(question(QUERY, there), strange)[0] == REFUSED
    # A socket that is bound, connected or listening already, and one of another namespace.
    bound, connected = fresh(), fresh()
    within(a, lambda: bound.bind((a.address, 0)))
    within(a, lambda: connected.connect(there))
    for socket_ in (bound, connected, listener, within(x, socket.socket)):
        assert Liar(a).ask(question(QUERY, there), socket_)[0] == REFUSED
    assert number_of(listener.accept()[0]) != 0
    # An address that the namespace has not.
    assert Liar(y).ask(question(ANNOUNCE, ("10.50.0.9", 9000)))[0] == DONE
    assert Liar(a).ask(question(QUERY, ("10.50.0.9", 9000)), fresh())[0] == PROBE
    # A connection without a query.
    Liar(a).tell(question(CONFIRM, there))

    # An honest offer is found by the connection's own end, once.
    tcp, mine, _ = made_offer(a, there)
    accepted = listener.accept()[0]
    number = number_of(accepted)
    code, fds = asked(b, accepted, number)
    assert code == LANE and len(fds) == 1
    socket.socket(fileno=fds[0]).send(b"lane")
    assert mine.recv(10) == b"lane"
    assert asked(b, accepted, number)[0] == NONE

    # Not by another address, another namespace that is the client's own, or another number.
    tcp, mine, _ = made_offer(a, there)
    accepted = listener.accept()[0]
    number = number_of(accepted)
    assert asked(b, accepted, number, remote=("10.99.0.77", 1))[0] == NONE
    assert asked(b, accepted, number ^ 1)[0] == NONE
    other = fresh()
    within(a, lambda: other.connect(there))
    assert asked(b, listener.accept()[0])[0] == NONE
    assert asked(b, accepted, number)[0] == LANE
    tcp, mine, _ = made_offer(a, there)
    accepted = listener.accept()[0]
    assert asked(a, accepted)[0] == NONE and mine.recv(1) == b"", "the lane is closed: the client goes on over TCP"

    # A client that is not in place yet has no lane to give; a server that asks waits for a moment.
    tcp, mine, carrier = made_offer(a, there, confirms=False)
    accepted = listener.accept()[0]
    began = time.monotonic()
    assert asked(b, accepted)[0] == NONE and time.monotonic() - began < 0.2
    tcp, mine, carrier = made_offer(a, there, confirms=False)
    accepted, server = listener.accept()[0], Liar(b)
    server.tell(question(ASK, accepted.getsockname(), accepted.getpeername(), number_of(accepted)))
    carrier.tell(question(CONFIRM, tcp.getsockname()))
    assert server.answer()[0] in (LANE, NONE)

    # A number that the client's own container changes afterwards finds nobody.
    liar, tcp = Liar(a), fresh()
    code, fds = liar.ask(question(QUERY, there), tcp)
    assert code == LIKELY
    for name, value in ((TCP_REPAIR, 1), (TCP_REPAIR_QUEUE, 2), (TCP_QUEUE_SEQ, 12345), (TCP_REPAIR, -1)):
        tcp.setsockopt(socket.IPPROTO_TCP, name, value)
    within(a, lambda: tcp.connect(there))
    liar.tell(question(CONFIRM, tcp.getsockname()))
    assert asked(b, listener.accept()[0])[0] == NONE
    os.close(fds[0])

    # Silent carriers end, and hold nobody up.
    silent = [Liar() for _ in range(200)]
    assert Liar().ask(question(ATTACH))[0] == DONE
    for liar in silent:
        liar.socket.settimeout(8)
    assert all(liar.answer()[0] is None for liar in silent)
    del silent, liar, mine, carrier, server
    until(lambda: pods.agent_descriptors() <= before, 40, "an agent at rest")


@case()
def a_crowd_of_descriptors():
    """Messages full of sockets that linger, and carriers that leave them unread: the agent goes on."""
    pods = Pods()
    a, b = pods.pair()
    before = pods.agent_descriptors()
    server, port = b.serve()
    sink = within(b, lambda: socket.create_server((b.address, 0)))

    def connect():
        made = socket.create_connection(sink.getsockname())
        made.setblocking(False)
        try:
            while True:
                made.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
        return made

    lingering = [within(a, connect) for _ in range(24)]
    descriptors = [made.fileno() for made in lingering]
    # Stopped meanwhile, so that all of it lies in its queues.
    pods.agent.send_signal(signal.SIGSTOP)
    for _ in range(3):
        Liar(a).tell(question(ATTACH), *descriptors)
    # What ends a carrier, and behind it, unread, what nobody wants to close. A message without a byte with one, too.
    for index in range(0, 24, 2):
        liar = Liar(a)
        liar.tell(b"wrong")
        liar.tell(question(ATTACH), *descriptors[index:index + 2])
        liar = Liar(a)
        liar.tell(b"", descriptors[index])
    for made in lingering:
        os.close(made.detach())
    pods.agent.send_signal(signal.SIGCONT)
    began = time.monotonic()
    for _ in range(20):
        assert Liar(b).ask(question(ATTACH))[0] == DONE
    answered = time.monotonic() - began
    a.app("duplex", b.address, port, 1000, 1000).finish()
    threads = len(os.listdir(f"/proc/{pods.agent.pid}/task"))
    note(f"20 answers in {answered * 1000:.0f} ms, by {threads} threads")
    assert answered < 1
    until(lambda: pods.agent_descriptors() <= before + 1, 20, "an agent at rest")
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= 1, pods.reasons(server)


@case()
def a_carrier_that_never_stops():
    """Strangers that ask without end, and read no answer: others are answered all the same."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    babble = ("import socket,sys\ns = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]\n"
              "[x.connect(sys.argv[1]) or x.setblocking(False) for x in s]\nm = bytes.fromhex(sys.argv[2])\nprint('on', flush=True)\n"
              "while True:\n for x in s:\n  try: x.send(m)\n  except BlockingIOError: pass\n")
    noise = [b.run(sys.executable, "-c", babble, str(SOCKET), question(ATTACH).hex(), beeline=False) for _ in range(2)]
    for program in noise:
        program.line()
    began = time.monotonic()
    for _ in range(20):
        assert Liar(a).ask(question(ATTACH))[0] == DONE
    note(f"20 answers in {(time.monotonic() - began) * 1000:.0f} ms")
    assert time.monotonic() - began < 5
    a.app("duplex", b.address, port, 100_000, 100_000, 4).finish()
    for program in noise:
        program.kill()
    time.sleep(2.5)
    a.app("duplex", b.address, port, 100_000, 100_000, 4).finish()
    assert pods.lanes(server) >= 4, pods.reasons(server)
