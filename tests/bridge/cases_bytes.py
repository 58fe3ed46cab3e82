"""Every byte arrives, once and in order, however it is sent, moved and ended."""

import signal
import time

from cases_basic import reasons
from world import case, note, until, world

BULK = 100 << 20
# Settings under which bulk data goes quite different ways.
WAYS = {
    "default": {},
    "pull": {"pull_over_tcp": 1, "pull_min": 4096, "inline_max": 0},
    "push": {"pull_min": (1 << 32) - 1, "inline_max": 0},
    "inline": {"inline_max": 8000, "pull_min": (1 << 32) - 1},
    "small_chunks": {"chunk": 4096, "inline_max": 0},
    "large_chunks": {"chunk": 16 << 20, "pull_min": (1 << 32) - 1},
    "pull_small": {"pull_over_tcp": 1, "chunk": 4096, "pull_min": 4096, "inline_max": 0},
}


def carried(a, b, opened=None):
    """Checks that the connections went over the bridge, and ended well."""
    a.world.quiet()
    if opened is not None:
        # On a busy host a few may go by TCP, because the bridge did not answer in time.
        few = opened // 16
        assert opened - few <= a.totals()["opened"] <= opened, a.totals()


def bulk(way, total):
    a, b = world(tunables=WAYS[way], fresh=True).hosts
    _, port = b.serve("any")
    client = a.app("duplex", b.address, port, total, total)
    facts = client.facts()
    client.finish()
    carried(a, b, 1)
    totals = a.totals()
    note(f"{way}: {facts['megabytes_per_second']:.0f} MB/s, longest pause {facts['pause']:.2f} s; "
         f"pushes {totals['pushes']}, pulls {totals['pulls']}, inlined {totals['inlined_bytes'] >> 20} MiB")
    assert totals["reset"] == 0, totals
    return totals


@case(120)
def both_directions():
    """100 MiB both ways at once, in sends of 1 B to 3 MiB."""
    bulk("default", BULK)


@case(120)
def both_directions_pulled():
    """The same with everything pulled that can be."""
    assert bulk("pull", BULK)["pulls"] > 100


@case(120)
def both_directions_pushed():
    """The same with everything pushed that can be."""
    totals = bulk("push", BULK)
    assert totals["pulls"] == 0 and totals["pushes"] > 100


@case(120)
def in_small_pieces():
    """Small chunks, pushed and pulled."""
    bulk("small_chunks", BULK >> 2)
    bulk("pull_small", BULK >> 2)


@case(120)
def in_large_pieces():
    """Chunks larger than a ring, and the most in messages."""
    bulk("large_chunks", BULK >> 1)
    bulk("inline", BULK >> 2)


@case(120)
def settings_change_in_mid_transfer():
    """Settings change while bytes move."""
    a, b = (made := world(tunables={"pull_over_tcp": 1})).hosts
    _, port = b.serve("any")
    client = a.app("duplex", b.address, port, 2 * BULK, 2 * BULK)
    ways, turn = list(WAYS.values()), 0
    while client.process.poll() is None:
        for key, value in {"inline_max": 4096, "pull_min": 262144, "chunk": 65536, **ways[turn % len(ways)]}.items():
            made.set(key, value)
        turn += 1
        time.sleep(0.1)
    client.finish()
    note(f"{turn} changes")
    carried(a, b, 1)


@case(120)
def sixty_four_at_once():
    """64 connections at once, both directions, by each way."""
    for way in ("default", "pull", "push"):
        made = world(tunables=WAYS[way], fresh=True)
        a, b = made.hosts
        _, port = b.serve("any")
        facts = (client := a.app("duplex", b.address, port, 1 << 20, 1 << 20, 64)).facts()
        client.finish()
        note(f"{way}: {facts['megabytes_per_second']:.0f} MB/s")
        carried(a, b, 64)
        made.no_breach()


@case(60)
def small_messages_pipelined():
    """Many small messages without waiting for answers."""
    a, b = world().hosts
    _, port = b.serve("any")
    for size in (1, 100, 5000):
        a.app("pipelined", b.address, port, 20000, size).finish()
    carried(a, b, 3)


@case(90)
def a_thousand_connections():
    """A thousand connections are open at once, over one link."""
    # A server that a busy machine stalls leaves some of its clients to TCP, but not each time.
    for last_try in (False, False, True):
        a, b = world(fresh=True).hosts
        _, port = b.serve("any")
        client = a.app("many", b.address, port, 1000)
        assert client.facts() == {"open": 1000}
        assert len(a.data()["connections"]) == a.totals()["opened"], a.totals()
        assert len(a.data()["links"]) == 1
        opened = a.totals()["opened"]
        client.say("")
        assert client.facts() == {"again": 1000}
        client.say("")
        client.finish()
        if opened > 940:
            carried(a, b, 1000)
            return
        assert not last_try, opened
        note(f"only {opened} went over the bridge: once more")


@case(60)
def slow_reader():
    """A reader that sleeps for seconds stops its sender, and nobody else; then it gets everything."""
    a, b = world().hosts
    _, port = b.serve("any")
    client = a.app("slow", b.address, port, 64 << 20, 3)
    time.sleep(1)
    a.app("duplex", b.address, port, 10 << 20, 10 << 20).finish()
    facts = client.facts()
    assert facts["answer"] == "good", facts
    assert facts["sending"] > 1.5, facts
    carried(a, b, 2)


