"""Where the CPU time of each tier goes: to the kernel, to the program, to Beeline's library. By perf, where it is."""

import pathlib
import re
import shutil
import subprocess
import time

from .load import Emulator

SECONDS = 4


def perf():
    """perf of linux-perf, for this kernel or another one."""
    found = shutil.which("perf")
    return found or next((str(path) for path in sorted(pathlib.Path("/usr/bin").glob("perf_*"))), None)


def profiles(column, store, beeline, runs, chosen):
    """For each tier the share of each library in its samples, and the first functions. None where perf is not, or may not look."""
    program = perf()
    if program is None:
        return None
    emulator = Emulator(column.stack, store, beeline, column.accelerated, "shopping", 9, browsers=chosen.browsers,
                        think=chosen.think_factor, ramp_up=2.0, measure=SECONDS * 1.0 + 1)
    runs.append(emulator)
    try:
        time.sleep(2.0)
        groups = {tier.name: tier.pids() for tier in column.stack.tiers} | {"browsers": [emulator.process.pid]}
        recorders = {}
        for name, pids in groups.items():
            file = store.work / f"perf-{name}.data"
            recorders[name] = (file, subprocess.Popen(
                [program, "record", "-q", "-F", "499", "-e", "cpu-clock", "-p", ",".join(map(str, pids)), "-o", file, "--", "sleep",
                 str(SECONDS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for _, recorder in recorders.values():
            recorder.wait(timeout=SECONDS + 60)
        emulator.finish()
    finally:
        emulator.stop()
        runs.remove(emulator)
    found = {}
    for name, (file, recorder) in recorders.items():
        if recorder.returncode != 0:
            return None
        found[name] = {"libraries": _shares(program, file, "dso", 8), "functions": _shares(program, file, "dso,symbol", 12)}
        file.unlink()
    return found


def _shares(program, file, sort, count):
    output = subprocess.run([program, "report", "-q", "--stdio", "--no-children", "-i", file, "--sort", sort, "-F", f"overhead,{sort}"],
                            capture_output=True, text=True).stdout
    found = []
    for line in output.splitlines():
        match = re.match(r"\s*([\d.]+)%\s+(.*\S)", line)
        if match:
            found.append([" ".join(word for word in match[2].split() if word != "-"), float(match[1])])
    found.sort(key=lambda entry: -entry[1])
    return found[:count]
