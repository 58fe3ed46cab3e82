#!/usr/bin/env python3
"""Writes an everyday matrix into docs/measurements.md.

    ci/everyday.py [--note TEXT] FILE...

A FILE is what `beeline bench --everyday --save FILE` left; of several that have the same cell the last one counts. TEXT is said of all of
them, such as what else the machine did. The tables stand between two comments, and what was there before goes.
"""

import json
import math
import statistics
import sys

import marked

DOCUMENT = marked.MEASUREMENTS
SCHEMA = "beeline-everyday/1"
STYLES = {
    "threads": "a thread for each connection", "epoll-level": "epoll, level", "epoll-edge": "epoll, edge",
    "epoll-blocking-level": "epoll, level, blocking listener", "epoll-blocking-edge": "epoll, edge, blocking listener", "poll": "poll",
    "prefork": "pre-forked", "fork": "a fork for each connection", "pool": "a loop and a pool of threads",
}
PLACEMENTS = {
    "pinned": "two CPUs, pinned", "free": "two CPUs, free", "one": "one CPU", "busy1": "one busy loop", "busy2": "two busy loops",
    "awake": "kept awake",
}
WORKS = {
    "pingpong": "64 B there and back on one connection", "fifty": "50 connections in one client loop, a request outstanding on each",
    "short1": "a connection for each request, one client", "short1-bound": "the same, the client's port bound beforehand",
    "short20": "a connection for each request, 20 clients at once", "short20-bound": "the same, the clients' ports bound beforehand",
    "stream": "64 KiB blocks", "mixed": "64 B there and back beside such a stream",
}


class Matrix:
    def __init__(self, runs):
        self.cells = {(cell["style"], cell["placement"], cell["work"]): cell for run in runs for cell in run["cells"]}

    def those(self, style=None, placement=None, work=None):
        wanted = (style, placement, work)
        return [cell for key, cell in self.cells.items() if all(part in (None, have) for part, have in zip(wanted, key)) and cell["ratios"]]


def rate(cell):
    return cell["ratios"]["rate"]["median"]


def shown(cell):
    """The ratio of rates: fat where TCP is faster, with a star where the mean or the tail alone is worse than TCP's."""
    if cell is None:
        return ""
    if not cell["ratios"]:
        return "failed"
    value = rate(cell)
    text = f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"**{text}**" if value < 1 else text if cell["no_slower"] else f"{text}\\*"


def table(matrix, work):
    there = [name for name in PLACEMENTS if any((style, name, work) in matrix.cells for style in STYLES)]
    if not there:
        return []
    lines = ["", f"{WORKS[work][0].upper()}{WORKS[work][1:]}:", "", f"| style of server | {' | '.join(PLACEMENTS[name] for name in there)} |",
             "|---" * (len(there) + 1) + "|"]
    for style, title in STYLES.items():
        cells = [matrix.cells.get((style, placement, work)) for placement in there]
        if any(cells):
            lines.append(f"| {title} | {' | '.join(map(shown, cells))} |")
    return lines


def floor(what, least, values):
    """How many cells reach a floor, and where they lie."""
    if not values:
        return []
    reached = sum(value >= least for value in values)
    return [f"| {what} | {least:g} | {reached} of {len(values)} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) |"]


def floors(matrix):
    """What was aimed at, and how many cells reach it."""
    lines = ["", "| rate over TCP's | aimed at | cells that reach it | median (least to most) |", "|---|---|---|---|"]
    lines += floor("every cell", 1, [rate(cell) for cell in matrix.those()])
    for placement, least in (("pinned", 4), ("awake", 2.5), ("one", 1.2)):
        for work in ("short1", "short1-bound"):
            cells = matrix.those(placement=placement, work=work)
            lines += floor(f"{WORKS['short1']}{', its port bound' if work != 'short1' else ''}: {PLACEMENTS[placement]}", least, list(map(rate, cells)))
    lines += floor("50 connections, one CPU", 1.3, [rate(cell) for cell in matrix.those(placement="one", work="fifty")])
    return lines


def moved(matrix):
    """How long a ping-pong takes that the scheduler may move, over one that is pinned."""
    def mean_ns(style, placement):
        return next((cell["figures"]["mean_ns"]["beeline"]["median"] for cell in matrix.those(style, placement, "pingpong")), None)

    both = [(mean_ns(style, "free"), mean_ns(style, "pinned")) for style in STYLES]
    ratios = [free / pinned for free, pinned in both if free and pinned]
    if not ratios:
        return ""
    return (f" A ping-pong that is free to move takes {statistics.median(ratios):.2f} times the pinned one's mean over Beeline "
            f"({min(ratios):.2f} to {max(ratios):.2f}; at most 2 was aimed at, {sum(ratio <= 2 for ratio in ratios)} of {len(ratios)} styles reach it).")


def how(runs):
    """The machine, and how long samples were of which work."""
    machines = sorted({f"{run['machine']['cpu_model']}, {run['machine']['cpus']} CPUs, Linux {run['machine']['kernel']}, {run['machine']['date'][:10]}"
                       for run in runs})
    turns = {}
    for run in runs:
        works = {cell["work"] for cell in run["cells"]}
        turns.setdefault(f"{run['rounds']} alternating rounds of {run['sample_ms']} ms", []).extend(work for work in WORKS if work in works)
    if len(turns) == 1:
        return f"{'; '.join(machines)}; {''.join(turns)}"
    return "; ".join(machines + [f"{turn} ({', '.join(works)})" for turn, works in turns.items()])


def document(runs, note=""):
    matrix = Matrix(runs)
    measured = matrix.those()
    if not measured:
        sys.exit("no cell of this file was measured")
    for run in runs:
        if run["ended_early"]:
            sys.exit(f"a run ended early: {run['ended_early']}")
    mean = math.exp(statistics.fmean(math.log(rate(cell)) for cell in measured))
    lines = [f"Measured: {how(runs)}{note}. Rate over TCP's, medians of pairs; fat where TCP is faster, with a star where only the mean, the stream beside it or p99 "
             "is worse than TCP's (p99 by more than a tenth)."]
    for work in WORKS:
        lines += table(matrix, work)
    fine = sum(cell["no_slower"] for cell in measured)
    lines += ["", f"{fine} of {len(measured)} cells are no slower in rate and mean, with p99 within a tenth; in {sum(rate(cell) >= 0.95 for cell in measured)} "
              f"the rate is at least 0.95 of TCP's. Geometric mean of the rates' ratios: {mean:.2f}.{moved(matrix)}"]
    failed = len(matrix.cells) - len(measured)
    lines += [f"{failed} cells failed, and are counted nowhere."] if failed else []
    return "\n".join(lines + floors(matrix))


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
        if run["schema"] != SCHEMA:
            raise ValueError(f"schema {run['schema']}")
        return run
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} has no everyday matrix: {error}")


def main():
    note, files = marked.arguments(__doc__)
    marked.put(DOCUMENT, "everyday", document(list(map(read, files)), note))


if __name__ == "__main__":
    main()
