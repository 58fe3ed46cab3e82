"""Filters, equal addresses, translation, liars, and an agent that dies."""

import array
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import time

from pods import SOCKET, Pods
from world import Skip, case, note, shell, until

MAGIC, VERSION = 0x424C6167, 1
QUERY, GIVE, ASK, ANNOUNCE, ATTACH = range(1, 6)
LIKELY, UNKNOWN, REFUSED, FULL, OTHER_VERSION, LANE, NONE, DONE = range(1, 9)


@case()
def equal_addresses_at_once():
    """Two isolated pairs with the same addresses and ports, at the same time: each client reaches its own server."""
    pods = Pods()
    first, second = pods.pair("a", "b"), pods.pair("c", "d")
    # The same port on both: the second is told which.
    servers = [pair[1].app("serve_at", pair[1].address, 7000) for pair in (first, second)]
    for server in servers:
        server.line()
    clients = [pair[0].app("many", pair[1].address, 7000, 60) for pair in (first, second)]
    for client in clients:
        client.facts()
    why = [pods.reasons(client) for client in clients]
    for _ in range(2):
        for client in clients:
            client.say("on")
    for client in clients:
        client.finish()
    # Each server has the clients of its own network, and no other.
    counts = [pods.lanes(server) for server in servers]
    note(f"{counts} lanes of 60 each")
    assert all(20 <= count <= 60 for count in counts), (counts, why)
    for pair in (first, second):
        pair[0].app("duplex", pair[1].address, 7000, 3_000_000, 3_000_000).finish()
    # Who has no server of its own reaches nobody, though there is one at that address elsewhere.
    servers[1].kill()
    lonely = second[0].app("refused", second[1].address, 7000)
    assert lonely.facts()["error"] == "ECONNREFUSED"


@case()
def nobody_may_meet_unless_it_is_written():
    """Without rules, and with rules for others, connections are TCP's, and right."""
    pods = Pods(rules="")
    a, b = pods.pair()
    server, port = b.serve()
    client = a.app("duplex", b.address, port, 100_000, 100_000, 2)
    client.finish()
    assert pods.lanes(server) == 0
    pods.stop_agent()
    pods.start_agent('groups = [{ namespaces = ["a"] }, { addresses = ["10.99.0.2"] }]')
    time.sleep(2.2)
    a.app("duplex", b.address, port, 100_000, 100_000, 2).finish()
    assert pods.lanes(server) == 0, "the address of one is no bond"
    pods.stop_agent()
    pods.start_agent('groups = [{ namespaces = ["a", "b"], addresses = ["10.99.0.0/24"], users = ["root"] }]')
    time.sleep(2.2)
    for _ in range(2):
        a.app("duplex", b.address, port, 100_000, 100_000, 2).finish()
        time.sleep(2.2)
    assert pods.lanes(server) > 0, pods.reasons(server)


RULE = "table inet t {\nchain in {\ntype filter hook input priority 0; policy accept;\ntcp dport %d %s\n}\n}\n"


