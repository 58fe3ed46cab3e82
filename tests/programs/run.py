#!/usr/bin/env python3
"""Real programs at their ordinary settings, over TCP and over Beeline: which are faster, and is any slower?

    tests/programs/run.py [NAME...] [--placement P] [--rounds N] [--json FILE] [--list]     BEELINE=path/to/beeline

A NAME is part of a program's name. Each program (programs.py) is measured in every placement: `free`, where the scheduler
chooses among all CPUs; `one`, where servers and client share one CPU; `busy`, free beside a busy loop on each CPU. Rounds
alternate between TCP and Beeline; servers are started anew for each, and warmed up by a short run of the client. The table
shows the medians of both, their ratio (above 1: Beeline is faster), the smallest and the largest ratio of a round, and how
many of the servers' connections went over lanes. Programs that are not installed are named, not measured.

Everything listens on 127.0.0.1 and is stopped at the end, also by Ctrl-C, which keeps what was measured until then.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from programs import PROGRAMS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BEELINE = os.environ.get("BEELINE", str(ROOT / "target/release/beeline"))
PLACEMENTS = {
    "free": "all CPUs, chosen by the scheduler",
    "one": "servers and client on one CPU",
    "busy": "all CPUs, a busy loop on each",
}
PATIENCE = 30


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
                    child.wait(5)
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


def carried(running):
    """Connections of the servers over lanes and over TCP, as `beeline stat` counts them."""
    groups = {child.pid for child, _ in running.children}
    told = subprocess.run([BEELINE, "stat", "--json"], capture_output=True, text=True, check=False)
    lanes = tcp = 0
    with contextlib.suppress(ValueError):
        for process in json.loads(told.stdout)["processes"]:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process["pid"]) in groups:
                    lanes += process["counters"]["connections_accelerated_server"]
                    tcp += process["counters"]["connections_fallen_back_server"]
    return lanes, tcp


def ask(words, program, directory, environment):
    """Runs a client; the figure that it prints."""
    try:
        told = subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=PATIENCE * 2,
                              env={**os.environ, **environment}, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{program.client(0, 1)[0]} did not end within {PATIENCE * 2} s") from None
    found = program.figure.findall(told.stdout.replace("\r", "\n"))
    if not found:
        said = told.stdout.strip().splitlines()
        raise Failed(f"{program.client(0, 1)[0]} printed no figure: {said[-1] if said else 'nothing at all'}")
    return program.scale(float(found[-1]))


def measure(program, placement, beeline):
    """One round of a program over one transport: its figure, and how the servers' connections went."""
    cpu = min(os.sched_getaffinity(0)) if placement == "one" else None
    running = Running()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="beeline-programs-"))
    os.chmod(directory, 0o755)
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
        environment = program.environment(directory)
        ask(command(program.client(ports[-1], 0.3), beeline, cpu), program, directory, environment)
        figure = ask(command(program.client(ports[-1], 1.5), beeline, cpu), program, directory, environment)
        return figure, carried(running) if beeline else None
    finally:
        running.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def neighbours(placement):
    """The busy loops of a placement."""
    loops = []
    try:
        if placement == "busy":
            for cpu in os.sched_getaffinity(0):
                loops.append(subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def compare(program, placement, rounds, progress):
    """A row of the table; figures that are times are turned around, so that more is better."""
    figures = {False: [], True: []}
    lanes = (0, 0)
    with neighbours(placement):
        for turn in range(rounds):
            for beeline in ((False, True) if turn % 2 == 0 else (True, False)):
                figure, how = measure(program, placement, beeline)
                figures[beeline].append(figure)
                lanes = how or lanes
                progress()
    ratios = [beeline / tcp for tcp, beeline in zip(figures[False], figures[True])]
    return {"program": program.name, "title": program.title, "placement": placement, "unit": program.unit,
            "tcp": statistics.median(figures[False]), "beeline": statistics.median(figures[True]),
            "ratio": statistics.median(figures[True]) / statistics.median(figures[False]), "least": min(ratios),
            "most": max(ratios), "over_lanes": lanes[0], "over_tcp": lanes[1], "samples": {
                "tcp": figures[False], "beeline": figures[True]}}


def show(rows, failures):
    """The table in Markdown, and what it comes to."""
    print("\n| program | placement | TCP | Beeline | Beeline / TCP | over lanes |\n|---|---|---|---|---|---|")
    for row in rows:
        share = row["over_lanes"] / max(1, row["over_lanes"] + row["over_tcp"])
        print(f"| {row['title']} | {row['placement']} | {row['tcp']:,.0f} {row['unit']} | {row['beeline']:,.0f} {row['unit']} | "
              f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f}) | {share:.0%} |")
    if rows:
        mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
        slower = [f"{row['title']}, {row['placement']}: {row['ratio']:.2f}" for row in rows if row["ratio"] < 0.97]
        print(f"\nGeometric mean of {len(rows)}: {mean:.2f}. Below 0.97: {'; '.join(slower) or 'none'}.")
    for failure in failures:
        print(f"Not measured: {failure}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--placement", action="append", choices=PLACEMENTS, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, TCP and Beeline alternating (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep all figures there")
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("at least one round")
    chosen = [program for program in PROGRAMS if not options.names or any(name in program.name for name in options.names)]
    if not chosen:
        parser.error(f"there is no such program; there are {', '.join(program.name for program in PROGRAMS)}")
    if options.list:
        for program in chosen:
            print(f"{program.name:20} {program.title}")
        return 0
    if not pathlib.Path(BEELINE).exists():
        parser.error(f"{BEELINE} does not exist: `make` builds it")
    rows, failures = [], [f"{program.title}: {missing} is not installed" for program in chosen if (missing := program.missing())]
    cells = [(program, placement) for program in chosen if not program.missing() for placement in options.placement or PLACEMENTS]
    started, done = time.monotonic(), 0

    def progress():
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            left = (time.monotonic() - started) / done * (len(cells) * options.rounds * 2 - done)
            print(f"\r{done} of {len(cells) * options.rounds * 2} runs, {left / 60:.0f} min left ", end="", file=sys.stderr)

    try:
        for program, placement in cells:
            try:
                rows.append(compare(program, placement, options.rounds, progress))
            except Failed as failure:
                failures.append(f"{program.title}, {placement}: {failure}")
    except KeyboardInterrupt:
        failures.append("the rest: interrupted")
    show(rows, failures)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
