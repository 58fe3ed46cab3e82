"""The report of a run: one file of HTML that needs no server, Markdown, CSV with a line for each figure, each drawing as SVG; and what the
terminal shows. As that of `beeline bench paper`, whose cells are message sizes of two programs and have no place for tiers and mixes."""

import csv
import io

from . import floors
from .drawings import alone, bars, over_time
from .figures import text
from .lanes import LINKS
from .sections import Section, as_text, files_of, html_page, markdown
from .summary import fastest_pace, slowest_percent
from .sweep_report import TIER_HEAD, sweep_sections, tier_rows

TITLE = "The three-tier site"
HEAD = ["load", "column", "WIPS", "x TCP", "median ms", "9 of 10 ms", "99 of 100 ms", "late %", "late % scaled", "CPU ms each", "x TCP",
        "disk paused ms", "errors"]
ASIDES = ["load", "column", "rounds", "starts", "asked again", "began late %", *(f"lanes of {link} %" for link in LINKS), "shares off, points",
          "others' CPUs", "pace %"]
FLOORS = ["what was to be reached", "it", "by", "of two TCPs it", "by"]


def rows_of(experiment):
    for name, figures in experiment["columns"].items():
        yield [experiment["name"], name, text(figures["wips"], 0), text(figures["wips_ratio"], 2),
               text(figures["p50_ms"], 1), text(figures["p90_ms"], 1), text(figures["p99_ms"], 1),
               f"{figures['late_percent']['median']:.2f}", f"{figures['late_scaled_percent']['median']:.1f}",
               text(figures["cpu_ms_per_interaction"], 2), text(figures["cpu_ratio"], 2), figures["disk_pause_ms_max"], figures["errors"]]


def asides_of(experiment, fastest):
    """What says whether the figures above are of what they should be of."""
    for name, figures in experiment["columns"].items():
        lanes = [f"{figures['lanes'][link]['share_percent']:.1f}" if link in figures["lanes"] else "-" for link in LINKS]
        yield [experiment["name"], name, experiment["rounds"], experiment["starts"], figures["asked_again"],
               f"{figures['began_late_percent']:.2f}" if experiment["rate"] else "-", *lanes, f"{figures['share_off_most_points']:.2f}",
               f"{figures['cpu']['others']['greatest']:.2f}", slowest_percent([figures], fastest)]


def confidence(experiments):
    """What the brackets are worth."""
    told = {(figures["wips"]["n"], figures["wips"]["confidence"]) for experiment in experiments
            for figures in experiment["columns"].values()}
    return " ".join(
        f"In brackets: the least and the greatest of {count} rounds, which hold the true median with a confidence of {100 * worth:.3g} %."
        if count > 1 else "One round: how far it is from the median is not known." for count, worth in sorted(told))


def started(experiments):
    """Whether what one start differs from another by is in the brackets."""
    alone = sorted({experiment["name"] for experiment in experiments if experiment["starts"] < experiment["rounds"]})
    if not alone:
        return "All tiers are started anew for each round."
    return "One start of the tiers serves several rounds, so what starts differ by is not in the brackets, of: " + ", ".join(alone) + "."


def saturated(result):
    """The mixes at the load of the whole runs."""
    return {found["mix"]: found for found in result["experiments"]
            if found["place"] == "host" and not found["rate"] and found["pooled"]}


def judged(result):
    """Which loads the floors are judged at, and what came of it."""
    found = {}
    if experiments := saturated(result):
        browsers = next(iter(experiments.values()))["browsers"]
        found[f"at {browsers} browsers"] = floors.judge(experiments)
    if sweep := result.get("sweep"):
        at = {mix: place["load"] for mix, place in sweep["saturation"].items() if place["load"]}
        cells = {cell["mix"]: cell for cell in sweep["cells"] if at.get(cell["mix"]) == cell["browsers"]}
        if cells:
            loads = ", ".join(f"{mix} {load}" for mix, load in at.items())
            found[f"where TCP saturates (browsers: {loads})"] = floors.judge(cells)
    return found


