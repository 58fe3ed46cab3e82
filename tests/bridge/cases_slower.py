"""The bridge never loses to TCP: what is TCP underneath is not used unasked, a way that is slower is left, and a stop resets nothing."""

import os
import signal
import subprocess
import time

from cases_basic import reasons
from world import BEELINED, case, note, until, world


def tell(program, what=""):
    program.say(what)
    return program.facts()


@case()
def tcp_underneath_is_no_rail_unless_asked():
    """Without a rule that names its provider a port of libfabric's `tcp` is no rail, and everything goes by TCP."""
    made = world(start=False)
    a, b = made.hosts
    for host in (a, b):
        host.write_config()
        text = host.config.read_text()
        host.config.write_text(text.replace('allow = [{ provider = "tcp" }]\n', ""))
        host.start_bridge()
    until(lambda: all(peer["is_up"] for host in (a, b) for peer in host.status()["peers"]), 10, "the peers")
    assert not a.data()["rails"], a.data()["rails"]
    a.has_logged("there is no rail")
    table = a.sh(BEELINED, "rails", "--config", str(a.config))
    assert "TCP underneath" in table, table
    _, port = b.serve("any")
    client = a.app("names", b.address, port)
    assert client.facts()["ephemeral"]
    assert reasons(client, a) == {"bridge_no_rail": 1}
    client.say("")
    client.finish()


def ways(host):
    [way] = host.data()["paths"]
    return way


@case(90)
def a_way_that_is_slower_goes_by_tcp():
    """Where the bridge is slower, new connections go by TCP with the reason, old ones go on; when it is not any more, it is used again."""
    made = world(tunables={"compare_s": 1})
    a, b = made.hosts
    _, port = b.serve("any")
    old = a.app("many", b.address, port, 3)
    assert old.facts() == {"open": 3}
    assert len(a.data()["connections"]) == 3, "it is used until it was measured"

    def verdict():
        way = ways(a)
        return way if (way["short"] or {}).get("slower") else None

    way = until(verdict, 20, "the verdict")
    assert way["short"]["tcp_ns"] * 1.1 < way["short"]["bridge_ns"], way
    note(f"short exchanges: {way['short']['bridge_ns'] / 1e3:.0f} us over the bridge, {way['short']['tcp_ns'] / 1e3:.0f} over TCP")
    a.has_logged("slower than TCP for short messages")
    assert "TCP is faster" in a.ask_bridge("status")
    time.sleep(0.1)
    client = a.app("many", b.address, port, 30)
    assert client.facts() == {"open": 30}
    # One of sixteen is tried, unless streams are slower as well.
    carried = [c for c in a.data()["connections"]]
    assert len(carried) <= 3 + 2, carried
    assert reasons(client, a).get("bridge_slower", 0) >= 1, reasons(client, a)
    assert tell(client) == {"again": 30}
    assert tell(old) == {"again": 3}, "those that stand go on"
    client.finish()
    old.finish()
    for host in (a, b):
        # The way over which TCP is measured takes two milliseconds for a packet from now on.
        host.sh("tc", "qdisc", "add", "dev", "control", "root", "tbf", "rate", "256kbit", "burst", "1600", "latency", "50ms")

    def is_wanted_and_used():
        client = a.app("many", b.address, port, 1)
        assert client.facts() == {"open": 1}
        used = len(a.data()["connections"])
        assert tell(client) == {"again": 1}
        client.finish()
        return used

    until(is_wanted_and_used, 40, "the way back to the bridge")
    a.has_logged("as fast as TCP again for short messages")


@case(60)
def measuring_is_bounded_and_unseen():
    """What measures is in no list and no count, ends with its use, and takes next to no time of a CPU."""
    made = world(tunables={"compare_s": 1})
    a, b = made.hosts
    _, port = b.serve("any")
    client = a.app("many", b.address, port, 1)
    assert client.facts() == {"open": 1}
    until(lambda: ways(a)["there"], 10, "a round")
    for host in (a, b):
        data = host.data()
        assert len(data["connections"]) <= 1, data["connections"]
        assert data["totals"]["opened"] + data["totals"]["accepted"] == 1, data["totals"]
    assert tell(client) == {"again": 1}
    client.finish()
    made.quiet()
    time.sleep(1.5)
    for host in (a, b):
        assert host.totals()["reset"] == 0 and host.totals()["closed"] == 1, host.totals()
        with open(f"/proc/{host.bridge.pid}/stat", encoding="ascii") as stat:
            before = sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
        descriptors = len(os.listdir(f"/proc/{host.bridge.pid}/fd"))
        time.sleep(2)
        with open(f"/proc/{host.bridge.pid}/stat", encoding="ascii") as stat:
            ticks = sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) - before
        assert ticks <= 4, f"{ticks} ticks in two seconds without use"
        assert len(os.listdir(f"/proc/{host.bridge.pid}/fd")) <= descriptors


