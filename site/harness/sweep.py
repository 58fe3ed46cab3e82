"""The sweep: a range of loads in each mix, TCP beside all tiers on Beeline, to find where TCP saturates and where the segment shows.

A load is a number of browsers that think (closed loop), as the specification has it: beyond what the site can do they wait, and
nothing grows without an end. A cell is a mix at a load; a round has all cells in an order of chance, over one start of the tiers. Each cell that is
whole is a line in a file at once, so an end in the middle loses one cell, and `--resume` goes on behind it with tiers started anew.
"""

import json
import math
import os

from .figures import median
from .hosts import Trouble
from .plan import AROUND_S, RAMP_DOWN_S, RAMP_UP_S, Experiment
from .summary import each, spent
from .usage import SWITCHES

LOADS = (25, 50, 75, 100, 150, 200)
COLUMNS = 3
# In how many of a hundred cells `shows` tells a difference of a figure between three columns that are alike, by rounds: reckoned by drawing at random.
CHANCE_PERCENT = {2: 14.0, 3: 2.7, 4: 0.5, 5: 0.1}
# What a tier uses, and is compared by.
USED = ("cpu", "kernel", *SWITCHES)
# TCP is saturated where no load above it gives more than this beside it: less is told from nothing by no number of rounds that is made.
SATURATED_GROWS_PERCENT = 5.0


class Cells:
    """What was measured so far, in a file."""

    def __init__(self, file, settings, resume):
        self.file, self.settings, self.samples = file, settings, []
        if resume and file.exists():
            self._read()
            return
        if file.exists():
            os.replace(file, file.with_suffix(".before.jsonl"))
        file.write_text(json.dumps({"settings": settings}) + "\n")

    def _read(self):
        whole = []
        for line in self.file.read_text().splitlines(keepends=True):
            # The last line may be torn, if the harness was killed while it wrote.
            if line.endswith("\n"):
                whole.append(line)
        head, *cells = map(json.loads, whole or ['{"settings": null}'])
        if head["settings"] != self.settings:
            other = sorted(key for key in self.settings if (head["settings"] or {}).get(key) != self.settings[key])
            raise Trouble(f"{self.file} is of a sweep with another {', another '.join(other)}; without --resume a new one begins")
        self.samples = cells
        self.file.write_text("".join(whole))

    def add(self, mix, browsers, number, start, columns):
        cell = {"mix": mix, "browsers": browsers, "round": number, "start": start, "columns": columns}
        self.samples.append(cell)
        with open(self.file, "a") as out:
            out.write(json.dumps(cell) + "\n")

    def has(self, mix, browsers, number):
        return any((cell["mix"], cell["browsers"], cell["round"]) == (mix, browsers, number) for cell in self.samples)

    def starts(self):
        return {cell["start"] for cell in self.samples}

    def experiment(self, mix, browsers, **how):
        """A cell with all of its rounds."""
        found = Experiment(f"{mix}, {browsers} browsers", "host", mix, browsers=browsers, **how)
        mine = [cell for cell in self.samples if (cell["mix"], cell["browsers"]) == (mix, browsers)]
        for cell in sorted(mine, key=lambda cell: cell["round"]):
            for name, report in cell["columns"].items():
                found.samples.setdefault(name, []).append(report)
        found.starts = len({cell["start"] for cell in mine})
        return found


def cells_of(mixes, loads):
    return [(mix, load) for mix in mixes for load in loads]


def cell_s(measure):
    """What a cell takes."""
    return COLUMNS * (RAMP_UP_S + measure + RAMP_DOWN_S + AROUND_S)


def saturation(wips):
    """Where a site saturates. `wips`: load -> a median. The least load that no greater one gives SATURATED_GROWS_PERCENT more than; the greatest
    load says nothing of itself, as nothing above it was looked at. `load` is none where even the last step gave more."""
    loads = sorted(wips)
    for place, load in enumerate(loads[:-1]):
        most = max(wips[other] for other in loads[place + 1:])
        more = 100 * (most / wips[load] - 1) if wips[load] else float("inf")
        if more <= SATURATED_GROWS_PERCENT:
            return {"load": load, "wips": wips[load], "more_percent": more, "below": loads[place - 1] if place else None}
    return {"load": None, "wips": None, "more_percent": 100 * (wips[loads[-1]] / wips[loads[-2]] - 1) if len(loads) > 1 and wips[loads[-2]] else None,
            "below": loads[-1] if loads else None}