@case()
def a_rule_set_before():
    """What a filter rejects or drops is not connected, as over TCP."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    for verdict, error in (("reject with tcp reset", "ECONNREFUSED"), ("reject", "ECONNREFUSED"), ("drop", "TIMEOUT")):
        b.nft(RULE % (port, verdict))
        for beeline in (False, True):
            client = a.app("refused", b.address, port, beeline=beeline)
            assert client.facts()["error"] == error, (verdict, beeline)
        b.nft("delete table inet t")
    client = a.app("names", b.address, port)
    client.facts()
    assert pods.lanes(client) == 1 and pods.lanes(server) == 2, (pods.reasons(client), pods.reasons(server))


@case(90)
def a_rule_set_while_connected():
    """A filter that comes later ends connections with `cut`, and leaves them alone with `keep`."""
    for on_cut, survives in (("keep", True), ("cut", False)):
        pods = Pods(f'all = true\non_cut = "{on_cut}"') if on_cut == "keep" else pods
        if on_cut == "keep":
            a, b = pods.pair()
        else:
            pods.stop_agent()
            pods.start_agent('all = true\non_cut = "cut"')
        server, port = b.serve()
        client = a.app("talk_until", b.address, port, 25)
        client.facts()
        assert pods.lanes(client) == 1, pods.reasons(client)
        b.nft(RULE % (port, "drop"))
        facts = client.facts()
        note(f"{on_cut}: {facts}")
        assert facts["alive"] == survives, facts
        b.nft("delete table inet t")
        server.kill()


@case()
def service_addresses():
    """A client that connects to a translated address (DNAT) gets a lane from its second connection on."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve("0.0.0.0")
    a.sh("ip", "route", "add", "10.96.0.0/16", "via", b.address)
    a.nft("table ip n {\nchain out {\ntype nat hook output priority -100; policy accept;\n"
          f"ip daddr 10.96.0.1 tcp dport 80 dnat to {b.address}:{port}\n}}\n}}\n")
    a.app("duplex", "10.96.0.1", 80, 10_000, 10_000).finish()
    before = pods.lanes(server)
    client = a.app("duplex", "10.96.0.1", 80, 3_000_000, 3_000_000, 4)
    client.finish()
    assert pods.lanes(server) == before + 4, (before, pods.reasons(server))
    client = a.app("names", "10.96.0.1", 80)
    facts = client.facts()
    assert facts["peer"] == ["10.96.0.1", 80] and facts["theirs"] == [[b.address, port], facts["mine"]], facts
    client.say("end")
    client.finish()


@case()
def masquerading_stays_tcp():
    """A client whose own address is translated (SNAT) stays on TCP, at once and with every byte."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.sh("ip", "addr", "add", "10.99.0.77/24", "dev", "eth0")
    a.nft("table ip n {\nchain post {\ntype nat hook postrouting priority 100; policy accept;\n"
          f"ip daddr {b.address} snat to 10.99.0.77\n}}\n}}\n")
    for _ in range(3):
        a.app("duplex", b.address, port, 300_000, 300_000, 2).finish()
    assert pods.lanes(server) == 0


@case(120)
def agent_killed_during_transfers():
    """The agent is killed fifty times while bytes flow and connections are made; none is lost, and lanes come back."""
    pods = Pods()
    p0, p1 = pods.switched(2)
    server, port = p0.serve()
    stream = p1.app("duplex", p0.address, port, 1_500_000_000, 1_500_000_000, 2)
    maker = p1.app("makes", p0.address, port, 25)
    chance = random.Random(7)
    for _ in range(50):
        time.sleep(chance.random() * 0.3)
        pods.stop_agent(signal.SIGKILL)
        pods.start_agent()
    facts = maker.facts()
    note(f"{facts['made']} connections, the longest took {facts['longest'] * 1000:.0f} ms; {pods.lanes(server)} lanes")
    assert facts["failures"] == [], facts["failures"]
    stream.finish(100)
    time.sleep(2.5)
    before = pods.lanes(server)
    for _ in range(3):
        p1.app("duplex", p0.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= before + 2, pods.reasons(server)


@case()
def agent_stopped():
    """An agent that does not answer holds a connection up for a moment, and the next ones not at all."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    pods.agent.send_signal(signal.SIGSTOP)
    client = a.app("makes", b.address, port, 1.5)
    facts = client.facts()
    note(f"{facts['made']} connections, the longest took {facts['longest'] * 1000:.0f} ms")
    assert facts["failures"] == [] and facts["longest"] < 0.6, facts
    pods.agent.send_signal(signal.SIGCONT)


