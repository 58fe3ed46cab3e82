"""What is measured: which columns, at which loads, how often.

A round is a start of all tiers: each stack is started anew for it, is warmed up, and is sampled at each load, the columns of a load one
right after the other in an order of chance. So what a start happens to be like (what Java has compiled, where memory lies, on which
CPU who wakes whom) differs from round to round, and is in the interval of the rounds. And TCP stands there twice: the second stack on
TCP is a column like any other, and its ratio to the first shows what chance alone makes of two things that are the same.
"""

import dataclasses
import random

from . import checks, lanes
from .hosts import Trouble
from .load import faultless, sample
from .summary import summary

MIXES = ("shopping", "browsing", "ordering")
# The largest deviation of an interaction's share from the specification's. In so many interactions chance alone makes less than that
# of it: where there are fewer, nothing is said.
SHARES_OFF_MAX_POINTS = 1.0
SHARES_COUNT_MIN = 20_000
# What a sample takes beside what it measures: ramps, the emulator's start and end, and two looks at the lanes.
RAMP_UP_S, RAMP_DOWN_S, AROUND_S = 2.0, 0.5, 0.4


@dataclasses.dataclass
class Column:
    """A way to run the site: which stack serves, and whether browsers are on Beeline, too."""

    name: str
    stack: object
    accelerated: bool


@dataclasses.dataclass
class Experiment:
    """One load over some columns."""

    name: str
    place: str
    mix: str
    rounds: int
    think: float = 0.005
    limit: float = 0.02
    rate: float = None
    browsers: int = 200
    pooled: bool = True
    # Column -> a report for each round, the columns that others are compared with first.
    samples: dict = dataclasses.field(default_factory=dict)
    # How many starts of the tiers these are of.
    starts: int = 0

    def whole_rounds(self):
        return min(map(len, self.samples.values()), default=0)

    def found(self):
        """What came of it, of as many rounds as are whole; none if there is none."""
        if not (rounds := self.whole_rounds()):
            return None
        return summary(self, {name: reports[:rounds] for name, reports in self.samples.items()})


def check_shares(found):
    """A mix is that of the specification, or its figures are of another load."""
    for name, figures in found["columns"].items():
        count = sum(kind["count"] for kind in figures["interactions"].values())
        if count >= SHARES_COUNT_MIN and figures["share_off_most_points"] > SHARES_OFF_MAX_POINTS:
            raise Trouble(f"{found['name']}, {name}: a share of the interactions is {figures['share_off_most_points']:.2f} points off the "
                          f"specification's in {count} interactions")


def turned(columns, seed, number):
    """The order of a round: one of chance for each load, turned by one from round to round, so that each column comes first, second and last
    as often as the others, wherever a run that was ended goes on."""
    shuffled = list(columns)
    random.Random(seed).shuffle(shuffled)
    place = number % len(shuffled)
    return shuffled[place:] + shuffled[:place]


class Bench:
    """Runs experiments, their columns in alternating order within each round."""

    def __init__(self, store, beeline, measure, say, runs, seed):
        self.store, self.beeline, self.say, self.runs, self.seed = store, beeline, say, runs, seed
        self.times = {"measure": measure, "ramp_up": RAMP_UP_S, "ramp_down": RAMP_DOWN_S}
        self.count = 0

    def _sample(self, column, **how):
        self.count += 1
        before = lanes.look(self.beeline, column)
        report = sample(self.runs, column.stack, self.store, self.beeline, column.accelerated, seed=self.seed * 1000 + self.count,
                        **how, **self.times)
        after = lanes.look(self.beeline, column)
        report["lanes"] = lanes.between(before, after)
        report["library"] = lanes.worked(before, after, sum(report["wips_each_second"]))
        lanes.check(column, report["lanes"])
        return report

    def warm_up(self, stacks, seconds):
        """Until Java has compiled what it will. It is not measured."""
        for stack in stacks:
            for mix in ("shopping", "ordering"):
                self.say(f"warming up {stack.name}: {mix}")
                report = sample(self.runs, stack, self.store, self.beeline, False, mix, self.seed, think=0.0, browsers=100,
                                ramp_up=1.0, measure=seconds, ramp_down=0.1)
                faultless(report, f"while warming up {stack.name}")

    def round(self, experiment, columns, progress=""):
        """A sample of each column, of the same start."""
        number = experiment.whole_rounds() + 1
        taken = {}
        for column in turned(columns, f"{self.seed} {experiment.name}", number):
            report = self._sample(column, mix=experiment.mix, think=experiment.think, limit=experiment.limit,
                                  rate=experiment.rate, browsers=experiment.browsers)
            self.say(f"{progress}{experiment.name}, round {number} of {experiment.rounds}, {column.name}: "
                     f"{report['wips']:.0f} WIPS, {report['p90_ms']:.1f} ms for nine of ten, {report['errors_all']} errors, "
                     f"{report['cpu']['others']:.2f} CPUs used by others"
                     + (f", the disk paused for {max(report['disk_pauses_ms'])} ms" if report["disk_pauses_ms"] else ""))
            faultless(report, f"over {column.name}")
            taken[column.name] = report
        # All of them, or none: what is compared is of the same round.
        for column in columns:
            experiment.samples.setdefault(column.name, []).append(taken[column.name])
        return {column.name: taken[column.name] for column in columns}


def kill_all(bench, columns, directory, say):
    """Each tier is killed in turn, over each column."""
    results = {}
    for column in columns:
        results[column.name] = []
        for tier in column.stack.tiers:
            result = checks.kill_tier(column.stack, tier, bench.store, bench.beeline, column.accelerated, directory, bench.runs,
                                      bench.seed + 77)
            results[column.name].append(result)
            say(f"kill -9 of {tier.name} over {column.name}: recovered after {result['site_recovered_after_s']} s, "
                f"{result['errors']} errors, orders {result['orders']}")
    return results
