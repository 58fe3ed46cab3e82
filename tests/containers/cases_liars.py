"""Strangers that lie to the agent, or keep it busy."""

import os
import signal
import socket
import struct
import sys
import time

from pods import SOCKET, Pods
from world import case, note, until

# Of `crates/beeline-wire/src/agent.rs`.
MAGIC, VERSION = 0x424C6167, 4
QUERY, CONFIRM, ASK, ANNOUNCE, HAIL = range(1, 6)
LIKELY, UNKNOWN, PROBE, REFUSED, FULL, OTHER_VERSION, LANE, NONE, DONE, UNPROVED = range(1, 11)


def question(kind, one=None, two=None, socket_=0, version=VERSION):
    def written(address):
        if address is None:
            return bytes(24)
        return struct.pack("=BBHI16s", 4, 0, address[1], 0, bytes(10) + b"\xff\xff" + socket.inet_aton(address[0]))
    return struct.pack("=IHBBII", MAGIC, version, kind, 0, socket_, 0) + written(one) + written(two)


class Liar:
    """Speaks with the agent by hand, from the network namespace of a pod."""

    def __init__(self, pod=None, user=0):
        make = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = within(pod, make) if pod else make()
        self.socket.settimeout(3)
        os.seteuid(user)
        self.socket.connect(str(SOCKET))
        os.seteuid(0)

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


def announce(pod, address):
    """A server by hand; it is known when this is over, since messages on one carrier are read in their order."""
    liar = Liar(pod)
    liar.tell(question(ANNOUNCE, address))
    assert liar.ask(question(HAIL))[0] == DONE


def made_offer(a, destination, confirms=DONE, user=0):
    """An offer by hand: its TCP socket, connected, the client's end of the lane, and the carrier."""
    liar = Liar(a, user)
    code, fds = liar.ask(question(QUERY, destination))
    assert code == LIKELY, code
    mine = socket.socket(fileno=fds[0])
    mine.settimeout(3)
    tcp = within(a, socket.socket)
    tcp.connect(destination)
    if confirms:
        assert confirm(liar, tcp) == confirms
    return tcp, mine, liar


def confirm(liar, tcp, number=None):
    number = tcp.fileno() if number is None else number
    return liar.ask(question(CONFIRM, tcp.getsockname(), tcp.getpeername(), number))[0]


def asked(pod, accepted, number=None, local=None, remote=None):
    number = accepted.fileno() if number is None else number
    return Liar(pod).ask(question(ASK, local or accepted.getsockname(), remote or accepted.getpeername(), number))


