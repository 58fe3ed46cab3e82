"""Which connections of a site go over lanes, as `beeline stat` tells it: since its tiers began, and while something is measured."""

import json

from .hosts import Trouble, shell

# A link by the tier that counts it, and its role in it. Who makes a connection counts why it was left to TCP; browsers are gone when
# they could be asked, so the web server is.
LINKS = {"browsers": ("web", "server"), "web": ("web", "client"), "application": ("application", "client")}
# What is told of the library's work, by the counters of `beeline stat`; bells are told by connection, open ones, too.
WORK = {"sleeps": "sleeps", "spins_paid": "spins_paid", "spins_failed": "spins_failed", "spins_spared": "spins_spared",
        "kernel_looks": "epoll_kernel_looks"}


def processes(beeline):
    return json.loads(shell(beeline, "stat", "--json"))["processes"]


def stat(beeline, stack, emulator_pid=None):
    """What the library counted in the processes of each tier."""
    told = processes(beeline)
    tiers = {tier.name: set(tier.pids()) for tier in stack.tiers}
    if emulator_pid:
        tiers["browsers"] = {emulator_pid}
    found = {}
    for name, pids in tiers.items():
        sums = {"accelerated": 0, "fallen_back": 0, "reasons": {}, "counters": {}}
        for process in told:
            if process["pid"] in pids:
                sums["accelerated"] += process["accelerated"]
                sums["fallen_back"] += process["fallen_back"]
                for reason in process["reasons"]:
                    key = f"{reason['name']} ({reason['role']})"
                    sums["reasons"][key] = sums["reasons"].get(key, 0) + reason["count"]
                for counter, value in process["counters"].items():
                    sums["counters"][counter] = sums["counters"].get(counter, 0) + value
        found[name] = sums
    return found


def look(beeline, column):
    """For each link of a column that should have lanes: how many are open, and how many connections were made over lanes and TCP so far.
    And what the library counted in each tier."""
    if not column.stack.database.beeline:
        return {"links": {}, "work": {}}
    told, tiers = processes(beeline), {tier.name: set(tier.pids()) for tier in column.stack.tiers}
    links = {link: _counts(told, tiers[tier], role) for link, (tier, role) in LINKS.items() if link != "browsers" or column.accelerated}
    return {"links": links, "work": {name: _work([process for process in told if process["pid"] in pids]) for name, pids in tiers.items()}}


def _work(processes_of_tier):
    return {"bells": sum(process["doorbells_sent"] for process in processes_of_tier),
            **{name: sum(process["counters"][counter] for process in processes_of_tier) for name, counter in WORK.items()}}


def _counts(told, pids, role):
    ours = [process for process in told if process["pid"] in pids]
    return {"open": sum(connection["role"] == role for process in ours for connection in process["connections"]),
            "lanes": sum(process["counters"][f"connections_accelerated_{role}"] for process in ours),
            "tcp": sum(process["counters"][f"connections_fallen_back_{role}"] for process in ours)}


def between(before, after):
    """What each link had meanwhile: lanes that were there, or were made, and connections that were made over TCP."""
    before, after = before["links"], after["links"]
    return {link: {"lanes": before[link]["open"] + after[link]["lanes"] - before[link]["lanes"],
                   "tcp": after[link]["tcp"] - before[link]["tcp"]} for link in after}


def worked(before, after, interactions):
    """What the library did in each tier for an interaction, of all that were done meanwhile."""
    before, after = before["work"], after["work"]
    return {tier: {name: (count - before[tier][name]) / max(1, interactions) for name, count in counts.items()}
            for tier, counts in after.items()}


def check(column, found):
    """A figure of Beeline is one only if there were lanes: on every link, or on one at least where connections are short, which may be
    left to TCP by rule."""
    without = [link for link, counts in found.items() if counts["lanes"] <= 0]
    if without and (column.stack.pooled or len(without) == len(found)):
        raise Trouble(f"{column.name}: no connection of {' and '.join(without)} was on a lane while it was measured: {found}")


def shares(reports):
    """All rounds together, in percent."""
    found = {}
    for link in reports[0].get("lanes", {}):
        sums = {kind: sum(report["lanes"][link][kind] for report in reports) for kind in ("lanes", "tcp")}
        found[link] = {**sums, "share_percent": 100 * sums["lanes"] / max(1, sums["lanes"] + sums["tcp"])}
    return found
