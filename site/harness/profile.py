"""Where the CPU time of each tier goes: to the kernel, to the program, to Beeline's library. By perf, where it is."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from .load import Emulator, faultless

SECONDS = 4


class NoProfile(Exception):
    """Why there is none."""


def perf():
    """perf of linux-perf, for this kernel or another one."""
    found = shutil.which("perf")
    return found or next((str(path) for path in sorted(pathlib.Path("/usr/bin").glob("perf_*"))), None)


def profiles(column, store, beeline, runs, chosen):
    """For each tier the share of each library in its samples, and the first functions."""
    program = perf()
    if program is None:
        raise NoProfile("there is no perf; `ci/packages.sh site` installs it")
    mix = chosen.mixes.split(",")[0]
    emulator = Emulator(column.stack, store, beeline, column.accelerated, mix, 9, browsers=chosen.browsers,
                        think=chosen.think_factor, ramp_up=2.0, measure=SECONDS * 1.0 + 1)
    runs.append(emulator)
    with tempfile.TemporaryDirectory(prefix="perf-", dir=column.stack.directory) as directory:
        try:
            time.sleep(2.0)
            groups = {tier.name: tier.pids() for tier in column.stack.tiers} | {"browsers": [emulator.process.pid]}
            files = _record(program, groups, pathlib.Path(directory))
            faultless(emulator.finish(), f"while {column.name} was profiled")
        finally:
            emulator.stop()
            runs.remove(emulator)
        return {name: {"libraries": _shares(program, file, "dso", 8), "functions": _shares(program, file, "dso,symbol", 12)}
                for name, file in files.items()}


def _record(program, groups, directory):
    """Samples of each group of processes, all at the same time."""
    recorders = {}
    try:
        for name, pids in groups.items():
            file = directory / f"{name}.data"
            recorders[name] = (file, subprocess.Popen(
                [program, "record", "-q", "-F", "499", "-e", "cpu-clock", "-p", ",".join(map(str, pids)), "-o", file, "--", "sleep",
                 str(SECONDS)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for name, (_, recorder) in recorders.items():
            errors = recorder.communicate(timeout=SECONDS + 60)[1]
            if recorder.returncode != 0:
                raise NoProfile(f"perf of the {name}: {errors.strip()[-1000:] or recorder.returncode}")
    finally:
        for _, recorder in recorders.values():
            recorder.kill()
            recorder.wait()
    return {name: file for name, (file, _) in recorders.items()}


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
