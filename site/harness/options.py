"""What a run is asked to do."""

import argparse
import sys

from .databases import DATABASES
from .plan import MIXES
from .store import ROOT
from .sweep import LOADS
from .tiers import APPLICATION_SERVERS
from .webservers import WEB_SERVERS

PARTS = ("host", "half", "profile", "kill", "short", "hosts", "sweep")
PARTS_BY_DEFAULT = PARTS[:-1]


def options(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="a small store, one mix, two short rounds: some five minutes")
    add("--parts", default=",".join(PARTS_BY_DEFAULT), help="what is done: host (all mixes on one host, with --browsers), half (open loop at "
        "half of what TCP does there), profile (where the CPU goes, by perf), kill (kill -9 of each tier), short (without pools and kept "
        "connections), hosts (network namespaces with bridges), sweep (all mixes at each of --loads)")
    add("--mixes", default=",".join(MIXES))
    add("--rounds", type=int, default=3, help="each with tiers started anew (but for short and hosts, which start once)")
    add("--browsers", type=int, default=200)
    add("--loads", default=",".join(map(str, LOADS)), help="numbers of browsers of the sweep")
    add("--resume", action="store_true", help="go on with the sweep that was ended in this work directory")
    add("--think-factor", type=float, default=0.005, help="think times are 7 s times this; 0.005 saturates some CPUs with 200 browsers")
    add("--limit-factor", type=float, default=0.02, help="a second count of late responses has the specification's limits times this")
    add("--measure", type=float, default=4.0, help="seconds that a sample measures")
    add("--warm-up", type=float, default=6.0, help="seconds for each stack, in two mixes")
    add("--items", type=int, default=10000, help="1,000 to 100,000")
    add("--scale", type=int, default=50, help="2,880 customers for each")
    add("--seed", type=int, default=1)
    add("--rate", help="bandwidth of each veth between the namespaces, as tc takes it (1gbit)")
    add("--delay", help="delay of each veth, one way, as tc takes it (100us)")
    add("--web", choices=WEB_SERVERS, default="nginx", help="the web server")
    add("--server", choices=APPLICATION_SERVERS, default="jetty", help="the application server")
    add("--database", choices=DATABASES, default="mariadb", help="the database")
    add("--options", action="append", default=[], metavar="KEY=VALUE", help="an option of the library for all tiers")
    add("--not-durable", action="store_true", help="do not wait for the disk at each commit")
    add("--programs", help="where beeline and beelined are (default: target/release)")
    add("--work", default=str(ROOT / "target/site"), help="where everything is kept")
    add("--json", metavar="FILE", help="all figures")
    add("--report", metavar="DIRECTORY", help="where report.html, report.md, report.csv and figures go (default: the work directory)")
    if "--quick" in sys.argv:
        parser.set_defaults(items=1000, scale=5, rounds=2, measure=4.0, warm_up=3.0, mixes="shopping", parts="host,kill,hosts", loads="75,200,400")
    chosen = parser.parse_args()
    if wrong := complaint(chosen):
        parser.error(wrong)
    return chosen


def complaint(chosen):
    """What is wrong with the options together, if anything is."""
    parts, mixes = chosen.parts.split(","), chosen.mixes.split(",")
    for option, names, known in (("--parts", parts, PARTS), ("--mixes", mixes, MIXES)):
        if unknown := [name for name in names if name not in known]:
            return f"{option}: there is no {', no '.join(map(repr, unknown))}, but {', '.join(known)}"
    for option, value, least in (("--rounds", chosen.rounds, 1), ("--browsers", chosen.browsers, 1), ("--items", chosen.items, 1000),
                                 ("--scale", chosen.scale, 1), ("--measure", chosen.measure, 1), ("--warm-up", chosen.warm_up, 1),
                                 ("--think-factor", chosen.think_factor, 0), ("--limit-factor", chosen.limit_factor, 0)):
        if not value >= least:
            return f"{option}: at least {least}"
    loads = chosen.loads.split(",")
    if not all(load.isdigit() and int(load) > 0 for load in loads) or len(set(loads)) != len(loads):
        return f"--loads: numbers of browsers, each once, and not {chosen.loads}"
    if "sweep" in parts and len(loads) < 2:
        return "--loads: two at least, or where a site saturates cannot be told"
    if "half" in parts and not ("host" in parts and "shopping" in mixes):
        return "--parts half has its rate from what host does in the shopping mix: both have to be asked for"
    return None
