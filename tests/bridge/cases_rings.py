"""What rings cost: memory that is registered, bytes that links account for, and a bridge that has none to give."""

from cases_bytes import WAYS
from world import case, note, until, world

LITTLE = 5000
MUCH = 8 << 20


def registered(host):
    return sum(rail["registered_bytes"] for rail in host.data()["rails"])


@case(120)
def quiet_connections_register_nothing():
    """Connections that say little register no ring; a stream does, and lets go of it when it is over."""
    for way in ("pull", "push"):
        made = world(tunables={**WAYS[way], "inline_max": 4096}, fresh=True)
        a, b = made.hosts
        _, port = b.serve("any")
        client = a.app("pooled", b.address, port, 200, LITTLE)
        client.line()
        assert a.totals()["opened"] > 150, a.totals()
        assert registered(a) == registered(b) == 0, way
        # Again after both have let go: rings are asked for, and granted, anew.
        for _ in range(2):
            before = a.totals()
            client.say(str(MUCH))
            client.line()
            most = [registered(host) for host in (a, b)]
            assert min(most) > 0, (way, most)
            after = a.totals()
            assert after["pushes"] + after["pulls"] > before["pushes"] + before["pulls"], after
            until(lambda: registered(a) == registered(b) == 0, 12, "the end of all registrations")
        note(f"{way}: {most[0] >> 20} and {most[1] >> 20} MiB were registered")
        client.kill()
        made.quiet()
        assert a.totals()["reset"] == b.totals()["reset"] == 0


@case(60)
def a_host_that_registers_nothing():
    """Bytes come to a host that can register no ring, and from it: in messages, and nothing is reset."""
    for way in ("pull", "push"):
        made = world(tunables=WAYS[way], fresh=True)
        a, b = made.hosts
        b.set("registered_max", 1)
        _, port = b.serve("any")
        a.app("duplex", b.address, port, MUCH, MUCH).finish()
        made.quiet()
        for host in (a, b):
            totals = host.totals()
            assert totals["pulls"] == totals["pushes"] == totals["reset"] == 0 < totals["inlined_bytes"], totals
        assert registered(b) == 0


@case(60)
def what_is_left_unread_burdens_no_link():
    """Clients close with megabytes unread: no link has bytes in flight afterwards, and streams use both rails."""
    made = world(rails=2)
    a, b = made.hosts
    _, port = b.serve("any")
    client = a.app("quits", b.address, port, 5)
    client.line()
    made.quiet()
    for host in (a, b):
        links = host.data()["links"]
        assert all(link["in_flight_bytes"] == 0 for link in links), [link["in_flight_bytes"] for link in links]
    before = {link["rail"]: link["bytes_sent"] for link in b.data()["links"]}
    a.app("duplex", b.address, port, 1 << 20, 100 << 20).finish()
    sent = {link["rail"]: link["bytes_sent"] - before[link["rail"]] for link in b.data()["links"]}
    note(", ".join(f"{rail} {count >> 20} MiB" for rail, count in sent.items()))
    assert len(sent) == 2 and min(sent.values()) > 1 << 20, sent
