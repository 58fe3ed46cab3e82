"""Filters, equal addresses, translation, and an agent that dies, is stopped, or false."""

import fcntl
import mmap
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from pods import SOCKET, Pods
from world import BEELINED, case, note, until

# Of `crates/beeline-wire/src/agent.rs`.
MAGIC, VERSION, QUERY, PAGE = 0x424C6167, 4, 1, 6
LIKELY, UNKNOWN, OTHER_VERSION, THE_PAGE = 1, 2, 6, 11
# F_ADD_SEALS; F_SEAL_SEAL, _SHRINK, _GROW, _FUTURE_WRITE.
ADD_SEALS, SEALS = 1033, 1 | 2 | 4 | 16


@case()
def equal_addresses_at_once():
    """Two isolated pairs with the same addresses and ports, at the same time: each client reaches its own server."""
    pods = Pods()
    first, second = pods.pair("a", "b"), pods.pair("c", "d")
    # The same port on both: the second is told which.
    servers = [pair[1].app("serve_at", pair[1].address, 7000) for pair in (first, second)]
    for server in servers:
        server.line()
    # One that is kept from its CPU for too long leaves the next ones to TCP for a while.
    for _ in range(6):
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
        note(f"{counts} lanes")
        if all(count >= 20 for count in counts):
            break
        time.sleep(4)
    assert all(count >= 20 for count in counts), (counts, why)
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
    before = pods.lanes(server)
    pods.met(a, b.address, port)
    assert pods.lanes(server) == before + 1, pods.reasons(server)


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


@case(90)
def a_rule_set_while_the_client_alone_sends():
    """A filter that comes later ends an upload, too: its sender hears of it from its own end."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    client = a.app("pour", b.address, port)
    client.facts()
    time.sleep(1)
    assert pods.lanes(client) == 1, pods.reasons(client)
    # In both directions: the server's end, which is given up first, cannot tell the client.
    b.nft(RULE % (port, "drop"))
    b.nft("table inet t {\nchain out {\ntype filter hook output priority 0; policy accept;\ntcp sport %d drop\n}\n}\n" % port)
    assert client.facts()["end"] in ("ECONNRESET", "ETIMEDOUT", "EPIPE")


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
    assert pods.lanes(server) == 0
    client, facts = pods.met(a, "10.96.0.1", 80)
    assert facts["peer"] == ["10.96.0.1", 80] and facts["theirs"] == [[b.address, port], facts["mine"]], facts
    client.say("end")
    client.finish()
    a.app("duplex", "10.96.0.1", 80, 3_000_000, 3_000_000, 4).finish()
    assert pods.lanes(server) >= 2, pods.reasons(server)


@case()
def masquerading_meets_too():
    """A client whose own address is translated (SNAT) has lanes, and each end sees the addresses that TCP has for it."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.sh("ip", "addr", "add", "10.99.0.77/24", "dev", "eth0")
    a.nft("table ip n {\nchain post {\ntype nat hook postrouting priority 100; policy accept;\n"
          f"ip daddr {b.address} snat to 10.99.0.77\n}}\n}}\n")
    client, facts = pods.met(a, b.address, port)
    assert facts["mine"][0] == a.address and facts["theirs"][1][0] == "10.99.0.77", facts
    client.say("end")
    client.finish()
    a.app("duplex", b.address, port, 300_000, 300_000, 2).finish()
    assert pods.lanes(server) >= 2, pods.reasons(server)


