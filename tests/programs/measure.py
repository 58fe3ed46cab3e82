"""One round of a program over one transport: its servers are started, looked at, measured, counted and stopped."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from program import ROOT

BEELINE = os.environ.get("BEELINE", str(ROOT / "target/release/beeline"))
# Which CPUs servers and client may use, and whether each has a busy loop beside them.
PLACEMENTS = {"free": "all CPUs, chosen by the scheduler", "one": "servers and client on one CPU",
              "busy": "all CPUs, a busy loop on each", "one-busy": "servers and client on one CPU, a busy loop on it"}
# What a run measures if it is not told: all of them would take an hour.
USUAL = ("free", "one", "busy")
PATIENCE = 45
# How long a server may take to end before it is killed.
LAST_WORDS = 5


class Failed(Exception):
    """A program did not do what was expected of it."""


def command(words, beeline, cpu):
    """`words` as a user would run them in a placement."""
    pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
    return pinned + ([BEELINE, "run", "--quiet", "--"] if beeline else []) + words


class Running:
    """Servers of a program, each in a process group of its own; stopped at the end."""

    def __init__(self):
        self.children = []

    def start(self, words, directory, **environment):
        log = open(directory / f"{len(self.children)}.log", "wb")
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=directory,
                                 env={**os.environ, **environment}, start_new_session=True)
        log.close()
        self.children.append((child, log.name))
        return child

    def await_port(self, port):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for child, log in self.children:
                if child.poll() not in (None, 0):
                    raise Failed(f"{child.args[0]} ended with {child.returncode}: {last_line(log)}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.02)
        raise Failed(f"nobody listens on port {port} after {PATIENCE} s")

    def stop(self):
        for child, _ in reversed(self.children):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LAST_WORDS)
                    break
            # Workers that outlive their master.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def last_line(log):
    lines = pathlib.Path(log).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def free_ports(count):
    """Ports that nobody listens on; below those that the kernel gives to clients."""
    ports, port = [], 20000 + os.getpid() % 5000
    while len(ports) < count:
        port += 1
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


def counted(running):
    """What `beeline stat` counts of the servers' processes: the sum of each counter, and how often which reason kept TCP."""
    groups = {child.pid for child, _ in running.children}
    told = subprocess.run([BEELINE, "stat", "--json"], capture_output=True, text=True, check=False)
    counters, reasons = {}, {}
    with contextlib.suppress(ValueError):
        for process in json.loads(told.stdout)["processes"]:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process["pid"]) in groups:
                    add(counters, process["counters"])
                    for reason in process["reasons"]:
                        add(reasons, {f"{reason['name']}, {reason.get('role') or 'both'}": reason["count"]})
    return {"counters": counters, "reasons": reasons}


def add(sums, more):
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


def finish(words, directory, environment):
    """Runs a client to its end; what it printed."""
    name = " ".join(words[:3])
    try:
        told = subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=PATIENCE * 2,
                              env={**os.environ, **environment}, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end within {PATIENCE * 2} s") from None
    if told.returncode != 0:
        said = told.stdout.strip().splitlines()
        raise Failed(f"{name} ended with {told.returncode}: {said[-1] if said else 'it said nothing'}")
    return told.stdout.replace("\r", "\n")


def figure(program, told):
    """The figure in what a client printed, if all that it printed is as it is to be."""
    wrong = [f"no {text!r}" for text in program.expects if not re.search(text, told, re.S)]
    wrong += [f"{text!r}" for text in program.forbids if re.search(text, told)]
    if wrong:
        raise Failed(f"the client's output has {', '.join(wrong)}")
    found = program.figure.findall(told)
    if not found or float(found[-1]) == 0:
        raise Failed(f"the client printed no figure: {(told.strip().splitlines() or ['nothing at all'])[-1]}")
    return program.scale(float(found[-1]))


def measure(program, placement, beeline):
    """The program's figure, and what was counted of its servers."""
    cpu = min(os.sched_getaffinity(0)) if placement.startswith("one") else None
    running = Running()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="beeline-programs-"))
    os.chmod(directory, 0o755)

    def client(words):
        return finish(command(words, beeline, cpu), directory, program.environment(directory))

    try:
        ports = free_ports(program.ports)
        for words, environment in program.servers(directory, *ports):
            running.start(command(words, beeline, cpu), directory, **environment)
        for port in ports:
            running.await_port(port)
        try:
            program.prepare(directory, ports[-1])
        except subprocess.CalledProcessError as error:
            raise Failed(error) from None
        if words := program.check(ports[-1]):
            client(words)
        client(program.client(ports[-1], program.warm_seconds))
        reached = figure(program, client(program.client(ports[-1], 1.5)))
        how = counted(running) if beeline else None
        # That a program's connections are left to TCP has a reason; where there is none, the library had no part in it.
        if how and not how["counters"].get("connections_accelerated_server") and not how["reasons"]:
            raise Failed("no connection of the servers went over a lane, and there is no reason")
        return reached, how
    finally:
        running.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def neighbours(placement):
    """The busy loops of a placement."""
    loops = []
    try:
        if placement.endswith("busy"):
            for cpu in sorted(os.sched_getaffinity(0))[:1 if placement.startswith("one") else None]:
                loops.append(subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