@case()
def a_socket_left_in_repair_mode():
    """A false agent that dies while it gives a number: the socket is replaced, and connects."""
    pods = Pods(agent=False)
    a, b = pods.pair()
    SOCKET.parent.mkdir()
    server, port = b.serve()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(SOCKET))
    listener.listen(5)
    client = a.app("duplex", b.address, port, 100_000, 100_000)
    # The server announces itself first, or the client asks.
    harmed = 0
    while not harmed:
        carrier, _ = listener.accept()
        message, descriptors, _, _ = socket.recv_fds(carrier, 100, 4)
        if message and message[6] == QUERY:
            with socket.socket(fileno=descriptors[0]) as taken:
                taken.setsockopt(socket.IPPROTO_TCP, 19, 1)
                harmed += 1
        else:
            for descriptor in descriptors:
                os.close(descriptor)
        carrier.close()
    listener.close()
    assert client.facts()
    client.finish()


# ---- liars


def question(kind, destination=None, version=VERSION):
    family, port, octets = 0, 0, bytes(16)
    if destination:
        octets = bytes(10) + b"\xff\xff" + socket.inet_aton(destination[0])
        family, port = 4, destination[1]
    return struct.pack("=IHBBHHI16s", MAGIC, version, kind, family, port, 0, 0, octets)


class Liar:
    """Speaks with the agent by hand."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(3)
        self.socket.connect(str(SOCKET))

    def ask(self, message, *descriptors):
        fds = [item if isinstance(item, int) else item.fileno() for item in descriptors]
        socket.send_fds(self.socket, [message], fds) if fds else self.socket.send(message)
        return self.answer()

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


def made_offer(pods, a, destination):
    """An offer by hand: its TCP socket, connected, and the client's end of the parcel."""
    liar = Liar()
    tcp = within(a, lambda: socket.socket())
    code, _ = liar.ask(question(QUERY, destination), tcp)
    assert code == LIKELY, code
    mine, parcel = socket.socketpair()
    socket.send_fds(liar.socket, [question(GIVE)], [parcel.fileno()])
    parcel.close()
    within(a, lambda: tcp.connect(destination))
    return tcp, mine