@case(60)
def half_closes():
    """Either end ends its direction first, and the other goes on."""
    a, b = world().hosts
    server, port = b.serve("any")
    client = a.app("first", b.address, port, 20 << 20)
    assert client.facts() == {"answer": "hello"}
    client.finish()
    assert server.facts() == {"received": 20 << 20}
    carried(a, b, 1)


@case(60)
def both_end_and_nobody_closes():
    """When both ends have shut down their directions the bridges are done, though nobody closes; what lies unread is read."""
    a, b = (made := world()).hosts
    server, port = b.serve("any")
    # No more than the client's ring holds.
    client = a.app("shut", b.address, port, 100_000)
    until(lambda: a.totals()["opened"] == 1, 10, "the connection")
    made.quiet(5)
    server.kill()
    client.say("")
    assert client.facts() == {"ended": True}
    client.kill()
    carried(a, b, 1)


@case(60)
def resets():
    """Closing with bytes unread, and with SO_LINGER 0, resets the connection."""
    a, b = world().hosts
    _, port = b.serve("any")
    assert a.app("leave", b.address, port).facts() == {"end": "ECONNRESET"}
    assert a.app("linger", b.address, port).facts() == {"end": "ECONNRESET"}
    carried(a, b, 2)


@case(150)
def killed_in_mid_transfer():
    """Whoever is killed leaves its peer with an error or an end, and bridges with nothing; by each way."""
    for way in ("default", "pull", "push"):
        made = world(tunables=WAYS[way], fresh=True)
        a, b = made.hosts
        # The other connection is not concerned.
        _, other = b.serve("any")
        bystander = a.app("duplex", b.address, other, 50 << 20, 50 << 20)
        for turn in range(3):
            for kind in ("pour", "swallow"):
                server, port = b.serve("any")
                client = a.app(kind, b.address, port)
                client.facts()
                time.sleep(0.2)
                server.kill()
                end = client.facts()["end"]
                assert end in ("ECONNRESET", "EPIPE") if kind == "pour" else end in ("ECONNRESET", "eof"), end
                client.finish()
                server, port = b.serve("any")
                client = a.app(kind, b.address, port)
                client.facts()
                time.sleep(0.2)
                client.kill()
                if kind == "pour":
                    end = server.facts()["end"]
                    assert end in ("ECONNRESET", "eof"), end
                server.kill()
        bystander.finish()
        carried(a, b, 13)
        assert a.totals()["links_lost"] == b.totals()["links_lost"] == 0, a.totals()
        made.no_breach()


@case(60)
def server_that_never_accepts():
    """A connection whose server never accepts and then dies is reset."""
    a, b = world().hosts
    server, port = b.serve("deaf")
    client = a.app("wait", b.address, port)
    client.facts()
    time.sleep(0.5)
    server.kill()
    assert client.facts() == {"end": "ECONNRESET"}
    a.world.quiet()


@case(60)
def server_whose_children_accept():
    """A listener that is only watched with the library, and accepted from without, serves over TCP, and soon."""
    a, b = world().hosts
    _, port = b.serve("inetd")
    for _ in range(3):
        began = time.monotonic()
        assert a.app("ping", b.address, port, 0.1).facts()["count"] > 0
        assert time.monotonic() - began < 3
    assert a.totals()["opened"] == b.totals()["accepted"] == 0
    a.world.quiet()


@case(60)
def server_that_accepts_late():
    """A server that takes its first client after a second serves it over TCP; one that has taken some keeps the next waiting."""
    a, b = world().hosts
    _, port = b.serve("late")
    client = a.app("names", b.address, port)
    assert client.facts()["ephemeral"]
    assert reasons(client, a) == {"bridge_no_door": 1}
    client.say("")
    client.finish()
    server, port = b.serve("any")
    a.app("ping", b.address, port, 0.1).finish()
    server.kill(signal.SIGSTOP)
    client = a.app("ping", b.address, port, 0.1)
    until(lambda: a.totals()["opened"] == 2, 10, "the second connection")
    time.sleep(0.5)
    server.kill(signal.SIGCONT)
    assert client.facts()["count"] > 0
    client.finish()
    carried(a, b, 2)


@case(60)
def urgent_data():
    """An urgent byte comes between those it was sent between, and soon."""
    a, b = world().hosts
    _, port = b.serve("any")
    count = 20
    # However short they are.
    facts = a.app("urgent", b.address, port, count, options=["bridge_short_lived=on"]).facts()
    assert facts["parts"] == [["before", "!", "after"]] * count, facts
    note(f"{facts['seconds'] / count * 1e3:.0f} ms for each connection")
    # What is not urgent is acknowledged after up to 100 ms.
    assert facts["seconds"] / count < 0.025, facts
    carried(a, b, count)


@case(60)
def connecting_without_blocking():
    """Connections made without blocking, waited for by poll and by epoll."""
    a, b = world().hosts
    _, port = b.serve("any")
    for kind in ("poll", "epoll"):
        a.app("polled", b.address, port, kind).finish()
    carried(a, b)


@case()
def rings_of_different_sizes():
    """What one end keeps is acknowledged before its ring is full, however large the other end's is."""
    a, b = world().hosts
    for ours, theirs in ((65536, 4194304), (4194304, 65536)):
        _, port = b.serve("any", options=[f"ring_bytes={theirs}"])
        client = a.app("duplex", b.address, port, 50 << 20, 50 << 20, options=[f"ring_bytes={ours}"])
        facts = client.facts()
        client.finish()
        note(f"rings of {ours >> 10} and {theirs >> 10} KiB: {facts['megabytes_per_second']:.0f} MB/s")
        # Acknowledged by the clock alone it would be 1 MB/s.
        assert facts["megabytes_per_second"] > 5
