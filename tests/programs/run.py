#!/usr/bin/env python3
"""Real programs at their ordinary settings, over TCP and over Beeline: which are faster, and is any slower?

    tests/programs/run.py [NAME...] [--placement P] [--rounds N] [--json FILE] [--within SECONDS] [--list]

A NAME is part of a program's name. Each program (programs.py, services.py) is measured in several placements: `free`, where the
scheduler chooses among all CPUs; `one`, where servers and client share one CPU; `busy`, free beside a busy loop on each CPU; and if it
is asked for `one-busy`, one CPU that a busy loop has, too. Rounds alternate between TCP and Beeline; servers are started anew for
each, and warmed up by a run of the client, longer for servers that compile their own code. A figure counts if the answers are right, and over Beeline if connections went over lanes. The table shows the medians of
both, their ratio (above 1: Beeline is faster), the smallest and the largest ratio of a round, and how many of the servers'
connections went over lanes. Programs that are not installed are named, not measured.

With `--json` each round is kept in FILE as soon as it is made, and a run that was ended goes on where it was, with the same library;
`--within` ends one by itself after so many seconds, with code 75 if something is left. `ci/programs.py FILE...` writes what was kept
into docs/measurements.md. The variable BEELINE names another `beeline` than target/release/beeline.

Everything listens on 127.0.0.1 and is stopped at the end, also by Ctrl-C, which keeps what was measured until then.
"""

import argparse
import pathlib
import signal
import sys
import time

import table
from measure import BEELINE, PLACEMENTS, USUAL, Failed, measure, neighbours
from programs import PROGRAMS

# Something is left to measure: `sysexits.h` has EX_TEMPFAIL for it.
LEFT = 75


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="the same as NAME")
    parser.add_argument("--placement", action="append", choices=PLACEMENTS, help="only these (default: free, one and busy)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, TCP and Beeline alternating (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="keep all figures there, and go on from what is there")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="begin no round that would end later, as far as one can tell")
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    options = parser.parse_args()
    options.names += options.only
    if options.rounds < 1:
        parser.error("at least one round")
    chosen = [program for program in PROGRAMS if not options.names or any(name in program.name for name in options.names)]
    if not chosen:
        parser.error(f"there is no such program; there are {', '.join(program.name for program in PROGRAMS)}")
    if not options.list and not pathlib.Path(BEELINE).exists():
        parser.error(f"{BEELINE} does not exist: `make` builds it")
    return options, chosen


class Run:
    """What is measured, and what was measured until now. A run that is ended loses no more than the round that it is in."""

    def __init__(self, options, chosen):
        self.options = options
        self.started, self.done = time.monotonic(), 0
        placements = options.placement or USUAL
        self.kept = table.Kept(options.json, table.about(BEELINE))
        # Rounds outside, so that what an ended run leaves is a table of fewer rounds.
        self.rounds = [(program, placement) for turn in range(options.rounds) for program in chosen for placement in placements
                       if not program.missing() and self.kept.rounds(program.name, placement) <= turn]
        self.failures = {program.title: f"{missing} is not installed" for program in chosen if (missing := program.missing())}
        # What a round of a program took, to know whether another can still be begun.
        self.took = {}

    def progress(self):
        if sys.stderr.isatty():
            left = (time.monotonic() - self.started) / max(1, self.done) * (len(self.rounds) - self.done)
            print(f"\r{self.done} of {len(self.rounds)} rounds, {left / 60:.0f} min left ", end="", file=sys.stderr)

    def fits(self, program):
        """Whether a round of the program ends in time; what one takes is a guess before the first."""
        if not self.options.within:
            return True
        guess = self.took.get(program.name) or max(self.took.values(), default=12)
        return time.monotonic() + guess < self.started + self.options.within

    def all(self):
        """Whether everything was measured, or it is known why not."""
        for program, placement in self.rounds:
            title = f"{program.title}, {placement}"
            if title in self.failures:
                continue
            if not self.fits(program):
                return False
            begun, turn = time.monotonic(), self.kept.rounds(program.name, placement)
            try:
                with neighbours(placement):
                    order = (False, True) if turn % 2 == 0 else (True, False)
                    figures = {beeline: measure(program, placement, beeline) for beeline in order}
                self.kept.add(program, placement, tcp=figures[False][0], beeline=figures[True][0], counted=figures[True][1])
            except Failed as failure:
                self.failures[title] = str(failure)
            self.took[program.name] = time.monotonic() - begun
            self.done += 1
            self.progress()
        return True


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    options, chosen = arguments()
    if options.list:
        for program in chosen:
            print(f"{program.name:20} {program.title}")
        return 0
    # `timeout` ends what it runs by SIGTERM: servers are to be stopped then, too.
    signal.signal(signal.SIGTERM, interrupted)
    run = Run(options, chosen)
    try:
        complete = run.all()
    except KeyboardInterrupt:
        complete = False
        run.failures["the rest"] = "interrupted"
    names = [program.name for program in chosen]
    print("\n" + table.detailed([row for row in run.kept.rows() if row["program"] in names]))
    for what, why in run.failures.items():
        print(f"Not measured: {what}: {why}", file=sys.stderr)
    if not complete:
        return LEFT
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
