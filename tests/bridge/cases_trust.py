"""Who believes whom."""

import sys

from cases_basic import by_tcp, reasons
from world import BEELINED, case, shell, world


@case()
def with_certificates():
    """Keys are made, certificates are trusted, and a connection goes over the bridge."""
    made = world(start=False)
    a, b = made.hosts
    for host in made.hosts:
        host.write_config(secure=True)
        host.make_key()
    for host, other in ((a, b), (b, a)):
        shell(BEELINED, "trust", "--config", str(host.config), str(other.directory / "beelined.crt"))
    made.start()
    _, port = b.serve("any")
    a.app("duplex", b.address, port, 1 << 20, 1 << 20).finish()
    assert a.totals()["opened"] == 1
    assert not a.status()["insecure"]


@case()
def without_trust_it_is_tcp():
    """A bridge whose certificate nobody trusts is no peer."""
    made = world(start=False)
    a, b = made.hosts
    for host in made.hosts:
        host.write_config(secure=True)
        host.make_key()
    shell(BEELINED, "trust", "--config", str(a.config), str(b.directory / "beelined.crt"))
    (b.directory / "trusted").mkdir(exist_ok=True)
    for host in made.hosts:
        host.start_bridge()
    assert by_tcp(a, b).get("bridge_no_peer") == 1
    assert not a.data()["links"]


@case()
def an_address_that_is_not_the_peers():
    """A client whose address its bridge may not speak for is refused, and goes by TCP."""
    made = world(start=False)
    a, b = made.hosts
    made.start()
    # No rail has it, and no configuration names it.
    a.sh("ip", "addr", "add", "10.80.0.77/32", "dev", "lo")
    b.sh("ip", "route", "add", "10.80.0.77/32", "via", a.address)
    _, port = b.serve("any")
    client = a.run(sys.executable, "-c", "import socket, sys\n"
                   f"s = socket.socket(); s.bind(('10.80.0.77', 0)); s.connect(('{b.address}', {port}))\n"
                   "s.sendall(b'echo\\nhi'); assert s.recv(10) == b'hi'; print('ok', flush=True); sys.stdin.readline()")
    assert client.line() == "ok"
    why = reasons(client, a)
    assert why.get("bridge_rejected") == 1 or why.get("bound_before_connect"), why
    assert b.totals()["accepted"] == 0


@case()
def a_door_of_another_user():
    """A door that somebody else has opened is no bridge's."""
    made = world(start=False)
    a, b = made.hosts
    squatter = a.run(sys.executable, "-c", "import os, socket, sys\n"
                     "os.setgid(65534); os.setuid(65534)\n"
                     "s = socket.socket(socket.AF_UNIX); s.bind('\\0beeline/1/bridge'); s.listen()\n"
                     "print('there', flush=True); sys.stdin.readline()", beeline=False)
    assert squatter.line() == "there"
    why = by_tcp(a, b)
    assert why.get("bridge_not_trusted") == 1, why
