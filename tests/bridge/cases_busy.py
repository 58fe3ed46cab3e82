"""The bridge where all CPUs are busy, beside TCP: what a message takes, and what it costs its host."""

import os
import statistics
import sys

from world import case, note, until, world

APP = __file__.replace("cases_busy.py", "busy.py")
ROUNDS = int(os.environ.get("ROUNDS", 1))
SECONDS = float(os.environ.get("SECONDS", 0.5))


def app(host, *words, **how):
    return host.run(sys.executable, "-u", "-B", APP, *words, **how)


def used(host):
    """CPU time of its bridge, in seconds."""
    with open(f"/proc/{host.bridge.pid}/stat", encoding="ascii") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def measured(a, b, beeline):
    server = app(b, "serve", b.address, beeline=beeline)
    client = app(a, "ask", b.address, server.line(), beeline=beeline)
    client.line()
    assert len(a.data()["connections"]) == beeline, "it goes the other way"
    before = used(a) + used(b)
    client.say(str(SECONDS))
    facts = client.facts()
    bridges = used(a) + used(b) - before if beeline else 0
    client.finish()
    facts["cpu"] = (facts["cpu"] + float(server.line()) + bridges) / facts["count"] * 1e6
    server.finish()
    return facts


@case(120)
def busy_cpus_beside_tcp():
    """Figures: 8 B round trips over the bridge and over TCP in turns, with none, one and two busy programs for each CPU."""
    made = world()
    a, b = made.hosts
    spinning = []
    for busy in (0, 1, 2):
        while len(spinning) < busy * os.cpu_count():
            spinning.append(app(a, "spin", beeline=False))
            spinning[-1].line()
        results = {"bridge": [], "tcp": []}
        for _ in range(ROUNDS):
            for name in results:
                results[name].append(measured(a, b, name == "bridge"))
        for name, runs in results.items():
            median, p99, cpu = (statistics.median(run[key] for run in runs) for key in ("median", "p99", "cpu"))
            note(f"{busy} for each CPU, {name}: median {median:.1f} us, p99 {p99:.0f} us, {cpu:.1f} us of CPU for each")


@case(90)
def busy_cpus_leave_the_way_to_tcp():
    """With busy CPUs the slower bridge is left: new connections go by TCP, and one that began on the bridge has every answer."""
    made = world(tunables={"compare_s": 1})
    a, b = made.hosts
    server = app(b, "serve", b.address)
    old = app(a, "ask", b.address, server.line())
    old.line()
    assert len(a.data()["connections"]) == 1, "it is used until it was measured"
    spinning = [app(a, "spin", beeline=False) for _ in range(os.cpu_count())]
    for program in spinning:
        program.line()

    def slower():
        old.say("0.2")
        old.facts()
        [way] = a.data()["paths"]
        return (way["short"] or {}).get("slower") and way["short"]

    way = until(slower, 40, "the verdict")
    note(f"the bridge's own measure: {way['bridge_ns'] / 1e3:.0f} us, TCP {way['tcp_ns'] / 1e3:.0f}")
    # One of sixteen is tried on the bridge again: not two in a row.
    for _ in range(2):
        other = app(b, "serve", b.address)
        new = app(a, "ask", b.address, other.line())
        new.line()
        if len(a.data()["connections"]) == 1:
            break
        new.say("0.1")
        new.facts()
        new.finish()
    told = {}
    for name, client in (("old", old), ("new", new)):
        client.say("1")
        told[name] = client.facts()
    note("; ".join(f"{name}: median {facts['median']:.1f} us, p99 {facts['p99']:.0f}" for name, facts in told.items()))
    assert len(a.data()["connections"]) == 1, "the new one is TCP's, and the old one where it was"
    assert all(facts["count"] > 0 for facts in told.values())
    old.finish()
    new.finish()
