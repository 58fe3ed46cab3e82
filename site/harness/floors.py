"""What was to be reached, judged by what was measured: for each floor whether it holds, with the interval that says so.

`yes`: the least of the rounds is not below the floor. `no`: the greatest is. `open`: the floor lies between them, or there is one round only; then
the medians say what is likelier, and no more. Where a floor is of many interactions, some of them miss it in all rounds by chance alone, so it is `no` if more do
than chance makes of as many that are alike in nineteen of twenty runs. Beside each stands what a second TCP makes of the same floor: two things that are the
same miss such floors, too, by chance.
"""

import math

MORE_IN_ONE = 1.05
HOLDS = {"yes": "holds", "no": "does not hold", "open": "is open"}


def side(figure, floor):
    if figure["n"] > 1 and figure["least"] >= floor:
        return "yes"
    return "no" if figure["n"] > 1 and figure["greatest"] < floor else "open"


def every(sides):
    return "no" if "no" in sides else "yes" if set(sides) == {"yes"} else "open"


def some(sides):
    return "yes" if "yes" in sides else "no" if set(sides) == {"no"} else "open"


def wips(experiments, column):
    """`experiments`: mix -> what was found at the load in question."""
    ratios = {mix: found["columns"][column]["wips_ratio"] for mix, found in experiments.items()}
    medians = [ratio["median"] for ratio in ratios.values()]
    judged = [("WIPS not below TCP's in any mix", 1.0, every, all), ("WIPS 5 % above TCP's in one mix", MORE_IN_ONE, some, any)]
    return [{"what": what, "holds": whole([side(ratio, floor) for ratio in ratios.values()]),
             "by_medians": of(median >= floor for median in medians), "ratios": ratios} for what, floor, whole, of in judged]


def by_chance_at_most(count, rounds, worth=0.95):
    """How many of so many that are alike are higher in all rounds by chance, at most, in `worth` of all runs: each is with a probability of one in
    2^rounds. Those of one sample are late together, so it may well be more."""
    each, sum_ = 0.5 ** rounds, 0.0
    for found in range(count + 1):
        sum_ += math.comb(count, found) * each ** found * (1 - each) ** (count - found)
        if sum_ >= worth:
            return found
    return count


def late(experiments, column, limit):
    """No interaction's share of late responses higher than over TCP. `limit`: `late`, by the specification's limits, or `late_scaled`."""
    more = {(mix, kind): figures[f"{limit}_more_points"] for mix, found in experiments.items()
            for kind, figures in found["columns"][column]["interactions"].items()}
    higher = {key: figure for key, figure in more.items() if figure["median"] > 0}
    shown = {key: figure for key, figure in higher.items() if figure["n"] > 1 and figure["least"] > 0}
    # A share that is not higher in any round is what the floor wants; so is one that never is late.
    is_clear = all(figure["n"] > 1 and figure["greatest"] <= 0 for figure in more.values())
    limits = {"late": "the specification's limits", "late_scaled": "the shortened limits"}[limit]
    rounds = min(figure["n"] for figure in more.values())
    chance_most = by_chance_at_most(len(more), rounds)
    return {"what": f"no interaction late more often than over TCP, by {limits}",
            "holds": "no" if len(shown) > chance_most else "yes" if is_clear else "open",
            "by_medians": not higher, "interactions": len(more), "higher": len(higher), "higher_in_all_rounds": len(shown),
            "higher_in_all_rounds_by_chance_most": chance_most,
            "worst": [{"mix": mix, "interaction": kind, **figure}
                      for (mix, kind), figure in sorted(higher.items(), key=lambda entry: -entry[1]["median"])[:3]]}


def judge(experiments, column="all", control="TCP again"):
    """All floors, each with what the control makes of it, if it was measured."""
    floors = wips(experiments, column) + [late(experiments, column, limit) for limit in ("late", "late_scaled")]
    if all(control in found["columns"] for found in experiments.values()):
        chance = wips(experiments, control) + [late(experiments, control, limit) for limit in ("late", "late_scaled")]
        for floor, other in zip(floors, chance):
            floor["chance"] = other
    return floors


def interval(figure, digits=2):
    if figure["n"] == 1:
        return f"{figure['median']:.{digits}f}"
    return f"{figure['median']:.{digits}f} ({figure['least']:.{digits}f} to {figure['greatest']:.{digits}f})"


def evidence(floor):
    """What a floor was judged by, in words."""
    if "ratios" in floor:
        return ", ".join(f"{mix} {interval(ratio)}" for mix, ratio in floor["ratios"].items())
    worst = "".join(f"; {worst['mix']}: {worst['interaction'].replace('_', ' ')} {interval(worst, 1)} points" for worst in floor["worst"])
    return (f"of {floor['interactions']} {floor['higher']} higher by the median, {floor['higher_in_all_rounds']} in all rounds "
            f"(by chance up to {floor['higher_in_all_rounds_by_chance_most']}){worst}")


def verdict(floor):
    if floor["holds"] != "open":
        return HOLDS[floor["holds"]]
    return f"is open; by the medians it {'holds' if floor['by_medians'] else 'does not hold'}"
