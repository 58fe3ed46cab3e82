"""The table for the terminal, and one file of HTML with the figures."""

import html

from .figures import bars, html_table, over_time, table, text
from .lanes import LINKS

TIERS = ("database", "application", "web", "browsers", "bridges")


def rows_of(experiment):
    for name, figures in experiment["columns"].items():
        yield [f"{experiment['name']}", name, text(figures["wips"], 0), text(figures["wips_ratio"], 2),
               text(figures["p50_ms"], 1), text(figures["p90_ms"], 1),
               f"{figures['late_percent']['median']:.2f}", f"{figures['late_scaled_percent']['median']:.1f}",
               text(figures["cpu_ms_per_interaction"], 2), text(figures["cpu_ratio"], 2), figures["disk_pause_ms_max"], figures["errors"]]


HEAD = ["load", "column", "WIPS", "x TCP", "median ms", "9 of 10 ms", "late %", "late % scaled", "CPU ms each", "x TCP", "disk paused ms", "errors"]


def asides_of(experiment):
    """What says whether the figures above are of what they should be of."""
    for name, figures in experiment["columns"].items():
        lanes = [f"{figures['lanes'][link]['share_percent']:.1f}" if link in figures["lanes"] else "-" for link in LINKS]
        yield [experiment["name"], name, figures["asked_again"],
               f"{figures['began_late_percent']:.2f}" if experiment["rate"] else "-", *lanes]


ASIDES = ["load", "column", "asked again", "began late %", *(f"lanes of {link} %" for link in LINKS)]


def confidence(experiments):
    """What the brackets are worth."""
    told = {(figures["wips"]["n"], figures["wips"]["confidence"]) for experiment in experiments
            for figures in experiment["columns"].values()}
    return " ".join(
        f"In brackets: the least and the greatest of {count} rounds, which hold the true median with a confidence of {100 * worth:.3g} %."
        if count > 1 else "One round: how far it is from the median is not known." for count, worth in sorted(told))


def plain(result):
    rows = [row for experiment in result["experiments"] for row in rows_of(experiment)]
    parts = [table(HEAD, rows), confidence(result["experiments"])] if rows else []
    if rows:
        parts.append(table(ASIDES, [row for experiment in result["experiments"] for row in asides_of(experiment)]))
    tiers = []
    for experiment in result["experiments"]:
        for name, figures in experiment["columns"].items():
            tiers.append([experiment["name"], name, *(f"{figures['cpu'][tier]['median']:.2f}" for tier in TIERS),
                          text(figures["cpu"]["others"], 2), f"{figures['cpu']['machine']['median']:.2f}",
                          *(f"{figures['cpu_ms_by_tier'][tier]['median']:.2f}" for tier in TIERS)])
    if tiers:
        parts.append(table(["CPUs used", "column", *TIERS, "others", "machine", *(f"{tier} ms" for tier in TIERS)], tiers))
    for experiment in result["experiments"]:
        off = {name: figures["share_off_most_points"] for name, figures in experiment["columns"].items()}
        parts.append(f"{experiment['name']}: shares of interactions differ from the specification's by at most "
                     + ", ".join(f"{value:.2f} points ({name})" for name, value in off.items()))
    for name, kills in result.get("kills", {}).items():
        rows = [[f"kill -9: {kill['tier']}", name, kill["up_again_after_s"], kill["site_recovered_after_s"], kill["errors"],
                 kill["orders"]["sent"], kill["orders"]["confirmed"], kill["orders"]["lost"], kill["orders"]["doubled"],
                 kill["orders"]["torn"]] for kill in kills]
        parts.append(table(["", "column", "up s", "recovered s", "errors", "orders sent", "confirmed", "lost", "doubled", "torn"], rows))
    for name, tiers in result.get("profiles", {}).items():
        rows = [[f"CPU over {name}: {tier}", ", ".join(f"{library} {share:.0f} %" for library, share in found["libraries"][:6])]
                for tier, found in tiers.items()]
        parts.append("\n".join(f"{first}: {rest}" for first, rest in rows))
    for where, tiers in result.get("stat", {}).items():
        parts.append("\n".join(f"connections, {where}: {tier}: {found['accelerated']} on lanes, {found['fallen_back']} on TCP"
                               + "".join(f", {reason} {count}" for reason, count in found["reasons"].items())
                               for tier, found in tiers.items()))
    return "\n\n".join(parts)


STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px } td, th { padding: .2em .6em; border-bottom: 1px solid #ddd;
text-align: right } td:first-child, th:first-child, td:nth-child(2), th:nth-child(2) { text-align: left }
svg { width: 100%; margin: .5em 0 } svg text { font: 11px sans-serif; fill: #444 } svg .title { font-weight: bold; font-size: 13px }
svg .small { font-size: 8.5px } svg .grid { stroke: #ddd } svg .mark { stroke: #b33; stroke-dasharray: 4 3 }
"""


def short(kind):
    return kind.replace("customer_registration", "registration").replace("_", " ")


def figures_of(experiment, ramp_up):
    columns = experiment["columns"]
    found = [f"<h2>{html.escape(experiment['name'])}</h2>"]
    marks = (ramp_up, ramp_up + experiment["measured_s"])
    found.append(over_time(f"Web interactions per second, {experiment['mix']} mix", "WIPS, average of the rounds; between the lines it is measured",
                           {name: figures["wips_over_time"] for name, figures in columns.items()}, marks))
    kinds = sorted(next(iter(columns.values()))["interactions"])
    groups = [short(kind) for kind in kinds]
    scaled = {name: [figures["interactions"][kind]["late_scaled_percent"] for kind in kinds] for name, figures in columns.items()}
    found.append(bars("Late responses by interaction", "% above the specification's limit, shortened as think times are", groups, scaled))
    slow = {name: [figures["interactions"][kind]["p90_ms"] for kind in kinds] for name, figures in columns.items()}
    found.append(bars("Response times by interaction", "ms within which nine of ten are answered", groups, slow))
    rows = [[short(kind), f"{next(iter(columns.values()))['interactions'][kind]['share_specified_percent']:.2f}",
             *(f"{figures['interactions'][kind]['share_percent']:.2f}" for figures in columns.values()),
             *(f"{figures['interactions'][kind]['late_percent']:.2f} / {figures['interactions'][kind]['late_scaled_percent']:.1f}"
               for figures in columns.values())] for kind in kinds]
    found.append(html_table(["interaction", "share %", *(f"{name} share" for name in columns),
                             *(f"{name} late / scaled %" for name in columns)], rows))
    return "\n".join(found)


def page(result):
    rows = [row for experiment in result["experiments"] for row in rows_of(experiment)]
    machine = result["machine"]
    parts = ["<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>The three-tier site</title>",
             f"<style>{STYLE}</style></head><body><h1>The three-tier site</h1>",
             f"<p>{html.escape(', '.join(f'{key}: {value}' for key, value in machine.items()))}</p>",
             f"<p>{result['items']} items, {result['customers']} customers. Medians of alternating rounds. "
             f"{html.escape(confidence(result['experiments']))} Late: above the specification's limit; scaled: above the limit times "
             "the factor by which think times are shortened. CPU: all tiers and the browsers, for each interaction. Disk paused: the "
             "longest time in which it ended none of the requests that it had.</p>", html_table(HEAD, rows),
             "<p>Asked again: requests for which a kept connection was closed before anything of an answer came. Began late: interactions "
             "of the open loop that the one before held up. Lanes: of the connections from browsers, web server and application server "
             "that were there or were made while it was measured, those on lanes.</p>",
             html_table(ASIDES, [row for experiment in result["experiments"] for row in asides_of(experiment)])]
    parts += [figures_of(experiment, result["ramp_up"]) for experiment in result["experiments"]]
    for name, kills in result.get("kills", {}).items():
        for kill in kills:
            parts.append(over_time(f"kill -9 of {kill['tier']} over {name}", "WIPS and errors each second",
                                   {"WIPS": kill["wips"], "errors": kill["errors_over_time"]}, (kill["killed_s"],)))
    parts.append("</body></html>\n")
    return "\n".join(parts)
