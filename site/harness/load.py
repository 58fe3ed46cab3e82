"""A run of the emulator against a stack: what it measured, with the CPU that each tier used meanwhile."""

import json
import pathlib
import random
import subprocess
import time

from . import usage
from .disk import Watch
from .hosts import Trouble


def ticks():
    """Busy and all CPU seconds of the machine, and context switches."""
    lines = pathlib.Path("/proc/stat").read_text().splitlines()
    fields = [int(word) for word in lines[0].split()[1:9]]
    switches = next(int(line.split()[1]) for line in lines if line.startswith("ctxt"))
    return (sum(fields) - fields[3] - fields[4]) / 100, sum(fields) / 100, switches


def pace_ms():
    """How long a fixed piece of work takes, which reads more than a core's own caches hold: on a host of virtual machines the CPUs are slower when
    neighbours share their cores and caches, which is in nobody's CPU time."""
    words = random.Random(1).sample(range(1 << 24), 40_000)
    found = []
    for _ in range(3):
        began = time.thread_time()
        sorted(words)
        found.append(1000 * (time.thread_time() - began))
    return min(found)


def faultless(report, where):
    """There have to be no errors."""
    if report["errors_all"]:
        raise Trouble(f"errors {where}: {report['complaints']}")


class Emulator:
    """One run. `accelerated`: the browsers are on Beeline, too."""

    def __init__(self, stack, store, beeline, accelerated, mix, seed, browsers=200, think=0.005, limit=0.02, rate=None, ramp_up=2.0, measure=10.0,
                 ramp_down=0.5, journal=None, extra=()):
        self.stack, self.ramp_up, self.measure, self.ramp_down = stack, ramp_up, measure, ramp_down
        command = [store.emulator, "--plain", stack.plain, "--secure", stack.secure, "--authority", store.certificate / "crt.pem",
                   "--mix", mix, "--browsers", browsers, "--items", store.items, "--customers", store.customers,
                   "--think-factor", think, "--limit-factor", limit, "--ramp-up", ramp_up, "--measure", measure, "--ramp-down", ramp_down, "--seed", seed,
                   *extra]
        if rate:
            command += ["--rate", rate]
        if journal:
            command += ["--journal", journal]
        if accelerated:
            command = [beeline, "run", "-q", "--", *command]
        self.began = time.monotonic()
        self.process = subprocess.Popen(stack.world.hosts["clients"].lasting(command), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def elapsed(self):
        return time.monotonic() - self.began

    def finish(self):
        """Waits for the end. Returns the report, or says why there is none."""
        seconds = self.ramp_up + self.measure + self.ramp_down + 90 - self.elapsed()
        try:
            output, errors = self.process.communicate(timeout=max(seconds, 5))
        except subprocess.TimeoutExpired:
            self.stop()
            raise Trouble("the emulator does not end: some request never gets its answer")
        if self.process.returncode != 0:
            raise Trouble(f"the emulator ended with {self.process.returncode}: {errors[-1500:]}")
        return json.loads(output)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def sample(runs, *words, **how):
    """Runs the emulator once. Returns its report with `cpu` and `tiers` (what each uses a second), `switches` (of the whole machine, a
    second), `disk_pauses_ms`, and `pace_ms`, the slower of before and after."""
    pace_before = pace_ms()
    emulator = Emulator(*words, **how)
    runs.append(emulator)
    disk = Watch(emulator.stack.directory)
    try:
        stack = emulator.stack
        time.sleep(max(0.0, emulator.ramp_up - emulator.elapsed()))
        begin, before = time.monotonic(), _used(stack, emulator)
        disk.start()
        time.sleep(emulator.measure)
        seconds, after = time.monotonic() - begin, _used(stack, emulator)
        paused = disk.end()
        report = emulator.finish()
    finally:
        disk.over.set()
        emulator.stop()
        runs.remove(emulator)
    stack.alive()
    report["pace_ms"] = max(pace_before, pace_ms())
    report["tiers"] = {name: usage.between(before["tiers"][name], after["tiers"][name], seconds) for name in after["tiers"]}
    report["cpu"] = {name: used["cpu"] for name, used in report["tiers"].items()}
    report["cpu"]["bridges"] = (after["bridges"] - before["bridges"]) / seconds
    busy, all_, switches = (b - a for a, b in zip(before["machine"], after["machine"]))
    # Other programs, the harness among them: what they take from a site at half of its load makes it stand still.
    report["cpu"]["others"] = busy / seconds - sum(report["cpu"].values())
    report["cpu"]["machine"] = busy / seconds
    report["cpu"]["machine_all"] = all_ / seconds
    report["switches"] = switches / seconds
    report["disk_pauses_ms"] = [round(span * 1000) for span in paused]
    return report


def _used(stack, emulator):
    tiers = {tier.name: usage.look(tier.pids()) for tier in stack.tiers}
    tiers["browsers"] = usage.look([emulator.process.pid])
    return {"tiers": tiers, "bridges": stack.world.bridge_cpu(), "machine": ticks()}
