"""Which rail a connection takes, between hosts that share some, none, or reach each other's through a router."""

import json
import time

from cases_basic import reasons
from world import BEELINE, BEELINED, case, note, shell, until, world


def homes(host):
    """How many connections have their home on which rail."""
    sums = {}
    for connection in host.data()["connections"]:
        rail = connection["paths"][0]["rail"]
        sums[rail] = sums.get(rail, 0) + 1
    return sums


def carried(host):
    """Connections by the load that the rails tell."""
    return {rail["rail"]["name"]: rail["rail"]["load"]["connections"] for rail in host.data()["rails"]}


@case(90)
def connections_spread_over_equal_rails():
    """Connections spread evenly over two equal rails, also after one was away."""
    made = world(rails=2)
    a, b = made.hosts
    _, port = b.serve("any")
    client = a.app("many", b.address, port, 40)
    assert client.facts() == {"open": 40}
    for host in (a, b):
        assert sorted(homes(host).values()) == [20, 20], (host.name, homes(host))
        assert carried(host) == homes(host), (host.name, carried(host))
    made.cut(1)
    for host in (a, b):
        until(lambda host=host: host.links_up() == 1, 10, "the loss of a link")
        assert list(homes(host).values()) == [40], (host.name, homes(host))
    made.mend(1)
    made.connected(20)
    for host in (a, b):
        assert sorted(homes(host).values()) == [20, 20], (host.name, homes(host))
        assert carried(host) == homes(host), (host.name, carried(host))
    client.say("")
    assert client.facts() == {"again": 40}
    client.finish()
    made.quiet()
    for host in (a, b):
        assert set(carried(host).values()) == {0}, (host.name, carried(host))


@case(90)
def a_peer_has_a_limit_of_connections():
    """What would be more connections with a peer than may be is left to TCP, with the reason, at either end's limit."""
    made = world()
    a, b = made.hosts
    _, port = b.serve("any")
    for limited in (a, b):
        limited.set("peer_connections_max", 5)
        client = a.app("many", b.address, port, 8)
        assert client.facts() == {"open": 8}
        for host in (a, b):
            assert len([c for c in host.data()["connections"] if c["state"] == "open"]) == 5, host.name
        assert reasons(client, a) == {"bridge_full": 3}
        limited.has_logged("as many as may be (peer_connections_max)")
        client.say("")
        assert client.facts() == {"again": 8}
        client.finish()
        made.quiet()
        limited.set("peer_connections_max", 1000)
    client = a.app("many", b.address, port, 8)
    assert client.facts() == {"open": 8}
    assert len(a.data()["connections"]) == 8


