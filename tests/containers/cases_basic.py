"""Two namespaces that may meet: bytes, endings, addresses, programs."""

import json
import os
import pathlib
import shutil
import signal
import sys
import time

from pods import Pods
from world import BEELINE, Skip, case, note, shell, until


@case()
def meets_over_veth():
    """Two namespaces joined by veth talk over a lane, with TCP's addresses at both ends."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    client, facts = pods.met(a, b.address, port)
    assert facts["peer"] == [b.address, port] == facts["theirs"][0], facts
    assert facts["mine"] == facts["theirs"][1] and facts["mine"][0] == a.address and facts["ephemeral"], facts
    assert pods.lanes(server) == 1 and pods.reasons(client) == {}
    client.say("end")
    client.finish()


@case()
def a_port_of_its_own():
    """A client that has bound its socket to an address and a port has a lane, and these."""
    pods = Pods()
    a, b = pods.pair()
    a.sh("ip", "addr", "add", "10.99.0.7/24", "dev", "eth0")
    server, port = b.serve()
    ports = iter(range(7100, 7200))
    client, facts = pods.met(a, b.address, port, "10.99.0.7", lambda: next(ports))
    assert facts["mine"][0] == "10.99.0.7" and 7100 <= facts["mine"][1] < 7200 and facts["mine"] == facts["theirs"][1], facts
    assert pods.lanes(server) == 1, pods.reasons(server)
    client.say("end")
    client.finish()


@case()
def every_byte_is_right():
    """Streams in both directions, on eight connections at once, over veth and over a bridge."""
    pods = Pods()
    a, b = pods.pair()
    p0, p1 = pods.switched(2)
    for one, two in ((a, b), (p1, p0)):
        server, port = two.serve("0.0.0.0")
        client = one.app("duplex", two.address, port, 30_000_000, 20_000_000, 8)
        facts = client.facts()
        note(f"{facts['megabytes_per_second']:.0f} MB/s both ways together")
        client.finish()
        # A server of Python's threads may be slow to accept; then TCP has the connection.
        assert pods.lanes(server) >= 2, pods.reasons(server)


@case()
def ends_as_tcp_does():
    """Half closes, resets, urgent bytes, servers that send first or leave, clients that do not block."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    assert a.app("first", b.address, port, 3_000_000).facts()["answer"]
    for kind in ("poll", "epoll"):
        assert a.app("polled", b.address, port, kind).facts()["ok"]
    a.app("pipelined", b.address, port, 20_000, 40).finish()
    a.app("urgent", b.address, port, 1).finish()
    plain = a.app("leave", b.address, port, beeline=False).finish()
    assert a.app("leave", b.address, port).finish() == plain
    plain = a.app("linger", b.address, port, beeline=False).finish()
    assert a.app("linger", b.address, port).finish() == plain
    assert pods.lanes(server) >= 6, pods.reasons(server)


@case()
def other_programs_take_over():
    """A server that hands its connection to another program, by its number or as standard input and output."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    for how in ("number", "stdio"):
        for beeline in (False, True):
            assert a.app("handed", b.address, port, how, 2_000_000, beeline=beeline).facts()["ended"]
    assert pods.lanes(server) >= 2, pods.reasons(server)


@case()
def over_ipv6():
    """The same over IPv6, and an IPv4 client at a listener of both."""
    pods = Pods()
    a, b = pods.pair()
    for pod, last in ((a, 1), (b, 2)):
        pod.sh("ip", "addr", "add", f"fd99::{last}/64", "dev", "eth0", "nodad")
    b.address = "fd99::2"
    server = b.app("serve6")
    port = int(server.line())
    for address in ("fd99::2", "10.99.0.2"):
        client = a.app("duplex", address, port, 1_000_000, 1_000_000)
        client.finish()
    assert pods.lanes(server) == 2, pods.reasons(server)


@case()
def a_death_is_seen():
    """A process that is killed ends its connections for the other one, with what it had written."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    client = a.app("wait", b.address, port)
    client.facts()
    until(lambda: pods.lanes(server) == 1)
    server.kill()
    assert client.facts()["end"] == "eof"
    client.finish()
    server, port = b.serve()
    victim = a.app("pour", b.address, port)
    victim.facts()
    time.sleep(0.2)
    victim.kill()
    assert a.app("duplex", b.address, port, 1000, 1000).facts()


@case()
def redis():
    """Redis in one namespace, its benchmark in another: every mode over lanes."""
    if not shutil.which("redis-server"):
        raise Skip("there is no `redis-server`")
    pods = Pods()
    p0, p1 = pods.switched(2)
    server = p0.run("redis-server", "--port", 6379, "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0")
    until(lambda: "Ready" in server.line(), 10, "Redis")
    for how in (("-c", 1), ("-c", 50), ("-c", 50, "-P", 16)):
        client = p1.run("redis-benchmark", "-h", p0.address, "-n", 20000, "-t", "get,set", "-q", *how)
        client.finish()
    reasons = pods.reasons(server)
    assert pods.lanes(server) > 100, (pods.lanes(server), reasons)
    note(f"{pods.lanes(server)} lanes, {reasons}")


@case()
def in_containers_of_their_own():
    """Programs with their own user, pid, mount and IPC namespaces, and their own /dev/shm, meet through the mounted socket."""
    pods = Pods()
    a, b = pods.pair()
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    server, port = b.serve(prefix=apart)
    client = a.app("duplex", b.address, port, 5_000_000, 5_000_000, 4, prefix=apart)
    client.finish()
    # Statistics are in files that nobody sees from outside; a lane that is mapped by two processes is seen.
    client = a.app("names", b.address, port, prefix=apart)
    client.facts()
    assert len(lanes_mapped()) == 1 and list(lanes_mapped().values()) == [2], lanes_mapped()
    client.say("end")
    client.finish()


