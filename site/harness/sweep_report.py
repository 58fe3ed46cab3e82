"""The sweep's part of the report: where TCP saturates, one table, and drawings over the loads."""

from .drawings import over_loads
from .figures import text
from .sections import Section
from .summary import TIERS
from .sweep import CHANCE_PERCENT, shows

SHOWN_TIERS = TIERS[:4]
HEAD = ["mix, browsers", "TCP WIPS", "x, TCP again", "x, all", "TCP mean ms", "x", "TCP p90 ms", "x", "TCP p99 ms", "x", "TCP CPU ms each",
        "x, TCP again", "x, all", *(f"x, {tier}" for tier in SHOWN_TIERS), "Beeline better", "worse"]
TIER_HEAD = ["load", "tier", "column", "CPU ms", "kernel ms", "voluntary", "involuntary", "sleeps", "bells", "spins paid", "failed", "spared"]
LIBRARY = ("sleeps", "bells", "spins_paid", "spins_failed", "spins_spared")


def row_of(cell):
    tcp, ours = cell["columns"]["TCP"], cell["columns"]["all"]
    again = cell["columns"].get("TCP again")
    told = shows(cell)
    return [f"{cell['mix']}, {cell['browsers']}", text(tcp["wips"], 0), text(again["wips_ratio"], 2) if again else "-", text(ours["wips_ratio"], 2),
            *(word for key in ("mean", "p90", "p99") for word in (text(tcp[f"{key}_ms"], 1), text(ours[f"{key}_ratio"], 2))),
            text(tcp["cpu_ms_per_interaction"], 2), text(again["cpu_ratio"], 2) if again else "-", text(ours["cpu_ratio"], 2),
            *(text(ours["cpu_ratio_by_tier"][tier], 2) for tier in SHOWN_TIERS), ", ".join(told["better"]), ", ".join(told["worse"])]


def tier_rows(experiment):
    for tier in next(iter(experiment["columns"].values()))["tiers"]:
        for name, figures in experiment["columns"].items():
            used = figures["tiers"][tier]
            yield [experiment["name"], tier, name, f"{figures['cpu_ms_by_tier'][tier]['median']:.3f}", f"{used['kernel_ms']['median']:.3f}",
                   f"{used['voluntary']['median']:.2f}", f"{used['involuntary']['median']:.2f}",
                   *(f"{used[what]['median']:.3f}" if what in used else "-" for what in LIBRARY)]


def saturates(sweep):
    """Where TCP does, in words."""
    for mix, found in sweep["saturation"].items():
        if found["load"]:
            yield (f"{mix}: TCP saturates at {found['load']} browsers ({found['wips']:.0f} WIPS; no greater load gives more than "
                   f"{found['more_percent']:.1f} % above that" + (f"; at {found['below']} it does not yet)" if found["below"] else "; the least load looked at)"))
        else:
            more = "" if found["more_percent"] is None else f": the last step gave {found['more_percent']:.1f} % more"
            yield f"{mix}: where TCP saturates was not found within these loads{more}"


def by_chance(cells):
    """How much of *better* and *worse* is to be expected of nothing."""
    rounds = min(cell["rounds"] for cell in cells)
    if rounds not in CHANCE_PERCENT:
        return " One round shows neither." if rounds == 1 else ""
    return f" With {rounds} rounds chance alone does that in {CHANCE_PERCENT[rounds]:g} of a hundred cells, for each figure."


def sweep_sections(result, confidence):
    sweep = result.get("sweep")
    if not sweep or not sweep["cells"]:
        return []
    notes = [f"TCP saturates at the least load of which no greater one gives more than {sweep['saturated_grows_percent']:g} % more WIPS, by the medians of "
             "the rounds. A load is a number of browsers that think.", *saturates(sweep), confidence(sweep["cells"]),
             f"{sweep['starts']} starts of the tiers. x: by TCP of the same round, all tiers on Beeline; TCP again is a second stack on TCP. Better and worse: "
             "in which figures all rounds lie on one side of TCP's and beyond all that the second TCP makes." + by_chance(sweep["cells"])]
    if len(sweep["cells"]) < sweep["cells_planned"]:
        notes.append(f"{len(sweep['cells'])} of {sweep['cells_planned']} cells have a whole round.")
    drawings = []
    for mix in sweep["mixes"]:
        cells = sorted((cell for cell in sweep["cells"] if cell["mix"] == mix), key=lambda cell: cell["browsers"])
        marks = [place for place in [sweep["saturation"][mix]["load"]] if place]
        of = lambda key, names: {name: [(cell["browsers"], cell["columns"][name][key]) for cell in cells] for name in names}
        names = [name for name in ("TCP", "TCP again", "all") if all(name in cell["columns"] for cell in cells)]
        drawings.append(over_loads(f"{mix}: web interactions per second", "WIPS; at the line TCP saturates", of("wips", names), marks))
        drawings.append(over_loads(f"{mix}: response times", "ms within which nine of ten are answered", of("p90_ms", names), marks))
        drawings.append(over_loads(f"{mix}: CPU time of an interaction by TCP's", "x TCP of the same round", of("cpu_ratio", names[1:]), marks, level=1.0))
    return [Section("Sweep", notes, [(HEAD, [row_of(cell) for cell in sweep["cells"]])], drawings),
            Section("Sweep: what the tiers use for an interaction", [], [(TIER_HEAD, [row for cell in sweep["cells"] for row in tier_rows(cell)])])]
