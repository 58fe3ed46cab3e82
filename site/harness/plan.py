"""What is measured: which columns, at which loads, how often."""

import dataclasses
import random

from . import checks, lanes
from .figures import median, ratio
from .hosts import Trouble
from .load import faultless, sample

# Interactions that a table shows by themselves are all fourteen; sums are over them.
MIXES = ("shopping", "browsing", "ordering")
# The largest deviation of an interaction's share from the specification's. In so many interactions chance alone makes less than that
# of it: where there are fewer, nothing is said.
SHARES_OFF_MAX_POINTS = 1.0
SHARES_COUNT_MIN = 20_000


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
    columns: list
    rounds: int
    think: float = 0.005
    limit: float = 0.02
    rate: float = None
    browsers: int = 200
    samples: dict = None


def check_shares(found):
    """A mix is that of the specification, or its figures are of another load."""
    for name, figures in found["columns"].items():
        count = sum(kind["count"] for kind in figures["interactions"].values())
        if count >= SHARES_COUNT_MIN and figures["share_off_most_points"] > SHARES_OFF_MAX_POINTS:
            raise Trouble(f"{found['name']}, {name}: a share of the interactions is {figures['share_off_most_points']:.2f} points off the "
                          f"specification's in {count} interactions")


class Bench:
    """Runs experiments one after the other, their columns in alternating order within each round."""

    def __init__(self, store, beeline, times, say, runs, seed):
        self.store, self.beeline, self.times, self.say, self.runs, self.seed = store, beeline, times, say, runs, seed
        self.order = random.Random(seed)
        self.count = 0

    def _sample(self, column, **how):
        self.count += 1
        before = lanes.look(self.beeline, column)
        report = sample(self.runs, column.stack, self.store, self.beeline, column.accelerated, seed=self.seed * 1000 + self.count,
                        **how, **self.times)
        report["lanes"] = lanes.between(before, lanes.look(self.beeline, column))
        lanes.check(column, report["lanes"])
        return report

    def warm_up(self, columns, seconds):
        """Until Java has compiled what it will. All stacks at once, as they are not measured."""
        for stack in {id(column.stack): column.stack for column in columns}.values():
            for mix in ("shopping", "ordering"):
                self.say(f"warming up {stack.name}: {mix}")
                report = sample(self.runs, stack, self.store, self.beeline, False, mix, self.seed, think=0.0, browsers=100,
                                ramp_up=1.0, measure=seconds, ramp_down=0.1)
                faultless(report, f"while warming up {stack.name}")

    def run(self, experiment):
        experiment.samples = {column.name: [] for column in experiment.columns}
        for number in range(experiment.rounds):
            columns = list(experiment.columns)
            self.order.shuffle(columns)
            for column in columns:
                report = self._sample(column, mix=experiment.mix, think=experiment.think, limit=experiment.limit,
                                      rate=experiment.rate, browsers=experiment.browsers)
                experiment.samples[column.name].append(report)
                self.say(f"{experiment.name}, round {number + 1} of {experiment.rounds}, {column.name}: "
                         f"{report['wips']:.0f} WIPS, {report['p90_ms']:.0f} ms for nine of ten, {report['errors_all']} errors, "
                         f"{report['cpu']['others']:.2f} CPUs used by others"
                         + (f", the disk paused for {max(report['disk_pauses_ms'])} ms" if report["disk_pauses_ms"] else ""))
                faultless(report, f"over {column.name}")
        found = summary(experiment)
        check_shares(found)
        return found


def spent(report):
    """CPU time for an interaction, in milliseconds: what other programs on the machine take does not count, so it is a steadier
    measure than WIPS on a machine that is shared."""
    tiers = ("database", "application", "web", "browsers", "bridges")
    return sum(report["cpu"][name] for name in tiers) * 1000 / report["wips"] if report["wips"] else 0.0


def summary(experiment):
    """Medians of an experiment, by column, with ratios to the first column of the same round."""
    base = experiment.samples[experiment.columns[0].name]
    columns = {}
    for name, reports in experiment.samples.items():
        figures = {key: median([report[key] for report in reports])
                   for key in ("wips", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "late_percent", "late_scaled_percent", "switches",
                               "parts_per_s", "connections")}
        figures["cpu"] = {tier: median([report["cpu"][tier] for report in reports]) for tier in reports[0]["cpu"]}
        figures["cpu_ms_per_interaction"] = median([spent(report) for report in reports])
        figures["cpu_ms_by_tier"] = {
            tier: median([report["cpu"][tier] * 1000 / report["wips"] for report in reports if report["wips"]])
            for tier in ("database", "application", "web", "browsers", "bridges")}
        figures["wips_ratio"] = ratio([report["wips"] for report in reports], [report["wips"] for report in base])
        figures["cpu_ratio"] = ratio([spent(report) for report in reports], [spent(report) for report in base])
        figures["disk_pause_ms_max"] = max((span for report in reports for span in report["disk_pauses_ms"]), default=0)
        figures["errors"] = sum(report["errors_all"] for report in reports)
        figures["asked_again"] = sum(report["asked_again"] for report in reports)
        figures["lanes"] = lanes.shares(reports)
        counts = {kind: sum(report["interactions"][kind]["count"] for report in reports) for kind in base[0]["interactions"]}
        total = sum(counts.values())
        figures["began_late_percent"] = 100 * sum(report["began_late"] for report in reports) / max(total, 1)
        figures["share_off_most_points"] = max(
            abs(100 * counts[kind] / max(total, 1) - base[0]["interactions"][kind]["share_specified_percent"]) for kind in counts)
        figures["interactions"] = {
            kind: {"count": counts[kind], "share_percent": 100 * counts[kind] / max(total, 1),
                   "share_specified_percent": base[0]["interactions"][kind]["share_specified_percent"],
                   "late_percent": weighed(reports, kind, "late_percent", counts[kind]),
                   "late_scaled_percent": weighed(reports, kind, "late_scaled_percent", counts[kind]),
                   "p50_ms": median([report["interactions"][kind]["p50_ms"] for report in reports])["median"],
                   "p90_ms": median([report["interactions"][kind]["p90_ms"] for report in reports])["median"]}
            for kind in counts}
        figures["wips_over_time"] = [round(sum(seconds) / len(seconds), 1)
                                     for seconds in zip(*(report["wips_each_second"] for report in reports))]
        columns[name] = figures
    return {"name": experiment.name, "place": experiment.place, "mix": experiment.mix, "browsers": experiment.browsers,
            "think_factor": experiment.think, "limit_factor": experiment.limit, "rate": experiment.rate, "rounds": experiment.rounds,
            "measured_s": base[0]["measured_s"], "columns": columns}


def weighed(reports, kind, key, count):
    """A share over all rounds together."""
    if not count:
        return 0.0
    return sum(report["interactions"][kind][key] * report["interactions"][kind]["count"] for report in reports) / count


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
