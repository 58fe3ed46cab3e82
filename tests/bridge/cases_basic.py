"""What goes over the bridge, what does not, and why."""

import time

from world import case, note, until, world


def reasons(program, host):
    """Why a running program's connections were left to TCP, by `beeline stat`."""
    for process in host.stat()["processes"]:
        if process["pid"] == program.pid:
            return {cause["name"]: cause["count"] for cause in process["reasons"]}
    raise AssertionError(f"`beeline stat` does not know process {program.pid}")


def counters(program, host):
    for process in host.stat()["processes"]:
        if process["pid"] == program.pid:
            return process["counters"]
    raise AssertionError(f"`beeline stat` does not know process {program.pid}")


@case()
def goes_over_the_bridge():
    """A connection between hosts is carried by the bridge, with TCP's addresses at both ends."""
    a, b = world().hosts
    server, port = b.serve("any")
    client = a.app("names", b.address, port)
    facts = client.facts()
    assert facts["peer"] == [b.address, port] == facts["theirs"][0], facts
    assert facts["mine"] == facts["theirs"][1] and facts["mine"][0] == a.address, facts
    assert not facts["ephemeral"], facts
    assert a.totals()["opened"] == 1 and b.totals()["accepted"] == 1
    assert counters(client, a)["connections_bridged_client"] == 1
    assert counters(server, b)["connections_bridged_server"] == 1
    [carried] = [c for c in a.data()["connections"]]
    assert carried["client"] == f"{a.address}:{facts['mine'][1]}", carried
    assert carried["server"] == f"{b.address}:{port}", carried
    client.say("")
    client.finish()


def by_tcp(a, b, client_runs=True, server_runs=True):
    server, port = b.serve("any", beeline=server_runs)
    client = a.app("names", b.address, port, beeline=client_runs)
    facts = client.facts()
    assert facts["mine"] == facts["theirs"][1], facts
    assert facts["ephemeral"], f"the kernel would have chosen another port: {facts}"
    why = reasons(client, a) if client_runs else {}
    client.say("")
    client.finish()
    return why


@case()
def the_own_share_of_a_trip_is_measured():
    """With `measure`, the bridges tell what they themselves add to a trip, part by part; without it, nothing."""
    made = world()
    a, b = made.hosts
    _, port = b.serve("any")
    a.app("ping", b.address, port, 0.3).finish()
    assert not any(ns for host in made.hosts for ns in host.data()["share"].values())
    made.set("measure", 1)
    made.set("spin_us", 100000)
    a.app("ping", b.address, port, 1).finish()
    for host in made.hosts:
        share = host.data()["share"]
        note(f"{host.name}: " + ", ".join(f"{part} {ns} ns" for part, ns in share.items()))
        assert all(share[part] for part in ("look", "outward", "inward", "send")), share
        assert share["own"] == share["look"] + share["outward"] + share["inward"]


@case()
def brief_connections_are_left_to_tcp():
    """A run of short-lived connections goes by TCP but for a few, and longer ones, or one after a pause, do not."""
    a, b = world().hosts
    _, port = b.serve("any")
    client = a.app("brief", b.address, port, 200)
    client.facts()
    left = reasons(client, a)["bridge_short_lived"]
    note(f"{left} of 200 short-lived connections went by TCP")
    assert 180 <= left < 200
    client.say("")
    client.facts()
    assert reasons(client, a)["bridge_short_lived"] == left
    assert counters(client, a)["connections_bridged_client"] == 401 - left
    client.say("")
    client.finish()
    client = a.app("brief", b.address, port, 20, options=["bridge_short_lived=on"])
    client.facts()
    assert counters(client, a)["connections_bridged_client"] == 20
    client.kill()


@case()
def without_beeline_it_is_tcp():
    """Where one end runs without Beeline, TCP carries the connection, and the reason is told."""
    a, b = world().hosts
    by_tcp(a, b, client_runs=False)
    why = by_tcp(a, b, server_runs=False)
    assert why.get("bridge_no_door") == 1, why
    assert a.data()["refusals"]["no_door"] == 1
    assert a.totals()["opened"] == 0


@case()
def without_a_bridge_it_is_tcp():
    """Where one host has no bridge, TCP carries the connection, and the reason is told."""
    a, b = world(start=False).hosts
    assert by_tcp(a, b).get("not_local") == 1
    a.write_config()
    a.start_bridge()
    why = by_tcp(a, b)
    assert why.get("bridge_no_peer") == 1, why
    b.write_config()
    b.start_bridge()
    a.world.connected()
    why = by_tcp(b, a, server_runs=False)
    assert why.get("bridge_no_door") == 1, why


@case()
def nobody_listens():
    """A port on which nobody listens refuses, as with TCP."""
    a, b = world().hosts
    client = a.app("wait", b.address, 9)
    client.process.wait(20)
    assert "ConnectionRefusedError" in open(client.log).read()


@case()
def no_common_rail():
    """Bridges that share no rail leave connections to TCP, and the reason is told."""
    a, b = (made := world(start=False)).hosts
    a.write_config(deny=[{"netdev": "rail0"}])
    b.write_config()
    a.start_bridge()
    b.start_bridge()
    a.has_logged("peer h1 is up", seconds=10)
    why = by_tcp(a, b)
    assert why.get("bridge_no_rail") == 1, why


@case()
def three_hosts():
    """Each of three hosts reaches both others."""
    hosts = world(hosts=3).hosts
    servers = [host.serve("any") for host in hosts]
    for host in hosts:
        for other, (_, port) in zip(hosts, servers):
            if other is not host:
                host.app("duplex", other.address, port, 300000, 300000).finish()
    assert [host.totals()["opened"] for host in hosts] == [2, 2, 2]


@case()
def idle_bridges_rest():
    """Bridges with a hundred connections that do nothing use next to no CPU."""
    a, b = world().hosts
    _, port = b.serve("any")
    client = a.app("many", b.address, port, 100)
    assert client.facts() == {"open": 100}
    time.sleep(2)
    used = []
    for host in (a, b):
        fields = open(f"/proc/{host.bridge.pid}/stat").read().rsplit(")", 1)[1].split()
        used.append(int(fields[11]) + int(fields[12]))
    time.sleep(5)
    for host, before in zip((a, b), used):
        fields = open(f"/proc/{host.bridge.pid}/stat").read().rsplit(")", 1)[1].split()
        share = (int(fields[11]) + int(fields[12]) - before) / 100 / 5
        note(f"{host.name}: {100 * share:.1f} % of a CPU")
        assert share < 0.02
    client.say("")
    assert client.facts() == {"again": 100}