def floor_rows(judgements):
    for floor in judgements:
        chance = floor.get("chance")
        yield [floor["what"], floors.verdict(floor), floors.evidence(floor),
               floors.verdict(chance) if chance else "-", floors.evidence(chance) if chance else "-"]


def first_sections(result):
    """What the terminal shows, too."""
    found = []
    experiments = result["experiments"]
    for where, judgements in judged(result).items():
        found.append(Section(f"What was to be reached, {where}", [
            "It holds if all rounds say so and does not if none does; between them it is open. All tiers on Beeline; of two TCPs, "
            "the second stack on TCP is held against the first: what chance alone makes of the same floor."], [(FLOORS, list(floor_rows(judgements)))]))
    if experiments:
        found.append(Section("Loads", [
            confidence(experiments), started(experiments), "x TCP: by TCP's sample of the same round. TCP again: a second stack on TCP, of which "
            "x TCP is what chance alone makes. Late: above the specification's limit; scaled: above the limit times the factor by which "
            "think times are shortened. CPU: all tiers and the browsers, for each interaction. Disk paused: the longest time in which it "
            "ended none of the requests that it had."], [(HEAD, [row for experiment in experiments for row in rows_of(experiment)])]))
        found.append(Section("Whether it is what it should be", [
            "Asked again: requests for which a kept connection was closed before anything of an answer came. Began late: interactions of the "
            "open loop that the one before held up. Lanes: of the connections from browsers, web server and application server that were there "
            "or were made while it was measured, those on lanes. Shares off: the largest difference of an interaction's share from the "
            "specification's. Others: the most CPU that other programs used in a round. Pace: how fast the CPUs did a fixed piece of work before and after "
            "the slowest sample, by the fastest of the run: where it is low neighbours of this virtual machine slow it, which is in nobody's CPU time."],
            [(ASIDES, [row for experiment in experiments for row in asides_of(experiment, fastest_pace(experiments))])]))
        found.append(Section("What the tiers use for an interaction", [
            "Medians. Switches: a thread that waits gives its CPU up (voluntary), or it is taken from it (involuntary). Sleeps, bells and spins "
            "are the library's in the tier; spins paid ended with news, spins failed with none, spared ones were cut short for others' sake."],
            [(TIER_HEAD, [row for experiment in experiments for row in tier_rows(experiment)])]))
    found += sweep_sections(result, confidence)
    return found + list(last_sections(result))


def last_sections(result):
    if kills := result.get("kills"):
        rows = [[f"kill -9: {kill['tier']}", name, kill["up_again_after_s"], kill["site_recovered_after_s"], kill["errors"],
                 *(kill["orders"][what] for what in ("sent", "confirmed", "lost", "doubled", "torn"))]
                for name, of_column in kills.items() for kill in of_column]
        yield Section("Kills", [], [(["", "column", "up s", "recovered s", "errors", "orders sent", "confirmed", "lost", "doubled", "torn"], rows)],
                      [over_time(f"kill -9 of {kill['tier']} over {name}", "WIPS and errors each second",
                                 {"WIPS": kill["wips"], "errors": kill["errors_over_time"]}, (kill["killed_s"],))
                       for name, of_column in kills.items() for kill in of_column])
    if profiles := result.get("profiles"):
        rows = [[tier, name, ", ".join(f"{library} {share:.0f} %" for library, share in found["libraries"][:6])]
                for name, tiers in profiles.items() for tier, found in tiers.items()]
        seen = any(library.startswith("[kernel") for tiers in profiles.values() for found in tiers.values() for library, _ in found["libraries"])
        notes = [] if seen else ["Of what runs outside the kernel: kernel.perf_event_paranoid lets only root look into it."]
        yield Section("Where the CPU goes", notes, [(["tier", "column", "shares of its samples"], rows)])
    if told := result.get("stat"):
        rows = [[where, tier, found["accelerated"], found["fallen_back"], ", ".join(f"{reason} {count}" for reason, count in found["reasons"].items())]
                for where, tiers in told.items() for tier, found in tiers.items()]
        yield Section("Connections", [], [(["where", "tier", "on lanes", "on TCP", "why"], rows)])


def short(kind):
    return kind.replace("customer_registration", "registration").replace("_", " ")


