"""Kubernetes: the example to the letter, a client in another pod, the Service's address, and an agent that is replaced."""

import json
import pathlib
import subprocess
import time

from cases_podman import REDIS, over_lanes, rates
from cluster import HOME, Cluster
from engine import LIBRARY, Contained, needs
from world import BEELINE, BEELINED, ROOT, case, note, shell, until

EXAMPLE = ROOT / "packaging/oci/kubernetes.yaml"
AGENT = ["-n", "beeline", "-l", "app=beeline-agent"]

# Connections that are made one after the other, send nothing for a while, and then are all in use until there is input. What it says at its
# end: how often it went round over all of them, and how long that took at the longest.
STANDING = """
import random, select, socket, sys, time
randomness, files, turns, longest = random.Random(5), [], 0, 0
def turn(number):
    value = randomness.randbytes(randomness.choice([1, 100, 5000]))
    files[number].write(b"*3\\r\\n$3\\r\\nSET\\r\\n$2\\r\\ns%d\\r\\n$%d\\r\\n%s\\r\\n*2\\r\\n$3\\r\\nGET\\r\\n$2\\r\\ns%d\\r\\n"
                        % (number, len(value), value, number))
    files[number].flush()
    assert files[number].readline() == b"+OK\\r\\n" and files[number].readline() == b"$%d\\r\\n" % len(value)
    assert files[number].read(len(value) + 2) == value + b"\\r\\n", number
for number in range(8):
    files.append(socket.create_connection((sys.argv[1], 6379)).makefile("rwb"))
    # Not among the keys that others count.
    files[number].write(b"SELECT 1\\r\\n")
    files[number].flush()
    assert files[number].readline() == b"+OK\\r\\n"
    turn(number)
print("standing", flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    began = time.monotonic()
    for number in range(8):
        turn(number)
    turns, longest = turns + 1, max(longest, time.monotonic() - began)
print(turns, longest)
"""


class Inside(Contained):
    """A pod that runs, by its name."""

    def __init__(self, cluster, name):
        self.engine, self.name = cluster, name

    @property
    def pid(self):
        """Of its container's first process, as the node sees it."""
        [status] = self.engine.told("pod", self.name)["status"]["containerStatuses"]
        tasks = shell(*self.engine.containerd("tasks", "ls")).splitlines()
        return next(int(task.split()[1]) for task in tasks if task.startswith(status["containerID"].removeprefix("containerd://")))

    def run(self, *command):
        return self.sh("/opt/beeline/beeline", "run", "--", *command)


class Standing:
    """A program in a pod that talks all the time over eight connections."""

    def __init__(self, pod, python, address):
        self.pod = pod
        words = pod.engine.command("exec", pod.name, "/opt/beeline/beeline", "run", "--", python, "-c", STANDING, address)
        words.insert(words.index("exec") + 1, "-i")
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "standing\n"

    def lanes(self):
        """How many of them are lanes from another namespace to redis-server, by what the node's `beeline stat` says; its own says the same."""
        assert self.process.poll() is None, "it has ended"
        known = json.loads(shell(BEELINE, "stat", "--json"))["processes"]
        ends = [one for process in known if process["program"].startswith("python") for one in process["connections"]]
        found = sum(one["path"] == "agent" and one["peer"]["program"].startswith("redis-ser") for one in ends)
        counters, _ = self.pod.counters()
        assert found == len(ends) == counters["connections_accelerated_client"], (ends, counters)
        return found

    def end(self):
        turns, longest = self.process.communicate("end\n", timeout=30)[0].split()
        assert self.process.returncode == 0
        return int(turns), float(longest)


