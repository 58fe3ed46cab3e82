"""Many namespaces, some of which come and go."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

from cases_basic import lanes_mapped
from pods import Pods
from world import Skip, case, note, shell, until

COUNT = int(os.environ.get("PODS", 16))


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# Connections of each namespace to others: the next ones, counted from it, twice each.
NEIGHBOURS = (1, 2, 3, 5, 7)
# More namespaces, which come and go meanwhile.
PASSING = 4


@case(120 + 3 * COUNT)
def many_that_come_and_go():
    """Namespaces on one switch with ten connections each, all at once, while others are made, talk, and vanish (--pods 200 for 2,000)."""
    pods = Pods()
    before = pods.agent_descriptors()
    world = pods.switched(COUNT + PASSING)
    staying, passing = world[:COUNT], world[COUNT:]
    introduce(staying)
    # All are started before any is asked for its port.
    served = [(pod, pod.app("serve", "any", pod.address)) for pod in staying]
    places = [f"{pod.address}:{server.line()}" for pod, server in served]
    clients = []
    for index, pod in enumerate(staying):
        others = [places[(index + step) % COUNT] for step in NEIGHBOURS for _ in range(2)]
        clients.append(pod.app("among", 200_000, 100_000, *others))
        # Some at a time, or all of them wait for CPUs, and nobody's handshake is over in time for a lane.
        if index % 8 == 7:
            clients[-8].facts()
    for index, client in enumerate(clients):
        if index % 8 != 0 or index + 7 >= COUNT:
            client.facts()
    open_lanes = sum(pods.all_lanes(server) for _, server in served)
    note(f"{open_lanes} lanes of {COUNT * 2 * len(NEIGHBOURS)} connections that are open at once")
    coming = Passing(pods, passing, served, places)
    for turn, client in enumerate(clients):
        client.say("go")
        # The new ones begin and end all along.
        if turn * PASSING % COUNT < PASSING:
            coming.one_more()
    for client in clients:
        client.facts()
        client.finish()
    coming.end()
    # Python's threads may be slow to accept where many start at once; then TCP has the connection.
    assert open_lanes >= COUNT * 3, [pods.reasons(server) for _, server in served[:20]]
    for _, server in served:
        server.kill()
    # And one for each namespace that it has found: those of pods and switch, and its own with the process it was found by.
    until(lambda: pods.agent_descriptors() <= before + COUNT + 3, 60, "the closing of all descriptors")
    assert not lanes_mapped(), lanes_mapped()
    resident = int(open(f"/proc/{pods.agent.pid}/statm").read().split()[1]) * 4
    began = ticks(pods.agent.pid)
    time.sleep(5)
    idle = ticks(pods.agent.pid) - began
    note(f"agent: {resident} KiB, {idle} ticks of 10 ms in five seconds of rest")
    assert resident < 50_000 and idle <= 5


def introduce(pods):
    """Tells each namespace its neighbours' link addresses: all namespaces of a host share one table of those that are found out, of 1024."""
    link = lambda index: f"02:00:00:00:{index // 256:02x}:{index % 256:02x}"
    for index, pod in enumerate(pods):
        others = {(index + sign * step) % len(pods) for step in NEIGHBOURS for sign in (1, -1)} - {index}
        lines = [f"link set eth0 address {link(index)}"]
        lines += [f"neigh replace {pods[other].address} lladdr {link(other)} dev eth0 nud permanent" for other in others]
        done = subprocess.run(["ip", "-n", pod.name, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class Passing:
    """Namespaces that come, talk with those that stay, and vanish with their programs in the middle of it."""

    def __init__(self, pods, passing, served, places):
        self.pods, self.passing, self.served, self.places = pods, passing, served, places
        self.there = []

    def one_more(self):
        if self.there and len(self.there) > 1:
            self.vanish()
        if self.passing:
            pod = self.passing.pop()
            server, port = pod.serve()
            index = len(self.passing)
            address, its = self.places[index].rsplit(":", 1)
            # Into it and out of it.
            pouring = [pod.app("pour", address, its), self.served[-1 - index][0].app("pour", pod.address, port)]
            for program in pouring:
                program.facts()
            self.there.append((pod, [server, *pouring]))

    def vanish(self):
        pod, programs = self.there.pop(0)
        for program in programs:
            program.kill()
        shell("ip", "netns", "del", pod.name)

    def end(self):
        while self.there:
            self.vanish()


@case()
def without_an_agent_nothing_is_asked():
    """A host without an agent: a program looks for it once a second at most, at its file and by its name, and asks nobody."""
    if not shutil.which("strace"):
        raise Skip("there is no `strace`")
    pods = Pods(agent=False)
    a, b = pods.pair()
    server, port = b.serve()
    trace = pods.directory / "trace"
    began = time.monotonic()
    client = a.app("brief", b.address, port, 300, prefix=["strace", "-f", "-o", str(trace)])
    client.facts()
    client.say("end")
    client.finish()
    passed = time.monotonic() - began
    lines = trace.read_text().splitlines()
    asked = [line for line in lines if "beeline-agent" in line or "beeline/1/agent" in line]
    connects = [line for line in lines if " connect(" in line and f"htons({port})" in line]
    note(f"{len(asked)} looks, {len(connects)} connections, {len(lines)} system calls in {passed:.1f} s")
    assert len(connects) >= 300 and 2 <= len(asked) <= 2 * (passed + 2), asked[:10]
    assert all(" connect(" in line and ("ENOENT" in line or "ECONNREFUSED" in line) for line in asked), asked
    assert pods.reasons(server).keys() <= {"came_over_tcp"}


@case()
def a_stopped_agent_is_left_alone():
    """An agent that has not shown itself for some seconds is none, also for programs that start only then."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) == 1, pods.reasons(server)
    pods.hold_agent()
    time.sleep(5)
    client = a.app("names", b.address, port)
    client.facts()
    # Its socket file is there, so that is what it is.
    assert set(pods.reasons(client)) == {"agent_silent"}, pods.reasons(client)
    client.say("end")
    client.finish()
    pods.agent.send_signal(signal.SIGCONT)
    # It shows itself within a second, and is looked for once a second.
    time.sleep(2.5)
    for _ in range(2):
        a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= 2, pods.reasons(server)
