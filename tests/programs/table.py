"""What runs of run.py keep, and the tables that are made of it."""

import datetime
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys

VERSION = 1
# Below this a program is slower, above its inverse faster; what lies between is no difference.
NO_WORSE = 0.97


def about(beeline):
    """The machine and the library that figures belong to."""
    library = pathlib.Path(beeline).with_name("libbeeline.so")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    built = library.stat().st_mtime if library.exists() else 0
    told = subprocess.run([beeline, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return {"version": VERSION, "cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "date": datetime.date.today().isoformat(), "beeline": told,
            "library": datetime.datetime.fromtimestamp(built).isoformat(timespec="seconds")}


class Kept:
    """Rounds in a file, or in memory alone. A file of another library is not gone on with, as its figures are others."""

    def __init__(self, path, session):
        self.path, self.session, self.samples = path, session, []
        if path and path.exists():
            file = read(path)
            if any(file["about"][key] != session[key] for key in ("library", "cpu", "cpus")):
                sys.exit(f"{path} is of another library or machine: remove it, or name another file")
            self.session, self.samples = file["about"], file["samples"]

    def rounds(self, program, placement):
        return sum(sample["program"] == program and sample["placement"] == placement for sample in self.samples)

    def add(self, program, placement, **measured):
        self.samples.append({"program": program.name, "title": program.title, "unit": program.unit, "placement": placement, **measured})
        if self.path:
            beside = self.path.with_name(self.path.name + ".new")
            beside.write_text(json.dumps({"about": self.session, "samples": self.samples}, indent=1) + "\n")
            beside.replace(self.path)

    def rows(self):
        return rows(self.samples)


def read(path):
    try:
        file = json.loads(pathlib.Path(path).read_text())
        if file["about"]["version"] != VERSION:
            raise ValueError(f"version {file['about']['version']}")
        return file
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} has no figures of real programs: {error}")


def rows(samples):
    """One row for each program in each placement, in the order in which they were measured first."""
    found = {}
    for sample in samples:
        found.setdefault((sample["program"], sample["placement"]), []).append(sample)
    return [row(of) for of in found.values()]


def row(samples):
    tcp, beeline = ([sample[side] for sample in samples] for side in ("tcp", "beeline"))
    ratios = [sample["beeline"] / sample["tcp"] for sample in samples]
    counters = [sample["counted"]["counters"] for sample in samples]
    lanes, left = (sum(counter.get(f"connections_{how}_server", 0) for counter in counters) for how in ("accelerated", "fallen_back"))
    return {**{name: samples[0][name] for name in ("program", "title", "unit", "placement")}, "rounds": len(samples),
            "tcp": statistics.median(tcp), "beeline": statistics.median(beeline),
            "ratio": statistics.median(beeline) / statistics.median(tcp), "least": min(ratios), "most": max(ratios),
            "over_lanes": lanes / max(1, lanes + left), "reasons": reasons(samples) if not lanes else []}


def reasons(samples):
    """Why servers had no lanes at all; that clients came over TCP is what follows from it."""
    names = {name.split(",")[0] for sample in samples for name in sample["counted"]["reasons"]}
    return sorted(names - {"came_over_tcp"})


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))


def summary(found):
    slower = [f"{row['title']}, {row['placement']}: {row['ratio']:.2f}" for row in found if row["ratio"] < NO_WORSE]
    return (f"Geometric mean of the {len(found)} ratios: {mean([row['ratio'] for row in found]):.2f}. "
            f"Below {NO_WORSE}: {'; '.join(slower) or 'none'}.")


def figure(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(row):
    return f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def share(found):
    """How much of what the servers accepted went over lanes, and if nothing did, why."""
    shown = list(dict.fromkeys(f"{share:.0%}" for share in sorted({row["over_lanes"] for row in found})))
    why = sorted({f"`{reason}`" for row in found for reason in row["reasons"]})
    return " to ".join([shown[0], *shown[1:][-1:]]) + (f" ({', '.join(why)})" if why else "")


def detailed(found):
    """A row for each program and placement, for a terminal."""
    lines = ["| program | placement | TCP | Beeline | Beeline / TCP | over lanes |", "|---|---|---|---|---|---|"]
    lines += [f"| {row['title']} | {row['placement']} | {figure(row['tcp'])}{row['unit']} | {figure(row['beeline'])}{row['unit']} | "
              f"{ratio(row)} | {share([row])} |" for row in found]
    return "\n".join([*lines, "", summary(found)] if found else ["Nothing was measured."])


def document(files, placements, note=""):
    """A row for each program, for docs/measurements.md; where files have the same program and placement, the last one's counts."""
    latest = {}
    for file in files:
        latest.update({(row["program"], row["placement"]): row for row in rows(file["samples"])})
    found = list(latest.values())
    if not found:
        sys.exit("there is nothing in these files")
    there = [name for name in placements if any(row["placement"] == name for row in found)]
    machines = sorted({f"{file['about']['cpu']}, {file['about']['cpus']} CPUs, Linux {file['about']['kernel']}, {file['about']['date']}"
                       for file in files})
    rounds = sorted({row["rounds"] for row in found})
    turns = " to ".join(map(str, sorted({rounds[0], rounds[-1]})))
    lines = [f"Measured: {'; '.join(machines)}; medians of {turns} alternating rounds{note}.",
             "", "| program | " + " | ".join(f"{name}: TCP, Beeline | ratio" for name in there) + " | over lanes |",
             "|---" * (2 * len(there) + 2) + "|"]
    for program in dict.fromkeys(row["program"] for row in found):
        cells = [latest.get((program, name)) for name in there]
        present = [cell for cell in cells if cell]
        shown = [f"{figure(cell['tcp'])}, {figure(cell['beeline'])}{cell['unit']} | {ratio(cell)}" if cell else " | " for cell in cells]
        lines.append(f"| {present[0]['title']} | {' | '.join(shown)} | {share(present)} |")
    means = ", ".join(f"{name} {mean([row['ratio'] for row in found if row['placement'] == name]):.2f}" for name in there)
    return "\n".join([*lines, "", f"{summary(found)} By placement: {means}."])
