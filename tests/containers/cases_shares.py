"""What one program costs the agent, and others through it: answers that nobody reads, offers that nobody takes, names, ways of its own."""

import mmap
import os
import socket
import struct
import sys
import time

from cases_liars import DONE, HAIL, LIKELY, QUERY, REFUSED, Liar, announce, confirm, made_offer, question, within
from pods import Pods
from world import case, note, until

PAGE = 6
# Connects, and waits for bytes that do not come, for longer than anybody waits for its lane to be taken.
CLIENT = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sock.settimeout(1)
try:
    sock.recv(1)
except TimeoutError:
    pass
print("waited", flush=True)
sys.stdin.readline()
"""
# Of `crates/beeline-meeting/src/agent/page.rs`: when the agent ran last, its thread, and how many offers there are.
OFFERS_AT = 12


@case()
def unread_answers_are_few():
    """Who asks and reads no answer has one of them: what lies in its queue is the agent's memory."""
    pods = Pods()
    a, _ = pods.pair()
    for kind in (HAIL, PAGE):
        liar = Liar(a)
        asked = 0
        try:
            for asked in range(1, 401):
                liar.tell(question(kind))
        except OSError:
            pass
        answers = 0
        while True:
            try:
                code, fds = liar.answer()
            except ConnectionResetError:
                continue
            for fd in fds:
                os.close(fd)
            if code is None:
                break
            answers += 1
        note(f"{answers} answers to {asked} questions of kind {kind}")
        assert 1 <= answers <= 2, answers
    # Who reads them has more, as many as a program needs.
    liar = Liar(a)
    assert all(liar.ask(question(HAIL))[0] is not None for _ in range(4))


@case()
def who_is_in_no_group_is_told_nothing():
    """A program whose namespace has no address of a group gets neither a lane nor the page, and keeps no server waiting."""
    pods = Pods('groups = [ { addresses = ["10.99.0.0/24"] } ]')
    a, b = pods.pair()
    x, _ = pods.pair("x", "y", "10.97.0")
    there = (b.address, 7000)
    announce(b, there)
    code, fds = Liar(a).ask(question(QUERY, there))
    assert code == LIKELY and len(fds) == 1
    os.close(fds[0])
    assert len(Liar(a).ask(question(PAGE))[1]) == 1
    for outsider in (Liar(x), Liar(x, 65534), Liar(None, 65534)):
        assert outsider.ask(question(QUERY, there)) == (REFUSED, [])
    for outsider in (Liar(x), Liar(x, 65534), Liar(None, 65534)):
        assert outsider.ask(question(PAGE)) == (REFUSED, [])
    # One that comes to have an address of it is in it.
    x.sh("ip", "addr", "add", "10.99.0.7/32", "dev", "eth0")
    until(lambda: Liar(x).ask(question(PAGE))[0] != REFUSED, 10, "the page")


def offers_of(page):
    return struct.unpack_from("=I", page, OFFERS_AT)[0]


@case()
def an_offer_that_was_taken_back_leaves_no_mark():
    """A client that goes on over TCP, since nobody took its lane, does not let the server ask about each connection for half a minute."""
    pods = Pods()
    a, b = pods.pair()
    fds = Liar(a).ask(question(PAGE))[1]
    page = mmap.mmap(fds[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ)
    assert offers_of(page) == 0
    # It accepts without Beeline, and whoever has announced it is somebody else.
    listener = within(b, lambda: socket.create_server((b.address, 7000)))
    port = listener.getsockname()[1]
    announce(b, (b.address, port))
    client = a.run(sys.executable, "-c", CLIENT, b.address, port)
    assert client.line() == "waited"
    assert set(pods.reasons(client)) == {"agent_not_taken"}, pods.reasons(client)
    until(lambda: offers_of(page) == 0, 10, "the end of its offer")
    client.kill()
    listener.close()


@case()
def an_offer_that_was_taken_back_before_it_was_confirmed_leaves_no_mark():
    """A client that takes its lane back before it says that it is connected is seen to have done so when it says that."""
    pods = Pods()
    a, b = pods.pair()
    fds = Liar(a).ask(question(PAGE))[1]
    page = mmap.mmap(fds[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ)
    there = (b.address, 7000)
    listener = within(b, lambda: socket.create_server(there))
    announce(b, there)
    tcp, mine, liar = made_offer(a, there, confirms=None)
    # As `agent/farewell.rs` says it.
    mine.bind("")
    mine.close()
    time.sleep(0.2)
    assert offers_of(page) == 1
    assert confirm(liar, tcp) == DONE
    until(lambda: offers_of(page) == 0, 10, "the end of its offer")
    tcp.close()
    listener.close()


@case()
def names_of_lanes_are_where_nobody_takes_them():
    """The ends of lanes have names that can be guessed: none of them is in the network namespace that the agent was started in."""
    pods = Pods()
    a, b = pods.pair()
    announce(b, (b.address, 7000))
    names = lambda: [line.split()[-1] for line in open("/proc/net/unix") if "@beeline/1/door/" in line]
    before = names()
    liar = Liar(a)
    code, fds = liar.ask(question(QUERY, (b.address, 7000)))
    assert code == LIKELY
    mine = socket.socket(fileno=fds[0])
    assert mine.getpeername().startswith(b"\0beeline/1/door/"), mine.getpeername()
    assert names() == before, names()


@case(90)
def a_pod_behind_a_proxy_of_its_own():
    """A pod whose connections a proxy takes, as service meshes have it, is disappointed once: that others meet the server is no news."""
    pods = Pods()
    direct, meshed, b = pods.switched(3)
    server, port = b.serve()
    proxy = within(meshed, lambda: socket.create_server(("0.0.0.0", 15001)))
    meshed.nft("table ip n {\nchain out {\ntype nat hook output priority -100; policy accept;\n"
               f"tcp dport {port} redirect to :15001\n}}\n}}\n")
    said = []
    for _ in range(4):
        # Somebody else has met it just now.
        pods.met(direct, b.address, port)[0].kill()
        client = meshed.run(sys.executable, "-c", CLIENT, b.address, port)
        assert client.line() == "waited"
        said.append(set(pods.reasons(client)))
        client.kill()
    proxy.close()
    note(f"{said}")
    # The first one learns it. Where CPUs are short it may be that the handshake takes too long to learn anything.
    assert {"agent_unknown"} in said[1:], said
    assert sum("agent_not_taken" in reasons for reasons in said) <= 1, said