@case()
def liars_get_nothing():
    """Sockets and messages that are not what they should be: refused, and nobody else notices."""
    # The agent has the descriptors that it was asked for, and none that it has found a use for itself.
    pods = Pods("all = true\nfind = false")
    a, b = pods.pair()
    x, y = pods.pair("x", "y")
    before = pods.agent_descriptors()
    listener = within(b, lambda: socket.create_server((b.address, 7000)))
    there = (b.address, 7000)
    announce(b, there)
    fresh = lambda: within(a, socket.socket)

    # What is no question at all, and descriptors, which no question has.
    wrongs = (b"x", bytes(64), question(QUERY, there)[:-1], question(QUERY, there) + b"x", question(9), question(QUERY))
    for wrong in wrongs:
        assert Liar(a).ask(wrong)[0] == REFUSED
    assert Liar(a).ask(question(QUERY, there, version=2))[0] == OTHER_VERSION
    for kind, *rest in ((QUERY, there), (HAIL,)):
        assert Liar(a).ask(question(kind, *rest), fresh())[0] == REFUSED
        assert Liar(a).ask(question(kind, *rest), fresh(), fresh())[0] == REFUSED
    # An address that the namespace has not.
    announce(y, ("10.50.0.9", 9000))
    assert Liar(a).ask(question(QUERY, ("10.50.0.9", 9000)))[0] == PROBE
    # A connection without a query, and a second query on one carrier.
    other = fresh()
    other.connect(there)
    listener.accept()
    uninvited = Liar(a)
    # That is the end of the carrier: nothing was looked at, and nothing more will be.
    assert confirm(uninvited, other) == REFUSED and uninvited.answer()[0] is None
    liar = Liar(a)
    assert [liar.ask(question(QUERY, there))[0] for _ in range(2)] == [LIKELY, REFUSED]

    # An honest offer is found by the connection's own end, once, whatever is said of addresses besides.
    tcp, mine, _ = made_offer(a, there)
    accepted = listener.accept()[0]
    code, fds = asked(b, accepted)
    assert code == LANE and len(fds) == 1
    socket.socket(fileno=fds[0]).send(b"lane")
    assert mine.recv(10) == b"lane"
    assert asked(b, accepted)[0] == NONE

    # Not by another connection, nor by its addresses without its socket, nor from another namespace.
    tcp, mine, _ = made_offer(a, there)
    accepted = listener.accept()[0]
    other = fresh()
    other.connect(there)
    second = listener.accept()[0]
    assert asked(b, second)[0] == NONE
    with open("/dev/null") as null:
        for number in (second.fileno(), null.fileno(), listener.fileno(), 1_000_000):
            assert asked(b, accepted, number)[0] == UNPROVED
    assert asked(b, accepted, remote=("10.99.0.77", 1))[0] == UNPROVED
    assert asked(a, accepted)[0] == UNPROVED and asked(y, accepted)[0] == UNPROVED
    # The client's own end is not the server's.
    assert asked(a, tcp)[0] == NONE
    assert asked(b, accepted)[0] == LANE

    # A client that shows what is no connection of its own has no offer.
    for wrong in (other, listener, mine):
        tcp, mine, liar = made_offer(a, there, confirms=None)
        accepted = listener.accept()[0]
        assert confirm(liar, tcp, wrong.fileno()) == UNPROVED and mine.recv(1) == b""
        assert asked(b, accepted)[0] == NONE
    # Nor one that shows a connection that has an offer already, or over which a byte has gone.
    tcp, mine, liar = made_offer(a, there)
    accepted = listener.accept()[0]
    code, fds = (again := Liar(a)).ask(question(QUERY, there))
    assert code == LIKELY and confirm(again, tcp) == UNPROVED
    assert asked(b, accepted)[0] == LANE
    tcp, mine, liar = made_offer(a, there, confirms=None)
    accepted = listener.accept()[0]
    tcp.send(b"x")
    accepted.recv(1)
    assert confirm(liar, tcp) == UNPROVED and asked(b, accepted)[0] == UNPROVED

    # A client that is not in place yet has no lane to give; a server that asks waits for a moment.
    tcp, mine, carrier = made_offer(a, there, confirms=None)
    accepted = listener.accept()[0]
    assert asked(b, accepted)[0] == NONE
    tcp, mine, carrier = made_offer(a, there, confirms=None)
    accepted, server = listener.accept()[0], Liar(b)
    server.tell(question(ASK, accepted.getsockname(), accepted.getpeername(), accepted.fileno()))
    carrier.tell(question(CONFIRM, tcp.getsockname(), tcp.getpeername(), tcp.fileno()))
    assert server.answer()[0] in (LANE, NONE)

    # Silent carriers end, and hold nobody up.
    silent = [Liar() for _ in range(200)]
    assert Liar().ask(question(HAIL))[0] == DONE
    for liar in silent:
        liar.socket.settimeout(8)
    assert all(liar.answer()[0] is None for liar in silent)
    for fd in fds:
        os.close(fd)
    del silent, liar, mine, carrier, server, again
    until(lambda: pods.agent_descriptors() <= before, 40, "an agent at rest")


@case()
def who_connects_by_hand_gets_nobodys_lane():
    """The numbers of a connection, told by one of its ends, are of no use to who does not hold the socket."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    # A process that is no end of it names the number of the server's socket in the server.
    client = a.app("wait", b.address, port)
    client.facts()
    until(lambda: pods.lanes(server) == 1)
    names = {int(entry) for entry in os.listdir(f"/proc/{server.pid}/fd")}
    me = socket.socket()
    for number in names:
        code, fds = Liar(b).ask(question(ASK, (b.address, port), (a.address, 40000), number))
        assert code == UNPROVED and not fds
    me.close()
    client.kill()


@case()
def a_lent_carrier_speaks_for_nobody():
    """A carrier speaks for the process that has connected it, and for its user: not for who has a copy, nor for what that becomes."""
    pods = Pods()
    a, b = pods.pair()
    listener = within(b, lambda: socket.create_server((b.address, 7000)))
    there = (b.address, 7000)
    announce(b, there)

    def told(body):
        """What a child tells that runs `body`."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, str(body()).encode())
            finally:
                os._exit(0)
        os.close(writing)
        answer = os.read(reading, 100).decode()
        os.close(reading)
        os.waitpid(child, 0)
        return answer

    # The child speaks on its parent's carrier, of the parent's own socket.
    tcp, mine, liar = made_offer(a, there, confirms=None)
    accepted = listener.accept()[0]
    assert told(lambda: confirm(liar, tcp)) == str(REFUSED)
    assert asked(b, accepted)[0] == NONE and mine.recv(1) == b""

    def becomes(*ids):
        """A client of nobody's that is somebody else, wholly or in part, when the agent looks."""
        tcp, mine, liar = made_offer(a, there, confirms=None, user=65534)
        os.setresuid(*ids)
        return confirm(liar, tcp)

    for ids, says in (((65534, 65534, 0), UNPROVED), ((65534, 0, 65534), UNPROVED), ((0, 0, 0), UNPROVED),
                      ((65534, 65534, 65534), DONE), ((0, 65534, 65534), DONE)):
        assert told(lambda: becomes(*ids)) == str(says), ids


