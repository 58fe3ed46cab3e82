"""What came of an experiment: medians of its rounds with the least and the greatest, and ratios to TCP's of the same round."""

from . import lanes
from .figures import median, ratio
from .usage import SWITCHES

TIERS = ("database", "application", "web", "browsers", "bridges")
# Of a sample as it is. Those that another column is compared by have a ratio, too.
PLAIN = ("wips", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "late_percent", "late_scaled_percent", "switches", "parts_per_s", "connections")
COMPARED = ("wips", "mean_ms", "p90_ms", "p99_ms")


def each(report, amount):
    """An amount of a second for each interaction of it."""
    return amount / report["wips"] if report["wips"] else 0.0


def spent(report, tier=None):
    """CPU time for an interaction, in milliseconds, of a tier or of all: what other programs on the machine take does not count, so it is a
    steadier measure than WIPS on a machine that is shared."""
    return each(report, 1000 * sum(report["cpu"][name] for name in ([tier] if tier else TIERS)))


def fastest_pace(experiments):
    """The least time that the fixed piece of work took in any sample; none if it was not looked at."""
    paces = [figures["pace_ms"]["least"] for found in experiments for figures in found["columns"].values() if figures["pace_ms"]]
    return min(paces, default=None)


def slowest_percent(columns, fastest):
    """The slowest pace of the CPUs in any of some columns' samples, by the fastest of the run, in percent."""
    paces = [figures["pace_ms"]["greatest"] for figures in columns if figures["pace_ms"]]
    return f"{100 * fastest / max(paces):.0f}" if paces else "-"


def summary(experiment, samples):
    """`samples`: column -> reports of the same rounds; the first column is what others are compared with."""
    base = next(iter(samples.values()))
    return {"name": experiment.name, "place": experiment.place, "mix": experiment.mix, "browsers": experiment.browsers, "pooled": experiment.pooled,
            "think_factor": experiment.think, "limit_factor": experiment.limit, "rate": experiment.rate, "rounds": len(base),
            "rounds_planned": experiment.rounds, "starts": min(experiment.starts, len(base)), "measured_s": base[0]["measured_s"],
            "columns": {name: _column(reports, base) for name, reports in samples.items()}}


def _column(reports, base):
    over = lambda figure: median([figure(report) for report in reports])
    to_base = lambda figure: ratio([figure(report) for report in reports], [figure(report) for report in base])
    figures = {key: over(lambda report: report[key]) for key in PLAIN}
    figures |= {f"{key.removesuffix('_ms')}_ratio": to_base(lambda report: report[key]) for key in COMPARED}
    figures["cpu"] = {tier: over(lambda report: report["cpu"][tier]) for tier in reports[0]["cpu"]}
    figures["cpu_ms_per_interaction"] = over(spent)
    figures["cpu_ratio"] = to_base(spent)
    figures["cpu_ms_by_tier"] = {tier: over(lambda report: spent(report, tier)) for tier in TIERS}
    figures["cpu_ratio_by_tier"] = {tier: to_base(lambda report: spent(report, tier)) for tier in TIERS}
    figures["tiers"] = {tier: {"kernel_ms": over(lambda report: each(report, 1000 * report["tiers"][tier]["kernel"])),
                               **{kind: over(lambda report: each(report, report["tiers"][tier][kind])) for kind in SWITCHES},
                               **{name: over(lambda report: report["library"][tier][name]) for name in reports[0]["library"].get(tier, ())}}
                        for tier in reports[0]["tiers"]}
    # A sweep that is gone on with may have samples from before this was looked at.
    figures["pace_ms"] = median([report["pace_ms"] for report in reports if "pace_ms" in report])
    figures["disk_pause_ms_max"] = max((span for report in reports for span in report["disk_pauses_ms"]), default=0)
    figures["errors"] = sum(report["errors_all"] for report in reports)
    figures["asked_again"] = sum(report["asked_again"] for report in reports)
    figures["lanes"] = lanes.shares(reports)
    figures |= _interactions(reports, base)
    figures["wips_over_time"] = [round(sum(seconds) / len(seconds), 1) for seconds in zip(*(report["wips_each_second"] for report in reports))]
    return figures


def _interactions(reports, base):
    kinds = base[0]["interactions"]
    counts = {kind: sum(report["interactions"][kind]["count"] for report in reports) for kind in kinds}
    total = max(sum(counts.values()), 1)
    return {
        "began_late_percent": 100 * sum(report["began_late"] for report in reports) / total,
        "share_off_most_points": max(abs(100 * counts[kind] / total - kinds[kind]["share_specified_percent"]) for kind in kinds),
        "interactions": {
            kind: {"count": counts[kind], "share_percent": 100 * counts[kind] / total,
                   "share_specified_percent": kinds[kind]["share_specified_percent"],
                   "late_percent": weighed(reports, kind, "late_percent", counts[kind]),
                   "late_scaled_percent": weighed(reports, kind, "late_scaled_percent", counts[kind]),
                   **{f"{late}_more_points": median([report["interactions"][kind][f"{late}_percent"]
                                                     - other["interactions"][kind][f"{late}_percent"]
                                                     for report, other in zip(reports, base)]) for late in ("late", "late_scaled")},
                   "p50_ms": median([report["interactions"][kind]["p50_ms"] for report in reports])["median"],
                   "p90_ms": median([report["interactions"][kind]["p90_ms"] for report in reports])["median"]}
            for kind in kinds}}


def weighed(reports, kind, key, count):
    """A share over all rounds together."""
    if not count:
        return 0.0
    return sum(report["interactions"][kind][key] * report["interactions"][kind]["count"] for report in reports) / count
