"""Network namespaces that the agent finds by itself: programs that do not see its socket file come in by its name."""

import pathlib
import signal
import subprocess
import sys
import time

from cases_docker import HOME, LIBRARY, Docker, Run
from cases_podman import REDIS, over_lanes
from engine import needs
from pods import Pods
from world import BEELINE, case, note, until

NAME = "beeline/1/agent"
# A program that sees no file of the agent's.
UNSEEN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/beeline-agent && exec "$@"', "sh"]

# Takes the agent's name as another user, and never answers.
SQUAT = """
import os, socket, sys, time
os.setuid(65533)
squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
squatter.bind("\\0" + sys.argv[1])
squatter.listen(50)
print("{}", flush=True)
time.sleep(1000)
"""


def is_found(pod):
    return f"@{NAME}" in pod.sh("cat", "/proc/net/unix")


def found(*pods):
    for pod in pods:
        until(lambda: is_found(pod), 5, f"the agent in {pod.name}")


@case()
def unseen_files_are_no_hindrance():
    """Programs that do not see the agent's socket file have lanes with each other and with those that do; a killed agent is replaced,
    and none leaves a name behind."""
    pods = Pods()
    a, b = pods.pair()
    found(a, b)
    server, port = b.serve(prefix=UNSEEN)
    for prefix in (UNSEEN, ()):
        client, facts = pods.met(a, b.address, port, prefix=prefix)
        assert facts["peer"] == [b.address, port] and facts["mine"] == facts["theirs"][1], facts
        client.say("end")
        client.finish()
    a.app("duplex", b.address, port, 5_000_000, 5_000_000, 4, prefix=UNSEEN).finish()
    for _ in range(3):
        stands, _ = pods.met(a, b.address, port, prefix=UNSEEN)
        pods.stop_agent()
        assert not is_found(a) and not is_found(b)
        a.app("duplex", b.address, port, 100_000, 100_000, prefix=UNSEEN).finish()
        stands.say("end")
        stands.finish()
        pods.start_agent()
        found(a, b)
    pods.stop_agent(signal.SIGTERM)
    assert not is_found(a) and not is_found(b)
    pods.start_agent()


@case()
def new_namespaces_are_found_and_none_is_kept():
    """A namespace that comes while the agent runs is found, by its name or by its process; it ends when those do, with its devices."""
    pods = Pods()
    a, b = pods.pair()
    server, port = b.serve(prefix=UNSEEN)
    found(a, b)
    pods.met(a, b.address, port, prefix=UNSEEN)[0].say("end")
    nameless = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    try:
        there = pathlib.Path(f"/proc/{nameless.pid}/net/unix")
        until(lambda: f"@{NAME}" in there.read_text(), 5, "the agent in a namespace without a name")
        # The other end of a device's pair ends with the namespace.
        a.sh("ip", "link", "add", "spare", "type", "veth", "peer", "name", "its", "netns", str(nameless.pid))
    finally:
        nameless.kill()
        nameless.wait()
    ends = lambda: subprocess.run(a.inside(["ip", "link", "show", "spare"]), capture_output=True).returncode != 0
    began = time.monotonic()
    until(ends, 5, "the end of the namespace")
    note(f"gone after {(time.monotonic() - began) * 1000:.0f} ms")
    before = pods.agent_descriptors()
    for turn in range(20):
        subprocess.run(["ip", "netns", "add", f"brief{turn}"], check=True)
        subprocess.run(["ip", "netns", "del", f"brief{turn}"], check=True)
    until(lambda: pods.agent_descriptors() <= before, 5, "the agent's descriptors")


@case()
def only_the_administrators_namespaces_are_entered():
    """Not those of a user namespace, of which anybody may make as many as he likes; and none with `find = false`."""
    pods = Pods()
    [a] = pods.switched(1)
    found(a)
    own = subprocess.Popen(["unshare", "--user", "--map-root-user", "--net", "sleep", "1000"])
    try:
        time.sleep(3)
        assert f"@{NAME}" not in pathlib.Path(f"/proc/{own.pid}/net/unix").read_text()
        pods.stop_agent(signal.SIGTERM)
        pods.start_agent("all = true\nfind = false")
        time.sleep(3)
        assert not is_found(a)
    finally:
        own.kill()
        own.wait()


@case()
def a_name_that_another_has_taken_is_not_believed():
    """A user of the namespace who takes the agent's name before the agent: programs are on TCP, at once, and every byte is right."""
    pods = Pods(agent=False)
    a, b = pods.pair()
    squatters = [pod.run(sys.executable, "-c", SQUAT, NAME, beeline=False) for pod in (a, b)]
    for squatter in squatters:
        squatter.facts()
    pods.start_agent("all = true")
    server, port = b.serve(prefix=UNSEEN)
    began = time.monotonic()
    a.app("duplex", b.address, port, 1_000_000, 1_000_000, 4, prefix=UNSEEN).finish()
    assert time.monotonic() - began < 5
    assert pods.lanes(server) == 0
    until(lambda: "no program is served in the network namespace" in pods.log.read_text(), 5, "the agent's complaint")
    for squatter in squatters:
        squatter.kill()
    found(a, b)
    pods.met(a, b.address, port, prefix=UNSEEN)


@case(240)
def docker_without_a_mount():
    """Docker's containers that have command and library, and nothing of the agent."""
    [program] = needs("redis-server")
    python = str(pathlib.Path("/usr/bin/python3").resolve())
    mounts = ["-v", f"{BEELINE}:/opt/beeline/beeline:ro", "-v", f"{LIBRARY}:/opt/beeline/libbeeline.so:ro"]
    Pods("groups = [{ addresses = ['172.16.0.0/12'] }]")
    with Docker("found") as docker:
        image = docker.image("redis", program)
        clients = docker.image("python", python, trees=[f"/usr/lib/{pathlib.Path(python).name}"])
        docker("network", "create", "shop")
        server = Run(docker, "shop", "store", image, program, "--protected-mode", "no", "--save", "", mounts=mounts)
        server.says("Ready to accept connections")
        # Until the agent has found both namespaces, connections are TCP's.
        turns = iter(range(100))

        def values():
            client = Run(docker, "shop", f"values{next(turns)}", clients, python, "-c", "import time; time.sleep(3)\n" + REDIS,
                         "store", mounts=mounts)
            assert "keys are right" in client.finish()

        over_lanes(server, 1, values)
        assert not list(HOME.glob("data/**/run/beeline-agent"))