def images(cluster):
    """Those that the example names, of this host's own programs, and one for clients. Returns its name and where its Python is."""
    of_beeline = [("/usr/bin/beeline", pathlib.Path(BEELINE).read_bytes()), ("/usr/lib/beeline/libbeeline.so", LIBRARY.read_bytes()),
                  ("/usr/bin/beelined", pathlib.Path(BEELINED).read_bytes())]
    [server, *clients] = needs("redis-server", "redis-benchmark")
    cluster.image("localhost/beeline:latest", BEELINED, "/usr/bin/cp", "/usr/bin/mv", files=of_beeline,
                  entry=["/usr/bin/beeline", "run", "--"])
    cluster.image("docker.io/library/redis:7-bookworm", server)
    python = pathlib.Path("/usr/bin/python3").resolve()
    cluster.image("localhost/clients:1", str(python), "/usr/bin/sleep", *clients, trees=[f"/usr/lib/{python.name}"])
    return "localhost/clients:1", str(python)


def client_of(cluster, image):
    """A pod with the same mounts and confinement as the example's, in which clients run."""
    applied = cluster.told("pod", "store")["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    pod = json.loads(applied)
    pod["metadata"] = {"name": "client", "labels": {"app": "client"}}
    [container] = pod["spec"]["containers"]
    container.update(name="client", image=image, command=["/usr/bin/sleep", "infinity"], ports=[])
    (HOME / "client.json").write_text(json.dumps(pod))
    cluster("apply", "-f", HOME / "client.json")
    cluster("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
    return Inside(cluster, "client")


def agent_of(cluster):
    """The agent's pod, when there is one and it runs."""
    cluster("-n", "beeline", "rollout", "status", "daemonset/beeline-agent", "--timeout=90s")
    [pod] = cluster.told("pods", *AGENT)["items"]
    return pod["metadata"]["name"]


def to_the_service(server, client, python, address):
    """Eight connections one after the other: lanes from the second on, by either end's account."""
    def eight():
        # Each sends at once, also the first, from which the agent learns.
        standing = Standing(client, python, address)
        note(f"{standing.lanes()} of 8 connections to the service's address have lanes, at the client by TCP {client.counters()[1]}")
        standing.end()

    over_lanes(server, 7, eight)


def replaced(cluster, server, client, python, address):
    """The agent's pod is deleted while there is traffic: who is connected does not notice, and who connects then has lanes again."""
    standing = Standing(client, python, address)
    before, old = standing.lanes(), agent_of(cluster)
    assert before, server.counters()
    cluster("delete", "pod", *AGENT, "--now")
    assert standing.lanes() == before
    new = agent_of(cluster)
    assert new != old
    assert standing.lanes() == before
    over_lanes(server, 1, lambda: client.run(python, "-c", REDIS, address))
    assert standing.lanes() == before
    turns, longest = standing.end()
    note(f"{before} lanes stood while {new} came for {old}: {8 * turns} values right, the longest round {longest * 1e3:.0f} ms")


@case(300)
def kubernetes_example():
    """The example for Kubernetes to the letter: lanes between pods, also by a service's address, and across a new agent's coming."""
    with Cluster() as cluster:
        image, python = images(cluster)
        began = time.monotonic()
        cluster("apply", "-f", EXAMPLE)
        agent_of(cluster)
        cluster("wait", "--for=condition=Ready", "pod/store", "--timeout=90s")
        note(f"{cluster.version()}: agent and store ran after {time.monotonic() - began:.1f} s")
        server, client = Inside(cluster, "store"), client_of(cluster, image)
        until(lambda: "Ready to accept connections" in cluster("logs", "store"), 30, "redis")
        server.is_confined()
        client.is_confined()
        address = cluster.told("pod", "store")["status"]["podIP"]

        def values():
            assert "keys are right" in client.run(python, "-c", REDIS, address)

        def twenty():
            said = client.run("redis-benchmark", "-h", address, "-c", "20", "-n", "20000", "-t", "set,get", "--dbnum", "1", "-q")
            note("; ".join(rates(said)))

        over_lanes(server, 1, values)
        over_lanes(server, 20, twenty)
        to_the_service(server, client, python, cluster.told("service", "store")["spec"]["clusterIP"])
        replaced(cluster, server, client, python, address)