@case(300)
def agent_killed_during_transfers():
    """The agent is killed a hundred times while bytes flow and connections are made; none is lost, and lanes come back."""
    pods = Pods()
    p0, p1 = pods.switched(2)
    server, port = p0.serve()
    transfer = lambda: p1.app("duplex", p0.address, port, 1_000_000_000, 1_000_000_000, 2)
    stream, transfers = transfer(), 1
    maker = p1.app("makes", p0.address, port, 50)
    chance = random.Random(7)
    for _ in range(100):
        time.sleep(chance.random() * 0.3)
        pods.stop_agent(signal.SIGKILL)
        # Those that are made now go by TCP.
        time.sleep(chance.random() * 0.1)
        pods.start_agent()
        # How long one takes is the machine's affair: there is always one.
        if stream.process.poll() is not None:
            stream.finish()
            stream, transfers = transfer(), transfers + 1
    facts = maker.facts()
    note(f"{transfers} transfers; {facts['made']} connections, the longest took {facts['longest'] * 1000:.0f} ms; {pods.lanes(server)} lanes")
    assert facts["failures"] == [], facts["failures"]
    stream.finish(200)
    time.sleep(4.5)
    before = pods.lanes(server)
    for _ in range(8):
        p1.app("duplex", p0.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= before + 2, pods.reasons(server)


@case()
def agent_stopped():
    """An agent that does not answer holds a connection up for a moment, and the next ones not at all."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    pods.hold_agent()
    client = a.app("makes", b.address, port, 1.5)
    facts = client.facts()
    note(f"{facts['made']} connections, the longest took {facts['longest'] * 1000:.0f} ms")
    assert facts["failures"] == [] and facts["longest"] < 0.6, facts
    pods.agent.send_signal(signal.SIGCONT)


@case()
def one_agent_follows_another():
    """Two at once there are not; one that does not answer any more is followed by another, and one that is told to stop does."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    second = subprocess.run([BEELINED, "agent", "--config", str(pods.config)], capture_output=True, text=True, timeout=20)
    assert second.returncode != 0 and "another agent" in second.stderr, second
    first = pods.agent
    first.send_signal(signal.SIGSTOP)
    pods.start_agent()
    first.kill()
    first.wait()
    time.sleep(2.5)
    before = pods.lanes(server)
    for _ in range(6):
        a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= before + 2, pods.reasons(server)
    pods.stop_agent(signal.SIGTERM)
    assert pods.agent.returncode == 0 and not SOCKET.exists()
    pods.start_agent()


@case()
def a_close_is_seen_while_the_agent_is_stopped():
    """A stopped agent holds no connection: whoever closes is seen to have closed, on lanes, on TCP, and on the way to either."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("closes", b.address, port).facts()
    assert server.facts() == {"end": "eof", "bytes": 10_000}
    assert pods.lanes(server) == 1, pods.reasons(server)
    for attempt in range(6):
        if attempt % 3 == 0:
            pods.hold_agent()
        client = a.app("closes", b.address, port)
        client.facts()
        assert server.facts() == {"end": "eof", "bytes": 10_000}
        if attempt % 3 == 2:
            pods.agent.send_signal(signal.SIGCONT)
            time.sleep(1)


@case()
def a_false_agent_does_no_harm():
    """One that says no late, dies, is of another version, or sends what is no end of a lane: connections are TCP's, and right."""
    pods = Pods(agent=False)
    a, b = pods.pair()
    SOCKET.parent.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(SOCKET))
    listener.listen(50)
    memory = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 4096)
    page = mmap.mmap(memory, 4096)
    fcntl.fcntl(memory, ADD_SEALS, SEALS)

    def beat():
        page[:8] = struct.pack("=Q", time.monotonic_ns())

    queries = queue.Queue()

    def hear(carrier):
        """Gives the page to who asks for it, and keeps queries. Servers announce themselves, which is not answered."""
        while message := socket.recv_fds(carrier, 100, 4)[0]:
            if message[6] == PAGE:
                beat()
                socket.send_fds(carrier, [struct.pack("=IHBB", MAGIC, VERSION, THE_PAGE, 0)], [memory])
            elif message[6] == QUERY:
                return queries.put(carrier)

    def let_in():
        while True:
            threading.Thread(target=hear, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=let_in, daemon=True).start()
    server, port = b.serve()
    null = open("/dev/null", "rb")
    for late, says in ((0.0, None), (0.0, UNKNOWN), (0.4, UNKNOWN), (0.0, LIKELY), (0.4, LIKELY), (0.0, OTHER_VERSION)):
        client = a.app("duplex", b.address, port, 3_000_000, 3_000_000)
        with queries.get(timeout=20) as carrier:
            time.sleep(late)
            answer = struct.pack("=IHBB", MAGIC, VERSION + (says == OTHER_VERSION), says or 0, 0)
            try:
                if says is not None:
                    socket.send_fds(carrier, [answer], [null.fileno()] if says == LIKELY else [])
            except BrokenPipeError:
                assert late
        client.finish()
        assert pods.lanes(server) == 0
        time.sleep(1.1)


@case()
def a_strict_server_has_no_lanes():
    """`policy=strict` at the server keeps its clients on TCP, and nobody is told of it."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve(options=("policy=strict",))
    for _ in range(2):
        client = a.app("duplex", b.address, port, 100_000, 100_000, 2)
        client.finish()
    assert pods.lanes(server) == 0
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000, options=("policy=strict",)).finish()
    assert pods.lanes(server) == 0
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) == 1


@case()
def descriptors_run_short():
    """Clients and servers with ever so few descriptors: whatever is connected has every byte."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    good = 0
    for limit in range(7, 18):
        client = a.app("duplex", b.address, port, 200_000, 200_000, prefix=["prlimit", f"--nofile={limit}"])
        try:
            good += bool(client.facts())
            client.finish()
        except (AssertionError, ValueError):
            plain = a.app("duplex", b.address, port, 200_000, 200_000, beeline=False, prefix=["prlimit", f"--nofile={limit}"])
            try:
                plain.facts()
            except (AssertionError, ValueError):
                continue
            raise
    note(f"{good} of 11 connected, {pods.lanes(server)} lanes, {pods.reasons(server)}")
    for limit in range(9, 14):
        few, its = b.serve(prefix=["prlimit", f"--nofile={limit}"])
        a.app("duplex", b.address, its, 200_000, 200_000).finish()
        few.kill()


# Makes a connection and says so; when it is served, waits to be told to make ten more, each of which is served.
GOES_ON = """
import socket, sys, time
def connect(connected=lambda: None):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
        connected()
        sock.sendall(b"echo\\n")
        for _ in range(5):
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
connect(lambda: print("connected", flush=True))
print("served", flush=True)
sys.stdin.readline()
for _ in range(10):
    connect()
    time.sleep(0.05)
print("served", flush=True)
sys.stdin.readline()
"""


@case()
def one_lane_that_is_lost_is_no_reason_to_make_no_more():
    """A client whose lane is closed before its server has it, as the agent ends, goes on over TCP; its next connections need not."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    pods.met(a, b.address, port)[0].kill()
    server.kill(signal.SIGSTOP)
    client = a.run(sys.executable, "-c", GOES_ON, b.address, port, options=["bridge_short_lived=on"])
    assert client.line() == "connected"
    pods.stop_agent()
    until(lambda: pods.reasons(client).get("agent_not_taken"), 5, "the way to TCP")
    server.kill(signal.SIGCONT)
    assert client.line() == "served"
    pods.start_agent()
    client.say("on")
    assert client.line() == "served"
    note(f"{pods.lanes(client)} lanes, {pods.reasons(client)}")
    assert pods.reasons(client)["agent_not_taken"] < 5, pods.reasons(client)
    client.kill()