def section_of(experiment, ramp_up):
    """WIPS over time and late responses by interaction, as the document draws them, with a table of both."""
    columns = experiment["columns"]
    kinds = sorted(next(iter(columns.values()))["interactions"])
    groups = [short(kind) for kind in kinds]
    of = lambda key: {name: [figures["interactions"][kind][key] for kind in kinds] for name, figures in columns.items()}
    series = {name: figures["wips_over_time"] for name, figures in columns.items()}
    marks = (ramp_up, ramp_up + experiment["measured_s"])
    drawings = [
        over_time(f"Web interactions per second, {experiment['mix']} mix", "WIPS, average of the rounds; between the lines it is measured", series, marks),
        bars("Late responses by interaction", "% above the specification's limit, shortened as think times are", groups, of("late_scaled_percent")),
        bars("Response times by interaction", "ms within which nine of ten are answered", groups, of("p90_ms"))]
    first = next(iter(columns.values()))["interactions"]
    rows = [[short(kind), f"{first[kind]['share_specified_percent']:.2f}",
             *(f"{figures['interactions'][kind]['share_percent']:.2f}" for figures in columns.values()),
             *(f"{figures['interactions'][kind]['late_percent']:.2f} / {figures['interactions'][kind]['late_scaled_percent']:.1f}"
               for figures in columns.values()),
             *(f"{figures['interactions'][kind]['p90_ms']:.1f}" for figures in columns.values())] for kind in kinds]
    head = ["interaction", "share %", *(f"{name} share" for name in columns), *(f"{name} late / scaled %" for name in columns),
            *(f"{name} p90 ms" for name in columns)]
    seconds = [[second, *(values[second] for values in series.values())] for second in range(min(map(len, series.values())))]
    return Section(experiment["name"], [f"{experiment['rounds']} rounds."], [(head, rows), (["second", *(f"{name} WIPS" for name in columns)], seconds)], drawings)


def plain(result):
    return "\n\n".join(as_text(section) for section in first_sections(result))


CSV_HEAD = ["load", "mix", "browsers", "rate", "column", "tier_or_interaction", "figure", "rounds", "median", "least", "greatest"]


def csv_of(result):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_HEAD)
    for experiment in [*result["experiments"], *result.get("sweep", {}).get("cells", ())]:
        head = [experiment["name"], experiment["mix"], experiment["browsers"], experiment["rate"] or ""]
        for name, figures in experiment["columns"].items():
            for part, figure, value in _values(figures):
                writer.writerow([*head, name, part, figure, value["n"], value["median"], value["least"], value["greatest"]])
    return out.getvalue()


def _values(figures):
    for key, value in figures.items():
        if key in ("cpu", "cpu_ms_by_tier", "cpu_ratio_by_tier"):
            yield from ((tier, key, figure) for tier, figure in value.items() if figure)
        elif key == "tiers":
            yield from ((tier, name, figure) for tier, more in value.items() for name, figure in more.items())
        elif key == "interactions":
            for kind, more in value.items():
                for name, figure in more.items():
                    single = {"n": figures["wips"]["n"], "median": figure, "least": "", "greatest": ""}
                    yield kind, name, figure if isinstance(figure, dict) else single
        elif isinstance(value, dict) and "median" in value:
            yield "", key, value


def write(result, directory):
    """All files of the report. Returns the page."""
    machine = result["machine"]
    lines = [", ".join(f"{key}: {value}" for key, value in machine.items()),
             f"{result['items']} items, {result['customers']} customers. Not a TPC result: think times are shortened, and nobody has audited it."]
    if result.get("ended_early"):
        lines.append(f"The run ended early: {result['ended_early']}. What is told is of what was whole by then.")
    sections = first_sections(result) + [section_of(experiment, result["ramp_up"]) for experiment in result["experiments"]]
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    for section in sections:
        for file, drawing in zip(files_of(section), section.drawings):
            (directory / "figures" / file).write_text(alone(drawing))
    (directory / "report.md").write_text(markdown(TITLE, lines, sections))
    (directory / "report.csv").write_text(csv_of(result))
    page = directory / "report.html"
    page.write_text(html_page(TITLE, lines, sections))
    return page