@case()
def liars_get_nothing():
    """Sockets, pairs and messages that are not what they should be: refused, and nobody else notices."""
    pods = Pods()
    a, b = pods.pair()
    x, y = pods.pair("x", "y")
    before = pods.agent_descriptors()
    listener = within(b, lambda: socket.create_server((b.address, 7000)))
    listener.setsockopt(socket.IPPROTO_TCP, 27, 1)
    assert Liar().ask(question(ANNOUNCE), listener)[0] == DONE
    there = (b.address, 7000)
    fresh = lambda: within(a, lambda: socket.socket())

    # What is no question at all.
    for wrong in (b"x", bytes(32), question(QUERY, there)[:-1], question(QUERY, there) + b"x", question(9), question(QUERY)):
        assert Liar().ask(wrong)[0] == REFUSED
    assert Liar().ask(question(QUERY, there, version=2))[0] == OTHER_VERSION
    # Too few descriptors, too many, and of other kinds.
    assert Liar().ask(question(QUERY, there))[0] == REFUSED
    assert Liar().ask(question(ATTACH), fresh())[0] == REFUSED
    with open("/dev/null") as null:
        for strange in (null, socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socketpair()[0], listener):
            assert Liar().ask(question(QUERY, there), strange)[0] == REFUSED
            assert Liar().ask(question(ASK), strange)[0] == NONE
            if strange is not listener:
                assert Liar().ask(question(ANNOUNCE), strange)[0] == REFUSED
    # A socket that is bound or connected already.
    bound = fresh()
    within(a, lambda: bound.bind((a.address, 0)))
    assert Liar().ask(question(QUERY, there), bound)[0] == REFUSED
    connected = fresh()
    within(a, lambda: connected.connect(there))
    assert Liar().ask(question(QUERY, there), connected)[0] == REFUSED
    listener.accept()[0].close()

    # A parcel that nobody asked for, and one that is none.
    liar, pair = Liar(), socket.socketpair()
    socket.send_fds(liar.socket, [question(GIVE)], [pair[0].fileno()])
    assert liar.answer()[0] in (REFUSED, None)
    liar, strange = Liar(), fresh()
    assert liar.ask(question(QUERY, there), fresh())[0] == LIKELY
    socket.send_fds(liar.socket, [question(GIVE)], [strange.fileno()])
    assert liar.answer()[0] is None

    # An honest offer is found by the connection's own end, once.
    tcp, mine = made_offer(pods, a, there)
    accepted = listener.accept()[0]
    code, fds = Liar().ask(question(ASK), accepted)
    assert code == LANE and len(fds) == 1
    socket.socket(fileno=fds[0]).send(b"lane")
    assert mine.recv(10) == b"lane"
    assert Liar().ask(question(ASK), accepted)[0] == NONE

    # After a byte over TCP it is not found, in either direction.
    for first in ("client", "server"):
        tcp, mine = made_offer(pods, a, there)
        accepted = listener.accept()[0]
        (tcp if first == "client" else accepted).send(b"x")
        (accepted if first == "client" else tcp).recv(1)
        assert Liar().ask(question(ASK), accepted)[0] == NONE, first
        mine.close()

    # Another connection from the same client, and one of another network with the same addresses, do not find it.
    tcp, mine = made_offer(pods, a, there)
    other = fresh()
    within(a, lambda: other.connect(there))
    accepted, another = sorted((listener.accept()[0] for _ in range(2)), key=lambda s: s.getpeername() != tcp.getsockname())
    assert Liar().ask(question(ASK), another)[0] == NONE
    false = within(y, lambda: socket.create_server((y.address, 7000)))
    false.setsockopt(socket.IPPROTO_TCP, 27, 1)
    twin = within(x, lambda: socket.socket())
    within(x, lambda: (twin.bind(tcp.getsockname()), twin.connect(there)))
    assert Liar().ask(question(ASK), false.accept()[0])[0] == NONE
    # Root of a container gives a socket of its own the number of another's offer, which it does not know: it guesses.
    assert Liar().ask(question(ASK), accepted)[0] == LANE

    # A number that the client's own container changes afterwards finds nobody.
    liar = Liar()
    tcp = fresh()
    assert liar.ask(question(QUERY, there), tcp)[0] == LIKELY
    mine, parcel = socket.socketpair()
    socket.send_fds(liar.socket, [question(GIVE)], [parcel.fileno()])
    parcel.close()
    tcp.setsockopt(socket.IPPROTO_TCP, 19, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, 20, 2)
    tcp.setsockopt(socket.IPPROTO_TCP, 21, 12345)
    tcp.setsockopt(socket.IPPROTO_TCP, 19, -1)
    within(a, lambda: tcp.connect(there))
    assert Liar().ask(question(ASK), listener.accept()[0])[0] == NONE

    # Silent carriers end, and hold nobody up.
    silent = [Liar() for _ in range(200)]
    assert Liar().ask(question(ATTACH))[0] == DONE
    assert all(liar.answer()[0] is None for liar in silent)
    mine.close()
    until(lambda: pods.agent_descriptors() <= before, 40 if os.environ.get("BRIDGE_NIGHTLY") else 5, "an agent at rest")


@case()
def a_crowd_of_descriptors():
    """Messages full of sockets that linger: the agent closes them without waiting for it, and goes on."""
    pods = Pods()
    a, b = pods.pair()
    before = pods.agent_descriptors()
    server, port = b.serve()
    sink = within(b, lambda: socket.create_server((b.address, 0)))
    lingering = []
    for _ in range(20):
        def connect():
            made = socket.create_connection(sink.getsockname())
            made.setblocking(False)
            try:
                while True:
                    made.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
            return made
        lingering.append(within(a, connect))
    for _ in range(3):
        socket.send_fds(Liar().socket, [question(ASK)], [made.fileno() for made in lingering])
    for made in lingering:
        os.close(made.detach())
    began = time.monotonic()
    assert Liar().ask(question(ATTACH))[0] == DONE
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert time.monotonic() - began < 5
    assert pods.lanes(server) == 1, pods.reasons(server)
    until(lambda: pods.agent_descriptors() <= before + 1, 10, "an agent at rest")