def found_of(cells, mixes, loads, **how):
    """The sweep's part of the result: cells of which a round is whole, where TCP saturates by them, and what they say together."""
    measured = [found for mix, load in cells_of(mixes, loads) if (found := cells.experiment(mix, load, **how).found())]
    mixes_there = [mix for mix in mixes if any(found["mix"] == mix for found in measured)]
    tcp = {mix: {found["browsers"]: found["columns"]["TCP"]["wips"]["median"] for found in measured if found["mix"] == mix}
           for mix in mixes_there}
    saturates = {mix: saturation(wips) for mix, wips in tcp.items()}
    samples = [cell for cell in cells.samples if cell["mix"] in mixes and cell["browsers"] in loads]
    return {"mixes": mixes_there, "loads": list(loads), "starts": len(cells.starts()), "cells": measured,
            "cells_planned": len(mixes) * len(loads), "saturated_grows_percent": SATURATED_GROWS_PERCENT, "saturation": saturates,
            "together": list(together(samples, saturates))}


def mean_ratio(cells, column, figure):
    """How a column compares with TCP in many cells: the geometric mean of their ratios for each round, of the rounds the median. A round is
    a start of the tiers, and cells of one start are not independent of each other."""
    logs = {}
    for cell in cells:
        ours, base = figure(cell["columns"][column]), figure(cell["columns"]["TCP"])
        if ours > 0 and base > 0:
            logs.setdefault(cell["round"], []).append(math.log(ours / base))
    return median([math.exp(sum(of_round) / len(of_round)) for of_round in logs.values()])


def together(samples, saturates):
    """Cells below the load where TCP saturates, and those from there on, by mix and all together: one cell tells little."""
    is_below = lambda cell: saturates[cell["mix"]]["load"] is None or cell["browsers"] < saturates[cell["mix"]]["load"]
    figures = {"wips": lambda report: report["wips"], "mean": lambda report: report["mean_ms"], "p90": lambda report: report["p90_ms"],
               "p99": lambda report: report["p99_ms"], "cpu": spent}
    mixes = list(dict.fromkeys(cell["mix"] for cell in samples))
    for where, holds in (("below", is_below), ("from there on", lambda cell: not is_below(cell))):
        for mix in [*mixes, None]:
            cells = [cell for cell in samples if holds(cell) and mix in (None, cell["mix"])]
            if not cells:
                continue
            yield {"mix": mix or "all mixes", "where": where, "columns": {
                column: {**{name: mean_ratio(cells, column, figure) for name, figure in figures.items()}, "tiers": {
                    tier: {what: mean_ratio(cells, column, lambda report: each(report, report["tiers"][tier][what])) for what in USED}
                    for tier in cells[0]["columns"]["TCP"]["tiers"]}}
                for column in cells[0]["columns"] if column != "TCP"}}


def shows(found):
    """In which figures a cell tells Beeline from TCP: all rounds on one side, and wholly beyond what TCP does beside itself."""
    told = {"better": [], "worse": []}
    ours, chance = found["columns"]["all"], found["columns"].get("TCP again")
    for key, name, more_is_better in FIGURES:
        is_one, is_chance = ours[key], chance and chance[key]
        if not is_one or is_one["n"] < 2:
            continue
        high = max(1.0, is_chance["greatest"]) if is_chance else 1.0
        low = min(1.0, is_chance["least"]) if is_chance else 1.0
        if is_one["least"] > high:
            told["better" if more_is_better else "worse"].append(name)
        elif is_one["greatest"] < low:
            told["worse" if more_is_better else "better"].append(name)
    return told


FIGURES = (("wips_ratio", "WIPS", True), ("mean_ratio", "mean", False), ("p90_ratio", "p90", False), ("p99_ratio", "p99", False),
           ("cpu_ratio", "CPU", False))
