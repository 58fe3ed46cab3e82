#!/usr/bin/env python3
"""The three-tier site: sets it up, measures it over TCP and over Beeline, checks it, and reports. `--help` says more; docs/site.md all."""

import argparse
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
os.environ["PATH"] += ":/usr/sbin:/sbin"

from harness import checks, report  # noqa: E402
from harness.databases import DATABASES  # noqa: E402
from harness.hosts import Namespaces, Trouble, World  # noqa: E402
from harness.lanes import stat  # noqa: E402
from harness.load import Emulator, faultless  # noqa: E402
from harness.plan import MIXES, Bench, Column, Experiment, kill_all  # noqa: E402
from harness.profile import NoProfile, profiles  # noqa: E402
from harness.stack import Parts, Stack  # noqa: E402
from harness.store import ROOT, Store, beeline_programs, machine  # noqa: E402
from harness.tiers import APPLICATION_SERVERS  # noqa: E402
from harness.webservers import WEB_SERVERS  # noqa: E402

BEGAN = time.monotonic()
PARTS = ("host", "half", "profile", "kill", "short", "hosts")
# What the kernel allows by default (fs.nr_open); some programs make a table as long as their limit.
FILES_MAX = 1 << 20


def say(text):
    print(f"{time.monotonic() - BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="a small store, one mix, two short rounds: some four minutes")
    add("--parts", default=",".join(PARTS), help="what is done: host (all mixes on one host, "
        "saturated), half (open loop at half of what TCP does), profile (where the CPU goes, by perf), kill (kill -9 of each tier), "
        "short (without pools and kept connections), hosts (network namespaces with bridges)")
    add("--mixes", default=",".join(MIXES))
    add("--rounds", type=int, default=3)
    add("--browsers", type=int, default=200)
    add("--think-factor", type=float, default=0.005, help="think times are 7 s times this; 0.005 saturates some CPUs with 200 browsers")
    add("--limit-factor", type=float, default=0.02, help="a second count of late responses has the specification's limits times this")
    add("--measure", type=float, default=8.0, help="seconds that a sample measures")
    add("--warm-up", type=float, default=10.0, help="seconds for each stack and mix")
    add("--items", type=int, default=10000, help="1,000 to 100,000")
    add("--scale", type=int, default=50, help="2,880 customers for each")
    add("--seed", type=int, default=1)
    add("--rate", help="bandwidth of each veth between the namespaces, as tc takes it (1gbit)")
    add("--delay", help="delay of each veth, one way, as tc takes it (100us)")
    add("--web", choices=WEB_SERVERS, default="nginx", help="the web server")
    add("--server", choices=APPLICATION_SERVERS, default="jetty", help="the application server")
    add("--database", choices=DATABASES, default="mariadb", help="the database")
    add("--options", action="append", default=[], metavar="KEY=VALUE", help="an option of the library for all tiers")
    add("--not-durable", action="store_true", help="do not wait for the disk at each commit")
    add("--programs", help="where beeline and beelined are (default: target/release)")
    add("--work", default=str(ROOT / "target/site"), help="where everything is kept")
    add("--json", metavar="FILE", help="all figures")
    add("--html", metavar="FILE", help="the report (default: report.html in the work directory)")
    if "--quick" in sys.argv:
        parser.set_defaults(items=1000, scale=5, rounds=2, measure=4.0, warm_up=3.0, mixes="shopping", parts="host,kill,hosts")
    chosen = parser.parse_args()
    if wrong := complaint(chosen):
        parser.error(wrong)
    return chosen


def complaint(chosen):
    """What is wrong with the options together, if anything is."""
    parts, mixes = chosen.parts.split(","), chosen.mixes.split(",")
    for option, names, known in (("--parts", parts, PARTS), ("--mixes", mixes, MIXES)):
        if unknown := [name for name in names if name not in known]:
            return f"{option}: there is no {', no '.join(map(repr, unknown))}, but {', '.join(known)}"
    for option, value, least in (("--rounds", chosen.rounds, 1), ("--browsers", chosen.browsers, 1), ("--items", chosen.items, 1000),
                                 ("--scale", chosen.scale, 1), ("--measure", chosen.measure, 1), ("--warm-up", chosen.warm_up, 1),
                                 ("--think-factor", chosen.think_factor, 0), ("--limit-factor", chosen.limit_factor, 0)):
        if not value >= least:
            return f"{option}: at least {least}"
    if "half" in parts and not ("host" in parts and "shopping" in mixes):
        return "--parts half has its rate from what host does in the shopping mix: both have to be asked for"
    return None


def allow_files():
    """As many open files as the system lets this run have, for all that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Run:
    """What was started, so that all of it ends."""

    def __init__(self, chosen):
        self.chosen = chosen
        self.work = pathlib.Path(chosen.work).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.work / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Trouble(f"another run has {self.work}; give this one a directory of its own by --work") from None
        self.programs = beeline_programs(chosen.programs)
        self.beeline = self.programs / "beeline"
        self.parts = Parts.named(chosen.web, chosen.server, chosen.database)
        self.parts.check()
        self.store = Store(self.work, chosen.items, chosen.scale, chosen.seed, self.parts.database, say)
        self.stacks, self.worlds, self.runs = [], [], []
        times = {"measure": chosen.measure, "ramp_up": 2.0, "ramp_down": 0.5}
        self.bench = Bench(self.store, self.beeline, times, say, self.runs, chosen.seed)
        self.result = {"machine": machine(self.parts), "items": chosen.items, "customers": self.store.customers, "ramp_up": 2.0,
                       "experiments": [], "stat": {}, "checks": {}}

    def has(self, part):
        return part in self.chosen.parts.split(",")

    def stack(self, name, world, beeline=None, **how):
        directory = self.work / "run" / f"{world.name}-{name}"
        stack = Stack(name, world, directory, self.store, self.parts, beeline=beeline, options=self.chosen.options,
                      durable=not self.chosen.not_durable, **how)
        self.stacks.append(stack)
        stack.start()
        return stack

    def columns(self, world, **how):
        """TCP; the inner tiers on Beeline; browsers, too. The last two are one stack."""
        say(f"starting the tiers ({world.name}{', short connections' if how else ''})")
        kernel, lanes = self.stack("tcp", world, **how), self.stack("beeline", world, beeline=self.beeline, **how)
        columns = [Column("TCP", kernel, False), Column("inner tiers", lanes, False), Column("all", lanes, True)]
        # Before anything else: clerks and orders change pages, in each copy of the data others.
        self.same_bytes(world.name, columns)
        self.bench.warm_up(columns, self.chosen.warm_up)
        return columns

    def end_stacks(self):
        while self.stacks:
            self.stacks.pop().remove()

    def experiment(self, name, place, mix, columns, **how):
        how = {"rounds": self.chosen.rounds, "think": self.chosen.think_factor, "limit": self.chosen.limit_factor,
               "browsers": self.chosen.browsers, **how}
        found = self.bench.run(Experiment(name, place, mix, columns, **how))
        self.result["experiments"].append(found)
        return found

    def look(self, place, column):
        """What `beeline stat` shows after the runs, and while browsers are there."""
        emulator = Emulator(column.stack, self.store, self.beeline, column.accelerated, "shopping", 5,
                            browsers=self.chosen.browsers, think=self.chosen.think_factor, ramp_up=1.0, measure=2.0)
        self.runs.append(emulator)
        time.sleep(2.5)
        self.result["stat"][f"{place}, {column.name}"] = stat(self.beeline, column.stack, emulator.process.pid)
        faultless(emulator.finish(), f"while connections were counted over {column.name}")
        self.runs.remove(emulator)

    def same_bytes(self, place, columns):
        found = checks.same_bytes({column.name: (column.stack, column.accelerated) for column in columns}, self.store, self.beeline)
        lanes = {column.name: sum(tier["accelerated"] for tier in stat(self.beeline, column.stack).values())
                 for column in columns if column.stack.database.beeline}
        if not all(lanes.values()):
            raise Trouble(f"nothing was compared: no connection of a tier went over a lane ({place})")
        self.result["checks"][f"same bytes, {place}"] = {**found, "connections_on_lanes": lanes}
        say(f"{found['pages']} pages and pictures are the same over {', '.join(found['columns'])}")

    def profile(self, columns):
        for column in columns:
            try:
                found = profiles(column, self.store, self.beeline, self.runs, self.chosen)
            except NoProfile as why:
                say(f"no profile: {why}")
                return
            self.result.setdefault("profiles", {})[column.name] = found
            say(f"profiled {column.name}")

    def on_one_host(self):
        world = World()
        self.worlds.append(world)
        columns = self.columns(world)
        capacity = None
        if self.has("host"):
            for mix in self.chosen.mixes.split(","):
                found = self.experiment(f"{mix}, saturated", "host", mix, columns)
                if mix == "shopping":
                    capacity = found["columns"]["TCP"]["wips"]["median"]
            self.look("host", columns[2])
        if self.has("half"):
            rate = round(capacity / 2)
            self.experiment(f"shopping, open loop, {rate} a second", "host", "shopping", columns, rate=rate)
        if self.has("profile"):
            self.profile([columns[0], columns[2]])
        if self.has("kill"):
            self.result["kills"] = kill_all(self.bench, [columns[0], columns[2]], self.work / "run", say)
        self.end_stacks()
        if self.has("short"):
            columns = self.columns(world, pooled=False)
            self.experiment("shopping, short connections", "host", "shopping", columns)
            self.look("host, short connections", columns[2])
            self.end_stacks()

    def between_hosts(self):
        beelined = self.programs / "beelined"
        if not beelined.exists() or os.geteuid() != 0:
            say("no network namespaces: " + ("they take root" if os.geteuid() else "there is no beelined"))
            return
        say("making namespaces with a bridge each")
        world = Namespaces(self.work / "run/bridges", beelined, self.chosen.rate, self.chosen.delay)
        self.worlds.append(world)
        columns = self.columns(world)
        link = " ".join(filter(None, (self.chosen.rate, self.chosen.delay)))
        self.experiment("shopping, between hosts" + (f", {link}" if link else ""), "hosts", "shopping", columns)
        self.look("hosts", columns[2])
        self.result["bridges"] = world.bridges()
        self.end_stacks()

    def expected_s(self):
        """How long it takes once there are data, as far as that is known before."""
        sample = 2.6 + self.chosen.measure
        columns = 3 * self.chosen.rounds * sample
        start = 4 * (1.1 + self.chosen.warm_up) + 10
        one_host = [self.has(part) for part in ("host", "half", "profile", "kill")]
        parts = {"host": columns * len(self.chosen.mixes.split(",")) + 5, "half": columns, "profile": 30, "kill": 85,
                 "short": start + columns + 5, "hosts": start + columns + 8}
        return any(one_host) * start + sum(seconds for part, seconds in parts.items() if self.has(part))

    def go(self):
        self.store.make()
        say(f"all parts together take some {self.expected_s() / 60:.0f} minutes")
        if any(self.has(part) for part in ("host", "half", "profile", "kill", "short")):
            self.on_one_host()
        if self.has("hosts"):
            self.between_hosts()

    def keep_logs(self):
        """What the tiers of stacks that are still there have said: something went wrong, or they would be gone."""
        shutil.rmtree(self.work / "logs", ignore_errors=True)
        for stack in self.stacks:
            for tier in stack.tiers:
                for name in ("log", "errors"):
                    file = tier.directory / name
                    if file.exists():
                        target = self.work / "logs" / f"{stack.world.name}-{stack.name}"
                        target.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, target / f"{tier.name}.{name}")
        if self.stacks:
            say(f"what the tiers have said: {self.work / 'logs'}")

    def end(self):
        """All of it is tried, whatever fails: first what runs, then what it has left."""
        steps = [emulator.stop for emulator in self.runs]
        steps += [tier.stop for stack in self.stacks for tier in reversed(stack.tiers)]
        steps += [self.keep_logs, *(stack.remove for stack in self.stacks), *(world.end for world in self.worlds)]
        for step in steps:
            try:
                step()
            except Exception as error:
                say(f"at the end: {step.__qualname__}: {error!r}")
        shutil.rmtree(self.work / "run", ignore_errors=True)


def interrupted(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def main():
    chosen = options()
    allow_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    run, status = None, 0
    try:
        run = Run(chosen)
        run.go()
    except Trouble as trouble:
        print(f"run.py: {trouble}", file=sys.stderr)
        status = trouble.status
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        status = 130
    finally:
        # A second Ctrl-C must not leave anything behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if run:
            run.end()
    if run and (run.result["experiments"] or run.result.get("kills")):
        run.result["took_s"] = time.monotonic() - BEGAN
        run.result["load_at_end"] = os.getloadavg()[0]
        print(report.plain(run.result))
        target = pathlib.Path(chosen.html or run.work / "report.html")
        target.write_text(report.page(run.result))
        say(f"report: {target}")
        if chosen.json:
            pathlib.Path(chosen.json).write_text(json.dumps(run.result, indent=1) + "\n")
    if run and any(not kill["good"] for kills in run.result.get("kills", {}).values() for kill in kills):
        print("run.py: orders were lost, doubled or torn, or the site did not recover", file=sys.stderr)
        status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
