"""Many namespaces, some of which come and go."""

import os
import pathlib
import shutil
import signal
import time

from pods import Pods
from world import Skip, case, note, shell, until

COUNT = int(os.environ.get("PODS", 16))


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@case(120 + 2 * COUNT)
def many_that_come_and_go():
    """Namespaces on one switch that all talk to several others, while more of them are made, talk, and vanish (PODS=200 for more)."""
    pods = Pods()
    before = pods.agent_descriptors()
    world = pods.switched(COUNT + 4)
    staying, passing = world[:COUNT], world[COUNT:]
    served = [(pod, *pod.serve()) for pod in staying]
    victims = []
    for index, pod in enumerate(passing):
        server, port = pod.serve()
        # Into it and out of it.
        victims += [server, pod.app("pour", served[index][0].address, served[index][2]),
                    served[-1 - index][0].app("pour", pod.address, port)]
    for victim in victims[1::3] + victims[2::3]:
        victim.facts()
    clients = []
    for shift in (1, 3, 7):
        for index, (pod, _, _) in enumerate(served):
            other, _, port = served[(index + shift) % COUNT]
            clients.append(pod.app("duplex", other.address, port, 200_000, 100_000, 3))
        if passing:
            gone = passing.pop()
            for victim in victims[-3:]:
                victim.kill()
            del victims[-3:]
            shell("ip", "netns", "del", gone.name)
        for client in clients:
            client.finish()
        clients.clear()
    lanes = sum(pods.lanes(server) for _, server, _ in served)
    note(f"{lanes} lanes of {COUNT * 9} connections and more")
    # Python's threads may be slow to accept where many start at once; then TCP has the connection.
    assert lanes >= COUNT * 3, [pods.reasons(server) for _, server, _ in served]
    for victim in victims:
        victim.kill()
    for _, server, _ in served:
        server.kill()
    until(lambda: pods.agent_descriptors() <= before, 60, "the closing of all descriptors")
    resident = int(open(f"/proc/{pods.agent.pid}/statm").read().split()[1]) * 4
    began = ticks(pods.agent.pid)
    time.sleep(3)
    idle = ticks(pods.agent.pid) - began
    note(f"agent: {resident} KiB, {idle} ticks in three seconds of rest")
    assert resident < 50_000 and idle <= 3


@case()
def without_an_agent_nothing_is_asked():
    """A host without an agent: a program looks for its page once a second at most, and asks nobody."""
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
    asked = [line for line in lines if "beeline-agent" in line]
    connects = [line for line in lines if " connect(" in line and f"htons({port})" in line]
    note(f"{len(asked)} looks, {len(connects)} connections, {len(lines)} system calls in {passed:.1f} s")
    assert len(connects) >= 300 and 1 <= len(asked) <= passed + 2, asked[:10]
    assert all("openat" in line and "ENOENT" in line for line in asked), asked
    assert pods.reasons(server).keys() <= {"came_over_tcp"}


@case()
def a_stopped_agent_is_left_alone():
    """An agent that has not shown itself for some seconds is none, also for programs that start only then."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve()
    a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) == 1, pods.reasons(server)
    pods.agent.send_signal(signal.SIGSTOP)
    time.sleep(5)
    client = a.app("names", b.address, port)
    client.facts()
    assert set(pods.reasons(client)) == {"not_local"}, pods.reasons(client)
    client.say("end")
    client.finish()
    pods.agent.send_signal(signal.SIGCONT)
    # It shows itself within a second, and is looked for once a second.
    time.sleep(2.5)
    for _ in range(2):
        a.app("duplex", b.address, port, 1000, 1000).finish()
    assert pods.lanes(server) >= 2, pods.reasons(server)
