"""The sweep's part of the report: where TCP saturates, one table, and drawings over the loads."""

from .drawings import over_loads
from .figures import text
from .sections import Section
from .summary import TIERS, fastest_pace, slowest_percent
from .sweep import CHANCE_PERCENT, USED, shows

SHOWN_TIERS = TIERS[:4]
HEAD = ["mix, browsers", "TCP WIPS", "mean, p90, p99 ms", "CPU ms", "x WIPS", "of two TCPs", "x mean", "x p90", "x p99", "x CPU", "of two TCPs",
        "x CPU of " + ", ".join(SHOWN_TIERS), "better", "worse", "others, disk ms, pace %"]
TIER_HEAD = ["load", "tier", "column", "CPU ms", "kernel ms", "voluntary", "involuntary", "sleeps", "bells", "spins paid", "failed", "spared"]
TOGETHER = ("wips", "mean", "p90", "p99", "cpu")
LIBRARY = ("sleeps", "bells", "spins_paid", "spins_failed", "spins_spared")


def row_of(cell, fastest):
    tcp, ours, again = (cell["columns"].get(name) for name in ("TCP", "all", "TCP again"))
    told = shows(cell)
    medians = lambda figures, digits: " / ".join(f"{figure['median']:.{digits}f}" for figure in figures)
    return [f"{cell['mix']}, {cell['browsers']}", f"{tcp['wips']['median']:.0f}", medians([tcp[key] for key in ("mean_ms", "p90_ms", "p99_ms")], 1),
            f"{tcp['cpu_ms_per_interaction']['median']:.2f}", text(ours["wips_ratio"], 2), text(again["wips_ratio"], 2) if again else "-",
            *(text(ours[key], 2) for key in ("mean_ratio", "p90_ratio", "p99_ratio", "cpu_ratio")), text(again["cpu_ratio"], 2) if again else "-",
            medians([ours["cpu_ratio_by_tier"][tier] for tier in SHOWN_TIERS], 2), ", ".join(told["better"]) or "-", ", ".join(told["worse"]) or "-",
            around(cell["columns"].values(), fastest)]


def around(columns, fastest):
    """What else went on in any of a cell's samples, at the worst."""
    others = max(figures["cpu"]["others"]["greatest"] for figures in columns)
    return f"{max(0.0, others):.2f} / {max(figures['disk_pause_ms_max'] for figures in columns)} / {slowest_percent(columns, fastest)}"


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
            above = f"the most beyond is {found['more_percent']:.1f} % above that" if found["more_percent"] > 0 else "all beyond is less"
            below = f"at {found['below']} it does not yet" if found["below"] else "it is the least load looked at"
            yield f"{mix}: TCP saturates at {found['load']} browsers ({found['wips']:.0f} WIPS; {above}; {below})."
        else:
            more = "" if found["more_percent"] is None else f": the last step gave {found['more_percent']:.1f} % more"
            yield f"{mix}: where TCP saturates was not found within these loads{more}. `--loads` takes greater ones."


def by_chance(cells):
    """How much of *better* and *worse* is to be expected of nothing."""
    rounds = min(cell["rounds"] for cell in cells)
    if rounds not in CHANCE_PERCENT:
        return " One round shows neither." if rounds == 1 else ""
    return f" With {rounds} rounds chance alone does that in {CHANCE_PERCENT[rounds]:g} of a hundred cells, for each figure."


def together_sections(sweep):
    """What the cells say together, of the whole site and of each tier."""
    rows = [[f"{group['mix']}, {group['where']}", column, *(text(figures[name], 2) for name in TOGETHER)]
            for group in sweep["together"] for column, figures in group["columns"].items()]
    tiers = [[f"{tier}, {group['where']}", column, *(text(used[what], 2) for what in USED)]
             for group in sweep["together"] if group["mix"] == "all mixes"
             for tier in next(iter(group["columns"].values()))["tiers"]
             for column, figures in group["columns"].items() for used in [figures["tiers"][tier]]]
    notes = ["Below the load where TCP saturates, and from there on. Geometric means of the cells' x TCP for each round; of the rounds the median, with the "
             "least and the greatest. Of the tiers: CPU time of an interaction, the kernel's part of it, and switches of threads that waited "
             "(voluntary) or had their CPU taken (involuntary)."]
    return [Section("Sweep: all cells together", notes, [(["mix, loads", "column", *(f"x {name}" for name in TOGETHER)], rows),
                                                         (["tier, loads", "column", *(f"x {what}" for what in USED)], tiers)])]


def sweep_sections(result, confidence):
    sweep = result.get("sweep")
    if not sweep or not sweep["cells"]:
        return []
    notes = [f"TCP saturates at the least load of which no greater one gives more than {sweep['saturated_grows_percent']:g} % more WIPS, by the medians of "
             "the rounds. A load is a number of browsers that think.", *saturates(sweep), confidence(sweep["cells"]),
             f"{sweep['starts']} {'start' if sweep['starts'] == 1 else 'starts'} of the tiers. x: by TCP of the same round, of all tiers on Beeline, and of two TCPs: of a second stack on "
             "TCP, which shows what chance alone makes. Better and worse: "
             "in which figures all rounds lie on one side of TCP's and beyond all that the second TCP makes." + by_chance(sweep["cells"]),
             "At the worst of a cell's samples: CPUs that other programs used, the longest pause of the disk, and how fast the CPUs did a fixed piece of work "
             "(by the fastest of the run): a low one is a neighbour of this virtual machine, and is in nobody's CPU time."]
    if len(sweep["cells"]) < sweep["cells_planned"]:
        notes.append(f"{len(sweep['cells'])} of {sweep['cells_planned']} cells have a whole round.")
    fastest = fastest_pace(sweep["cells"])
    drawings = []
    for mix in sweep["mixes"]:
        cells = sorted((cell for cell in sweep["cells"] if cell["mix"] == mix), key=lambda cell: cell["browsers"])
        marks = [place for place in [sweep["saturation"][mix]["load"]] if place]
        of = lambda key, names: {name: [(cell["browsers"], cell["columns"][name][key]) for cell in cells] for name in names}
        names = [name for name in ("TCP", "TCP again", "all") if all(name in cell["columns"] for cell in cells)]
        drawings.append(over_loads(f"{mix}: web interactions per second", "WIPS; at the line TCP saturates", of("wips", names), marks))
        drawings.append(over_loads(f"{mix}: response times", "ms within which nine of ten are answered", of("p90_ms", names), marks))
        drawings.append(over_loads(f"{mix}: CPU time of an interaction by TCP's", "x TCP of the same round", of("cpu_ratio", names[1:]), marks, level=1.0))
    return [Section("Sweep", notes, [(HEAD, [row_of(cell, fastest) for cell in sweep["cells"]])], drawings),
            *together_sections(sweep), Section("Sweep: what the tiers use for an interaction", [], [(TIER_HEAD, [row for cell in sweep["cells"] for row in tier_rows(cell)])])]
