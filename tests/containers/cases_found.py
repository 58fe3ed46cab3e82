"""Network namespaces that the agent finds by itself: programs that do not see its socket file come in by its name."""

import pathlib
import signal
import subprocess
import sys
import time

from cases_docker import HOME, LIBRARY, Docker, Run
from cases_podman import REDIS, over_lanes
from engine import needs
from pods import SOCKET, Pods
from world import BEELINE, case, note, until

NAME = "beeline/1/agent"
# A program that sees no file of the agent's.
UNSEEN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/beeline-agent && exec "$@"', "sh"]

# Takes the agent's name, as root without any power or as another user, and answers as the agent would: with a page on which it runs, and
# with an end of its own for a lane. Says what it is told of that lane.
FALSE = """
import fcntl, mmap, os, socket, struct, sys, threading, time
PAGE, QUERY, CONFIRM, LIKELY, DONE, THE_PAGE = 6, 1, 2, 1, 9, 11
memory = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(memory, 4096)
page = mmap.mmap(memory, 4096)
fcntl.fcntl(memory, 1033, 1 | 2 | 4 | 16)
os.setresuid(*[int(sys.argv[2])] * 3)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0" + sys.argv[1])
listener.listen(50)

def hear(carrier):
    while message := carrier.recv(100):
        answer = lambda kind: struct.pack("=IHBB", 0x424C6167, 4, kind, 0)
        if message[6] == PAGE:
            page[:8] = struct.pack("=Q", time.monotonic_ns())
            socket.send_fds(carrier, [answer(THE_PAGE)], [memory])
        elif message[6] == QUERY:
            ours, theirs = socket.socketpair()
            socket.send_fds(carrier, [answer(LIKELY)], [theirs.fileno()])
            theirs.close()
            ours.settimeout(5)
            hello = ours.recv(4096)
            print("HELLO" if hello else "nothing", file=sys.stderr, flush=True)
        elif message[6] == CONFIRM:
            carrier.send(answer(DONE))

def let_in():
    while True:
        threading.Thread(target=hear, args=(listener.accept()[0],), daemon=True).start()

print("{}", flush=True)
let_in()
"""
# Connects once, and again whenever it is told to, every tenth of a second for so many times; each connection is served.
CONNECTS = """
import socket, sys, time
def connect():
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
        sock.sendall(b"echo\\n")
        for _ in range(5):
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
times = 1
while times:
    for _ in range(times):
        connect()
        time.sleep(0.1)
    print("connected", flush=True)
    times = int(sys.stdin.readline() or 0)
"""
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


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
    # The kernel itself may take some time for it, as it takes one at a time.
    until(ends, 40, "the end of the namespace")
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
    """Root without power over the host, or another user, takes the agent's name before the agent and answers in its place: programs are on
    TCP, at once, every byte is right, and nobody is told of a lane."""
    pods = Pods(agent=False)
    a, b = pods.pair()
    for user in (0, 65533):
        false = [pod.run(sys.executable, "-c", FALSE, NAME, str(user), beeline=False, prefix=POWERLESS if user == 0 else ()) for pod in (a, b)]
        for agent in false:
            agent.facts()
        pods.start_agent("all = true")
        server, port = b.serve(prefix=UNSEEN)
        began = time.monotonic()
        client = a.app("duplex", b.address, port, 1_000_000, 1_000_000, 4, prefix=UNSEEN)
        client.finish()
        assert time.monotonic() - began < 5
        assert pods.lanes(server) == 0 and not any("HELLO" in open(agent.log).read() for agent in false)
        until(lambda: "no program is served in the network namespace" in pods.log.read_text(), 5, "the agent's complaint")
        for agent in false:
            agent.kill()
        found(a, b)
        pods.met(a, b.address, port, prefix=UNSEEN)[0].say("end")
        pods.stop_agent(signal.SIGTERM)
        pods.log.write_text("")
    pods.start_agent()


@case()
def strangers_do_not_hide_namespaces():
    """A user with more namespaces than the agent enters, a root who has used up what the kernel has to tell of names, and a thousand
    pages that nobody takes: a new namespace is found, and root's programs can send descriptors."""
    pods = Pods()
    many = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
os.setuid(65533)
for _ in range(1100):
    if os.fork() == 0:
        libc.unshare(0x10000000 | 0x40000000)
        time.sleep(1000)
print("{}", flush=True)
time.sleep(1000)
"""
    greedy = """
import ctypes, time
while ctypes.CDLL(None).inotify_init() >= 0:
    pass
print("{}", flush=True)
time.sleep(1000)
"""
    takes_none = """
import socket, struct, sys, time
question = struct.pack("=IHBBII", 0x424C6167, 4, 6, 0, 0, 0) + bytes(48)
carriers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1500)]
for carrier in carriers:
    carrier.connect(sys.argv[1])
    carrier.send(question)
    # The agent closes its end, and what it has sent lies in this one.
    carrier.shutdown(socket.SHUT_WR)
print("{}", flush=True)
time.sleep(1000)
"""
    [a] = pods.switched(1)
    found(a)
    pods.stop_agent(signal.SIGTERM)
    strangers = [a.run(sys.executable, "-c", program, str(SOCKET), beeline=False, prefix=["prlimit", "--nofile=4096"])
                 for program in (many, greedy)]
    for stranger in strangers:
        stranger.facts()
    pods.start_agent()
    found(a)
    late = pods.pod("late", "10.97.0.1")
    until(lambda: is_found(late), 15, "the agent in a new namespace")
    a.run(sys.executable, "-c", takes_none, str(SOCKET), beeline=False).facts()
    sends = "import socket; one, two = socket.socketpair(); socket.send_fds(one, [b'x'], [0]); print('{}', flush=True)"
    a.run(sys.executable, "-c", sends, beeline=False, prefix=["prlimit", "--nofile=1024", *POWERLESS]).facts()


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


@case()
def one_late_answer_is_no_reason_to_ask_no_more():
    """A program that does not see the agent's file, and has waited in vain for its proof once, has lanes again a moment later."""
    pods = Pods()
    a, b = pods.pair()
    found(a, b)
    server, port = b.serve(prefix=UNSEEN)
    pods.met(a, b.address, port, prefix=UNSEEN)[0].kill()
    client = a.run(sys.executable, "-c", CONNECTS, b.address, port, prefix=UNSEEN, options=["bridge_short_lived=on"])
    assert client.line() == "connected"
    pods.hold_agent()
    client.say("1")
    assert client.line() == "connected"
    pods.agent.send_signal(signal.SIGCONT)
    reasons, before = pods.reasons(client), pods.lanes(client)
    assert reasons.get("agent_silent"), reasons
    client.say("10")
    assert client.line() == "connected"
    # They are over before two seconds are.
    assert pods.lanes(client) > before, pods.reasons(client)
    client.kill()