def routed(joined):
    """Three hosts, each with a subnet of its own that a router connects; `joined` is the configuration's list."""
    made = world(hosts=3, rails=3, start=False, claims={index: [f"10.{80 + index}.0.{index + 1}"] for index in range(3)})
    shell("nsenter", "--net=/run/netns/switch", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    for host in made.hosts:
        own = host.index
        for rail in range(3):
            if rail != own:
                host.sh("ip", "link", "del", f"rail{rail}")
        shell("ip", "-n", "switch", "addr", "add", f"10.{80 + own}.0.254/24", "dev", f"rail{own}")
        for rail in range(3):
            if rail != own:
                host.sh("ip", "route", "add", f"10.{80 + rail}.0.0/24", "via", f"10.{80 + own}.0.254")
    for host in made.hosts:
        host.write_config(joined=joined, addresses=[host.on_rail(host.index)])
        host.start_bridge()
    return made


def way(client, server, port):
    """How a connection to another host's own network goes: `bridge`, or the reason why it does not."""
    program = client.app("names", server.on_rail(server.index), port)
    facts = program.facts()
    why = reasons(program, client)
    program.say("")
    program.finish()
    return "bridge" if not facts["ephemeral"] else ",".join(why)


@case(90)
def a_segment_with_tcp_alone_drags_nobody_down():
    """Routed subnets that are joined share a fabric; at the same time a host on another one is reached by TCP, by all."""
    made = routed(joined=[["10.80.0.0/24", "10.81.0.0/24"]])
    a, b, c = made.hosts
    for host, other in ((a, b), (b, a)):
        until(lambda host=host: host.links_up() == 1, 15, f"a link of {host.name}")
    for host in made.hosts:
        until(lambda host=host: sum(peer["is_up"] for peer in host.status()["peers"]) == 2, 10, "the peers")
    ports = [host.app("serve", "any", host.on_rail(host.index)) for host in made.hosts]
    ports = [int(server.line()) for server in ports]
    ways = {(x.name, y.name): way(x, y, ports[y.index]) for x in made.hosts for y in made.hosts if x is not y}
    note(", ".join(f"{x}->{y} {how}" for (x, y), how in ways.items()))
    for pair, how in ways.items():
        assert how == ("bridge" if "h2" not in pair else "bridge_no_rail"), ways
    assert c.links_up() == 0


@case(90)
def routed_subnets_that_nobody_joins():
    """Without the configuration's word subnets are apart, even if a router connects them."""
    made = routed(joined=[])
    a, b, _ = made.hosts
    until(lambda: sum(peer["is_up"] for peer in a.status()["peers"]) == 2, 10, "the peers")
    time.sleep(1)
    server = b.app("serve", "any", b.on_rail(1))
    assert way(a, b, int(server.line())) == "bridge_no_rail"
    assert a.links_up() == 0


def topo(host, *options):
    """What `beeline topo` draws from what the host's bridge says."""
    report = host.directory / "rails.json"
    report.write_text(host.sh(BEELINED, "rails", "--json", "--config", str(host.config)))
    return host.sh(BEELINE, "topo", "--ascii", "--rails", str(report), *options)


@case(90)
def commands_show_the_paths():
    """`beeline topo` shows the path of each connection, `beeline stat` the bridge's part."""
    made = world(rails=2)
    a, b = made.hosts
    _, port = b.serve("any")
    client = a.app("many", b.address, port, 2)
    assert client.facts() == {"open": 2}
    for host, other in ((a, b), (b, a)):
        drawn = json.loads(topo(host, "--json"))
        assert len(drawn["connections"]) == 2, drawn["connections"]
        paths = [connection["paths"] for connection in drawn["connections"]]
        assert {path[0]["rail"] for path in paths} == {"tcp/rail0", "tcp/rail1"}, paths
        for connection in drawn["connections"]:
            assert connection["local"].startswith(f"{host.address}:"), connection
            assert connection["remote"].startswith(f"{other.address}:") and connection["peer"] == other.name, connection
            # Each rail leads to the peer's of the same network; large transfers take both.
            assert [path["rail"] for path in connection["paths"]] == \
                [path["peer_rail"] for path in connection["paths"]], connection
            assert len(connection["paths"]) == 2, connection
        text = topo(host)
        assert f"tcp/rail0 -> tcp/rail0  of {other.name}  large transfers also over tcp/rail1 -> tcp/rail1" in text, text
        assert "1 connection, 0 B in flight" in text, text
        stat = host.sh(BEELINE, "stat", "--socket", str(host.socket))
        assert f"The bridge: {host.name} (beelined " in stat and "tcp/rail0" in stat and other.name in stat, stat
    one = a.sh(BEELINE, "stat", "--socket", str(a.socket), str(client.pid))
    assert one.count(f"{b.address}:{port}  h1") == 2, one
    assert "no bridge is running" in a.sh(BEELINE, "stat", "--socket", "/nowhere")
    nobody = a.inside(["setpriv", "--reuid=65534", "--clear-groups", BEELINE, "stat", "--socket", str(a.socket)])
    a.directory.chmod(0o755)
    assert "only root and the bridge's own user may ask" in shell(*nobody)