@case()
def announcements_hold_nobody_up():
    """Strangers that announce without end: others are served, and what counts is that they are, not how fast."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    for index in range(60):
        b.sh("ip", "addr", "add", f"10.60.0.{index + 1}/32", "dev", "lo")
    for index in range(4000):
        # A carrier is for a few messages.
        if index % 4 == 0:
            noise = Liar(b)
        noise.tell(question(ANNOUNCE, ("0.0.0.0", 1000 + index)))
    assert Liar(a).ask(question(HAIL))[0] == DONE
    a.app("duplex", b.address, port, 1000, 1000).finish()
    # So many announcements of a holder count in a second.
    known = sum(Liar(a).ask(question(QUERY, (b.address, 1000 + index)))[0] == LIKELY for index in range(3000, 3400))
    assert known < 400, known
    note(f"{known} of 400 were heard")


@case()
def a_crowd_of_descriptors():
    """Messages full of sockets that linger, and carriers that leave them unread: the agent goes on."""
    # The agent has the descriptors that it was asked for, and none that it has found a use for itself.
    pods = Pods("all = true\nfind = false")
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
    pods.hold_agent()
    for _ in range(3):
        Liar(a).tell(question(HAIL), *descriptors)
    # What ends a carrier, and behind it, unread, what nobody wants to close. A message without a byte with one, too.
    for index in range(0, 24, 2):
        liar = Liar(a)
        liar.tell(b"wrong")
        liar.tell(question(HAIL), *descriptors[index:index + 2])
        liar = Liar(a)
        liar.tell(b"", descriptors[index])
    for made in lingering:
        os.close(made.detach())
    pods.agent.send_signal(signal.SIGCONT)
    began = time.monotonic()
    for _ in range(20):
        assert Liar(b).ask(question(HAIL))[0] == DONE
    answered = time.monotonic() - began
    a.app("duplex", b.address, port, 1000, 1000).finish()
    threads = len(os.listdir(f"/proc/{pods.agent.pid}/task"))
    note(f"20 answers in {answered * 1000:.0f} ms, by {threads} threads")
    assert answered < 1
    until(lambda: pods.agent_descriptors() <= before + 1, 20, "an agent at rest")
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= 1, pods.reasons(server)


def precedence(process):
    """The priorities of an agent's threads."""
    return {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{process.pid}/task")}


@case(150)
def a_carrier_that_never_stops():
    """Strangers that ask without end, and read no answer: others are answered all the same, and the agent comes before nobody meanwhile."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    # In a network of their own: everybody has a share of the agent's time, by user and network namespace.
    x, _y = pods.pair("x", "y", "10.97.0")
    babble = ("import socket,sys\ndef new():\n s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n s.connect(sys.argv[1])\n"
              " s.setblocking(False)\n return s\ns = [new() for _ in range(8)]\nm = bytes.fromhex(sys.argv[2])\nprint('on', flush=True)\n"
              "while True:\n for i in range(8):\n  try: s[i].send(m)\n  except BlockingIOError: pass\n  except OSError: s[i] = new()\n")
    noise = [x.run(sys.executable, "-c", babble, str(SOCKET), question(HAIL).hex(), beeline=False) for _ in range(2)]
    for program in noise:
        program.line()
    began = time.monotonic()
    for _ in range(20):
        assert Liar(a).ask(question(HAIL))[0] == DONE
    note(f"20 answers in {(time.monotonic() - began) * 1000:.0f} ms")
    assert time.monotonic() - began < 5
    until(lambda: 0 in precedence(pods.agent), 30, "the agent, as programs are")
    a.app("duplex", b.address, port, 100_000, 100_000, 4).finish()
    for program in noise:
        program.kill()

    def has_lanes():
        a.app("duplex", b.address, port, 100_000, 100_000, 4).finish()
        return pods.lanes(server) >= 4

    # Where CPUs were short an offer may have lain for 80 ms, and that client's user is left to TCP for a minute.
    until(has_lanes, 75, "lanes")
    # A thread sees to its own priority, at its next event: of those that have none, more than two end after a while.
    until(lambda: Liar(a).ask(question(HAIL))[0] == DONE and -10 in precedence(pods.agent), 5, "the agent, before programs")