@case()
def seen_from_the_host():
    """`beeline stat` on the host sees into containers: their processes, by network namespace, and who has which end of a lane."""
    pods = Pods()
    a, b = pods.pair()
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    # One of them with files of its own, the other with the host's.
    for prefix in (apart, ()):
        server, port = b.serve(prefix=apart)
        client = a.app("names", b.address, port, prefix=prefix)
        client.facts()
        found = {process["network_namespace"]: process
                 for process in json.loads(shell(BEELINE, "stat", "--json"))["processes"]
                 if process["connections"]}
        assert found.keys() == {"a", "b"}, found
        assert found["b"]["pid_inside"] and found["b"]["other_pid_namespace"], found["b"]
        for one, other in (("a", "b"), ("b", "a")):
            peer = found[one]["connections"][0]["peer"]
            wanted = {"pid": found[other]["pid"], "program": found[other]["program"], "network_namespace": other}
            assert peer == wanted, (wanted, [process["connections"] for process in found.values()])
            assert found[one]["connections"][0]["path"] == "agent", found[one]
            # By its number here, in words.
            told = shell(BEELINE, "stat", str(found[one]["pid"]))
            assert f"{wanted['pid']} {wanted['program']} in {other}" in told, told
            assert pathlib.Path(f"/proc/{found[one]['pid']}/comm").exists()
        drawn = shell(BEELINE, "topo")
        assert "lanes to b" in drawn and "lanes to a" in drawn, drawn
        # Who lies about himself, or has a file that only looks like one, is left out.
        client.say("end")
        client.finish()
        server.kill()
        time.sleep(0.1)
    for content in (b"", b"x" * 5000, (b"BEELSTAT" + b"\xff" * 8000)):
        fake = a.run(sys.executable, "-c", FAKE, content.hex(), prefix=apart, beeline=False)
        fake.line()
        known = json.loads(shell(BEELINE, "stat", "--json"))["processes"]
        assert all(process["network_namespace"] != "a" for process in known), known
        fake.kill()


# Maps a file that has the name and the place of statistics.
FAKE = """
import mmap, os, sys, time
os.mkdir("/dev/shm/beeline-0", 0o700)
name = f"/dev/shm/beeline-0/{os.getpid()}.1"
open(name, "wb").write(bytes.fromhex(sys.argv[1]).ljust(1, b"x"))
kept = mmap.mmap(os.open(name, os.O_RDWR), 0)
print("on", flush=True)
time.sleep(60)
"""


def lanes_mapped():
    """The lanes that processes have mapped, by inode, and how many processes each."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            maps = open(f"/proc/{entry}/maps").read() if entry.isdigit() else ""
        except OSError:
            continue
        for inode in {line.split()[4] for line in maps.splitlines() if "memfd:beeline-lane" in line}:
            found[inode] = found.get(inode, 0) + 1
    return found


@case()
def nothing_is_left_behind():
    """After thousands of connections the agent has the descriptors that it began with, and little memory."""
    # The agent has the descriptors that it was asked for, and none that it has found a use for itself.
    pods = Pods("all = true\nfind = false")
    a, b = pods.pair()
    before = pods.agent_descriptors()
    server, port = b.serve()
    client = a.app("brief", b.address, port, 500, options=("bridge_short_lived=on",))
    client.facts()
    client.say("on")
    client.facts()
    client.say("end")
    client.finish()
    assert pods.lanes(server) >= 900, (pods.lanes(server), pods.reasons(server))
    until(lambda: pods.agent_descriptors() == before, 5, "the closing of all descriptors")
    resident = int(open(f"/proc/{pods.agent.pid}/statm").read().split()[1]) * 4
    assert resident < 50_000, f"{resident} KiB"
    note(f"{resident} KiB resident")


@case()
def short_lived_ones_go_by_tcp():
    """Where connections say a word each, the next ones are TCP's; one that says more brings lanes back."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    client = a.app("brief", b.address, port, 200)
    client.facts()
    assert pods.reasons(client).get("agent_short_lived", 0) > 150, pods.reasons(client)
    client.say("on")
    client.facts()
    client.say("end")
    client.finish()


@case()
def a_slow_server_holds_its_client_up_once():
    """A server that does not accept leaves its client to TCP, with what it wrote; the next clients are not held up."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    server.kill(signal.SIGSTOP)
    client = a.app("wait", b.address, port)
    client.facts()
    until(lambda: pods.reasons(client).get("agent_not_taken"), 5, "the way to TCP")
    server.kill(signal.SIGCONT)
    client.kill()


@case()
def many_at_once():
    """Clients that connect as fast as they can, one after the other and sixteen at once."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    # A server of Python's threads that takes longer than 80 ms leaves the next ones to TCP for a while.
    for _ in range(6):
        client = a.app("many", b.address, port, 200)
        client.facts()
        client.say("again")
        client.facts()
        after_first = pods.lanes(server)
        note(f"{after_first} lanes, {pods.reasons(client)}")
        client.say("end")
        client.finish()
        if after_first >= 50:
            break
        time.sleep(4)
    assert after_first >= 50
    time.sleep(2.2)
    client = a.app("swarm", b.address, port, 16)
    client.facts()
    assert pods.lanes(server) >= after_first + 8, pods.reasons(client)
    client.say("end")
    client.finish()
