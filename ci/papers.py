#!/usr/bin/env python3
"""Writes what runs of the papers' plans measured into docs/papers.md.

    ci/papers.py [--note TEXT | --apart WHICH] RUN...

A RUN is the directory of a run of `beeline bench paper`, or one that has such directories in it; TEXT is said of all of them, such as what
else the machine did. With --apart the runs are of a few rows, which WHICH names; what is said of the others stays, until all are written anew.

A row of the document names a plan and a cell in `backquotes` in its fourth column, and after it a figure if it is about another than the
cell's own; its fifth column is what the runs say of that cell.
Rows whose cell no run has stay as they are.
"""

import csv
import json
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "papers.md"
CELL = re.compile(r"^`([a-z-]+) ([^` ]+)`(?: ([a-z0-9-]+))?$")
COLUMN = re.compile(r"(?<!\\)\|")
# What stands beside TCP and Beeline; as a figure in the fourth column, all that does.
BESIDE = "beside "
# Of these nobody wins.
NEUTRAL = ("load", "fairness", "cpu-share-client", "cpu-share-server", "peak-share")
# What a row is about, by what its work has.
FIGURES = ("mean", "p50", "throughput", "rate")
# Where a table is about something else than its work.
OF_TABLE = {"cpu": "cpu-client", "mpi-bandwidth": "throughput", "mpi-hosts-bandwidth": "throughput", "mpi-curve": "throughput", "bandwidth": "throughput"}


def runs(places):
    for place in map(Path, places):
        found = [place] if (place / "settings.json").exists() else sorted(p.parent for p in place.glob("*/settings.json"))
        if not found:
            sys.exit(f"papers.py: there is no run in {place}")
        yield from found


def show(value, unit):
    """As the instrument shows it: three digits."""
    if unit == "nanoseconds":
        scales = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
    elif unit == "share":
        return f"{value * 100:.0f} %"
    elif unit == "bytes_per_second":
        scales = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")]
    else:
        scales = [(1e6, "M/s"), (1e3, "k/s"), (1, "/s")]
    factor, word = next((scale for scale in scales if value >= scale[0]), scales[-1])
    return f"{digits(value / factor)} {word}"


def digits(value):
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{places}f}"


def read(run):
    """The plan's name, and for each cell its figures and what was not measured."""
    name = re.search(r'^name = "([^"]+)"', (run / "plan.toml").read_text(), re.M)[1]
    cells = {}
    with open(run / "report.csv", newline="") as file:
        for line in csv.DictReader(file):
            # What was measured by other means has its name behind the cell's.
            cell, _, other = line["cell"].partition(": ")
            cells.setdefault((name, cell), {})[f"{BESIDE}{other}" if other else line["figure"]] = line
    return cells


def words(cell, figures, figure):
    if figure == BESIDE.strip():
        lines = {word[len(BESIDE):]: line for word, line in figures.items() if word.startswith(BESIDE)}
        shown = [f"{word} {show(float(line['tcp_median']), line['unit'])}" for word, line in lines.items()]
        return ", ".join(shown) or "nothing"
    table = cell.split("/")[0]
    wanted = (figure, OF_TABLE.get(table), *FIGURES)
    line = next((figures[figure] for figure in wanted if figure in figures), None)
    if line is None:
        reason = next(iter(figures.values()))["not_measured"]
        return f"not here: {reason}".replace("|", "\\|")
    sides = [show(float(line[f"{side}_median"]), line["unit"]) for side in ("tcp", "beeline")]
    if line["figure"] in NEUTRAL:
        return f"{sides[0]}, {sides[1]}"
    gain = float(line["gain_median"])
    return f"{sides[0]}, {sides[1]}: {digits(gain)} times {'better' if gain >= 1 else 'as good'}"


def machine(run):
    """What the run was made on, and when."""
    records = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines() if line.startswith('{"event":"session"')]
    about = records[-1]["machine"]
    return f"{about['cpu_model']}, {about['cpus']} CPUs, Linux {about['kernel']}, {about['date'][:10]}"


def main():
    note, apart, places = "", None, sys.argv[1:]
    if places[:1] == ["--note"]:
        note, places = f"; {places[1]}", places[2:]
    elif places[:1] == ["--apart"]:
        apart, places = places[1], places[2:]
    if not places:
        sys.exit(__doc__.strip())
    found, machines, rounds = {}, set(), set()
    for run in runs(places):
        for cell, figures in read(run).items():
            # A run between hosts has cells that one on a host has not, and the reverse.
            if cell not in found or "" in found[cell]:
                found[cell] = figures
        machines.add(machine(run))
        settings = json.loads((run / "settings.json").read_text())
        rounds.add(f"{settings['rounds']} rounds of {settings['sample_ms']} ms")
    lines = []
    for line in DOCUMENT.read_text().split("\n"):
        columns = [column.strip() for column in COLUMN.split(line)[1:-1]]
        about = f"{'; '.join(sorted(machines))}; {', '.join(sorted(rounds))}"
        if line.startswith("Measured apart: "):
            continue
        if line.startswith("Measured: "):
            line = f"{line}\nMeasured apart: {apart}: {about}." if apart else f"Measured: {about}{note}."
        elif len(columns) == 6 and (cell := CELL.match(columns[3])) and (figures := found.get(cell.groups()[:2])):
            columns[4] = words(cell[2], figures, cell[3])
            line = f"| {' | '.join(columns)} |"
        lines.append(line)
    DOCUMENT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
