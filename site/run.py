#!/usr/bin/env python3
"""The three-tier site: sets it up, measures it over TCP and over Beeline, checks it, and reports. `--help` says more; docs/site.md all."""

import fcntl
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
os.environ["PATH"] += ":/usr/sbin:/sbin"

from harness import checks, report, sweep  # noqa: E402
from harness.hosts import Namespaces, Trouble, World  # noqa: E402
from harness.lanes import stat  # noqa: E402
from harness.load import Emulator, faultless  # noqa: E402
from harness.options import options  # noqa: E402
from harness.plan import AROUND_S, RAMP_DOWN_S, RAMP_UP_S, Bench, Column, Experiment, check_shares, kill_all  # noqa: E402
from harness.profile import NoProfile, profiles  # noqa: E402
from harness.stack import Parts, Stack  # noqa: E402
from harness.store import Store, beeline_programs, machine  # noqa: E402

BEGAN = time.monotonic()
# What the kernel allows by default (fs.nr_open); some programs make a table as long as their limit.
FILES_MAX = 1 << 20
STACKS = ("tcp", "tcp-again", "beeline")
COLUMNS = {"TCP": "tcp", "TCP again": "tcp-again", "inner tiers": "beeline", "all": "beeline"}


def say(text):
    print(f"{time.monotonic() - BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


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
        self.stacks, self.worlds, self.runs, self.experiments = [], [], [], []
        self.cells = None
        self.bench = Bench(self.store, self.beeline, chosen.measure, say, self.runs, chosen.seed)
        self.mixes = chosen.mixes.split(",")
        self.result = {"machine": machine(self.parts), "items": chosen.items, "customers": self.store.customers, "ramp_up": RAMP_UP_S,
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

    def columns(self, world, names, number=1, **how):
        """All stacks started anew. `inner tiers` and `all` are one stack, with browsers on TCP and on Beeline. `number`: of the round, in
        which another stack starts and warms up first."""
        say(f"starting the tiers ({world.name}{', short connections' if how else ''})")
        wanted = [name for name in STACKS if name != "tcp-again" or "TCP again" in names]
        place = number % len(wanted)
        made = {name: self.stack(name, world, beeline=self.beeline if name == "beeline" else None, **how)
                for name in wanted[place:] + wanted[:place]}
        columns = [Column(name, made[COLUMNS[name]], name == "all") for name in names]
        # Before anything else: clerks and orders change pages, in each copy of the data others.
        self.same_bytes(world.name, columns)
        self.bench.warm_up(made.values(), self.chosen.warm_up)
        return columns

    def end_stacks(self):
        while self.stacks:
            self.stacks.pop().remove()

    def how(self):
        return {"rounds": self.chosen.rounds, "think": self.chosen.think_factor, "limit": self.chosen.limit_factor}

    def experiment(self, name, place, mix, **how):
        """One that rounds are added to; what is whole of it is in the report, however the run ends."""
        self.experiments.append(Experiment(name, place, mix, browsers=self.chosen.browsers, **self.how(), **how))
        return self.experiments[-1]

    def on_one_start(self, experiment, columns):
        for _ in range(experiment.rounds):
            self.bench.round(experiment, columns)
        experiment.starts = 1
        check_shares(experiment.found())

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
        before = self.result["checks"].get(f"same bytes, {place}", {"starts": 0})
        self.result["checks"][f"same bytes, {place}"] = {**found, "connections_on_lanes": lanes, "starts": before["starts"] + 1}
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
        saturated, half = [], None
        if self.has("host"):
            saturated = [self.experiment(f"{mix}, {self.chosen.browsers} browsers", "host", mix) for mix in self.mixes]
        names = ["TCP", "TCP again", "inner tiers", "all"] if saturated else ["TCP", "inner tiers", "all"]
        last = self.chosen.rounds if saturated else 1
        for number in range(1, last + 1) if self.on_host() else ():
            columns = self.columns(world, names, number)
            for experiment in saturated:
                self.bench.round(experiment, columns)
                experiment.starts += 1
                if self.has("half") and not half and experiment.mix == "shopping":
                    # Of the first round, so that all rounds have the same.
                    rate = max(1, round(experiment.samples["TCP"][0]["wips"] / 2))
                    half = self.experiment(f"shopping, open loop, {rate} a second", "host", "shopping", rate=rate)
            if half:
                self.bench.round(half, columns)
                half.starts += 1
            if number == last:
                self.once(columns)
            self.end_stacks()
        for experiment in [*saturated, *([half] if half else [])]:
            check_shares(experiment.found())
        if self.has("short"):
            columns = self.columns(world, ["TCP", "inner tiers", "all"], pooled=False)
            self.on_one_start(self.experiment("shopping, short connections", "host", "shopping", pooled=False), columns)
            self.look("host, short connections", columns[-1])
            self.end_stacks()

    def once(self, columns):
        """What one start of the tiers is enough for."""
        tcp, beeline = columns[0], columns[-1]
        if self.has("host"):
            self.look("host", beeline)
        if self.has("profile"):
            self.profile([tcp, beeline])
        if self.has("kill"):
            self.result["kills"] = kill_all(self.bench, [tcp, beeline], self.work / "run", say)

    def between_hosts(self):
        beelined = self.programs / "beelined"
        if not beelined.exists() or os.geteuid() != 0:
            say("no network namespaces: " + ("they take root" if os.geteuid() else "there is no beelined"))
            return
        say("making namespaces with a bridge each")
        world = Namespaces(self.work / "run/bridges", beelined, self.chosen.rate, self.chosen.delay)
        self.worlds.append(world)
        columns = self.columns(world, ["TCP", "inner tiers", "all"])
        link = " ".join(filter(None, (self.chosen.rate, self.chosen.delay)))
        self.on_one_start(self.experiment("shopping, between hosts" + (f", {link}" if link else ""), "hosts", "shopping"), columns)
        self.look("hosts", columns[-1])
        self.result["bridges"] = world.bridges()
        self.end_stacks()

    def sweep(self):
        """All mixes at all loads; what was measured before is not measured again."""
        loads = self.loads()
        self.cells = sweep.Cells(self.work / "sweep.jsonl", self.settings(), self.chosen.resume)
        planned = sweep.cells_of(self.mixes, loads)
        left = [(number, cell) for number in range(1, self.chosen.rounds + 1) for cell in planned if not self.cells.has(*cell, number)]
        self.bench.count = len(self.cells.samples) * sweep.COLUMNS
        world = World()
        self.worlds.append(world)
        for number in sorted({number for number, _ in left}):
            columns = self.columns(world, ["TCP", "TCP again", "all"], number)
            start = time.strftime("%Y-%m-%d %H:%M:%S")
            mine = [cell for at, cell in left if at == number]
            # Of the round only, and not of how often the sweep was ended.
            random.Random(f"{self.chosen.seed} {number}").shuffle(mine)
            for mix, load in mine:
                still = sum(at > number for at, _ in left) + len(mine) - mine.index((mix, load))
                progress = f"{still} of {len(planned) * self.chosen.rounds} cells left, {still * sweep.cell_s(self.chosen.measure) / 60:.1f} min: "
                experiment = self.cells.experiment(mix, load, **self.how())
                self.cells.add(mix, load, number, start, self.bench.round(experiment, columns, progress))
            self.end_stacks()

    def loads(self):
        return sorted(int(load) for load in self.chosen.loads.split(","))

    def settings(self):
        """What has to be the same for samples of two runs to stand in one sweep."""
        chosen = self.chosen
        digest = hashlib.sha256(b"".join((self.programs / name).read_bytes() for name in ("beeline", "libbeeline.so"))).hexdigest()
        return {"programs": digest, "items": chosen.items, "scale": chosen.scale, "seed": chosen.seed, "think_factor": chosen.think_factor,
                "limit_factor": chosen.limit_factor, "measure": chosen.measure, "warm_up": chosen.warm_up,
                "parts": [chosen.web, chosen.server, chosen.database], "options": chosen.options, "durable": not chosen.not_durable,
                "machine": {key: self.result["machine"][key] for key in ("cpu", "cpus", "kernel")}}

    def on_host(self):
        return any(self.has(part) for part in ("host", "half", "profile", "kill"))

    def expected_s(self):
        """How long it takes once there are data, as far as that is known before."""
        chosen = self.chosen
        sample = RAMP_UP_S + chosen.measure + RAMP_DOWN_S + AROUND_S
        start = lambda stacks: stacks * (2 * (1.1 + chosen.warm_up) + 6)
        on_one_start = start(2) + 3 * chosen.rounds * sample + 5
        per_round = self.has("host") * (start(3) + 4 * sample * (len(self.mixes) + self.has("half")))
        parts = {"host": chosen.rounds * per_round + 5, "profile": 30, "kill": 85, "short": on_one_start, "hosts": on_one_start + 5,
                 "sweep": chosen.rounds * (start(3) + len(self.mixes) * len(self.loads()) * sweep.cell_s(chosen.measure))}
        alone = start(2) if self.on_host() and not self.has("host") else 0
        return alone + sum(seconds for part, seconds in parts.items() if self.has(part))

    def go(self):
        self.store.make()
        say(f"all parts together take some {self.expected_s() / 60:.0f} minutes")
        if self.on_host() or self.has("short"):
            self.on_one_host()
        if self.has("sweep"):
            self.sweep()
        if self.has("hosts"):
            self.between_hosts()

    def collect(self):
        """What was measured, as far as it is whole. Whether there is anything to report."""
        self.result["experiments"] = [found for experiment in self.experiments if (found := experiment.found())]
        if self.cells:
            self.result["sweep"] = sweep.found_of(self.cells, self.mixes, self.loads(), **self.how())
        self.result["floors"] = report.judged(self.result)
        return self.result["experiments"] or self.result.get("kills") or self.result.get("sweep", {}).get("cells")

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
    chosen = options(__doc__)
    allow_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    run, status, early = None, 0, None
    try:
        run = Run(chosen)
        run.go()
    except Trouble as trouble:
        print(f"run.py: {trouble}", file=sys.stderr)
        status, early = trouble.status, str(trouble)
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        status, early = 130, "it was interrupted"
    finally:
        # A second Ctrl-C must not leave anything behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if run:
            run.end()
    if run and run.collect():
        run.result |= {"took_s": time.monotonic() - BEGAN, "load_at_end": os.getloadavg()[0], "ended_early": early}
        print(report.plain(run.result))
        target = pathlib.Path(chosen.report or run.work)
        target.mkdir(parents=True, exist_ok=True)
        say(f"report: {report.write(run.result, target)}")
        if early and run.cells:
            say("--resume goes on with the sweep")
        if chosen.json:
            pathlib.Path(chosen.json).write_text(json.dumps(run.result, indent=1) + "\n")
    if run and any(not kill["good"] for kills in run.result.get("kills", {}).values() for kill in kills):
        print("run.py: orders were lost, doubled or torn, or the site did not recover", file=sys.stderr)
        status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