@case(60)
def a_peer_that_cannot_be_measured_is_used():
    """Where the TCP end of measuring is not reached the bridge is used, and the status says why there is no comparison."""
    made = world(tunables={"compare_s": 1})
    a, b = made.hosts
    b.sh("nft", "add table inet t; add chain inet t i { type filter hook input priority 0; }; "
                "add rule inet t i iifname control tcp dport != 4797 ct state new drop")
    _, port = b.serve("any")
    client = a.app("many", b.address, port, 2)
    assert client.facts() == {"open": 2}
    until(lambda: ways(a)["trouble"], 10, "the trouble")
    a.has_logged("cannot be compared with TCP", seconds=10)
    until(lambda: "not compared" in a.ask_bridge("status"), 10, "the trouble in the status")
    assert len(a.data()["connections"]) == 2
    assert tell(client) == {"again": 2}
    client.finish()


def drained(host, seconds=10):
    host.bridge.wait(timeout=seconds)
    code, host.bridge = host.bridge.returncode, None
    host.socket.unlink(missing_ok=True)
    return code


@case(60)
def a_stop_waits_for_what_stands():
    """Told to stop, a bridge takes nothing new at either end, lets connections end, and then stops; a new one is there at once."""
    made = world(tunables={"drain_s": 30})
    a, b = made.hosts
    _, port = b.serve("any")
    for stopping, how in ((b, "signal"), (a, "command")):
        old = a.app("many", b.address, port, 3)
        assert old.facts() == {"open": 3}
        if how == "signal":
            stopping.bridge.send_signal(signal.SIGTERM)
            waiting = None
        else:
            waiting = subprocess.Popen(stopping.inside([BEELINED, "drain", "--socket", str(stopping.socket)]),
                                       stderr=subprocess.PIPE, text=True)
        until(lambda: stopping.data()["draining"], 5, "the drain")
        assert stopping.data()["draining"]["connections"] == 3
        assert "STOPS: takes no new connections; 3 are left" in stopping.ask_bridge("status")
        client = a.app("names", b.address, port)
        assert client.facts()["ephemeral"]
        assert reasons(client, a) == {"bridge_leaving": 1}
        client.say("")
        client.finish()
        assert tell(old) == {"again": 3}, "those that stand go on"
        old.finish()
        assert drained(stopping) == 0
        stopping.has_logged("3 are left", "stopped")
        if waiting:
            _, said = waiting.communicate(timeout=10)
            assert waiting.returncode == 0 and "3 connections are left" in said, said
        stopping.start_bridge()
        made.connected()
        time.sleep(2.1)  # What the library remembers of a refusal (REFUSED_NS).
        client = a.app("names", b.address, port)
        assert not client.facts()["ephemeral"]
        client.say("")
        client.finish()
        made.quiet()
        for host in (a, b):
            assert host.totals()["reset"] == 0, host.totals()


@case(60)
def a_stop_has_an_end():
    """What does not end in `drain_s` is reset then; a second signal, and SIGINT, reset at once."""
    made = world(tunables={"drain_s": 2})
    a, b = made.hosts
    _, port = b.serve("any")
    for what, most in ((signal.SIGTERM, 4), (signal.SIGINT, 1.5), ((signal.SIGTERM, signal.SIGTERM), 1.5)):
        client = a.app("many", b.address, port, 2)
        assert client.facts() == {"open": 2}
        began = time.monotonic()
        for one in what if isinstance(what, tuple) else (what,):
            a.bridge.send_signal(one)
            time.sleep(0.2)
        assert drained(a) == 0
        took = time.monotonic() - began
        assert took < most and (what != signal.SIGTERM or took > 1.5), (what, took)
        client.kill()
        a.start_bridge()
        made.connected()
