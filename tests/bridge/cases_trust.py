"""Who believes whom."""

import platform
import sys

from cases_basic import by_tcp, counters, reasons
from world import APP, BEELINED, Skip, case, shell, until, world

ELSE = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups")
# A client of the bridge that says whatever it is told to: its own address, and the server's.
CLIENT = """
import fcntl, os, socket, struct, sys
RING = 65536
def end(address, port):
    return "4" + socket.inet_aton(address).hex() + "%04x" % int(port)
mine, theirs = sys.argv[1:3], sys.argv[3:5]
lane = os.memfd_create("lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(lane, 2 * RING + 8192)
fcntl.fcntl(lane, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
hello = struct.pack("<8sHHIQIIQ24x", b"BEEHELLO", 5, 0, RING, 2 * RING + 8192, 0, 1, os.fstat(lane).st_ino)
anchor = socket.socket(socket.AF_UNIX)
anchor.bind("\\0beeline/1/conn/" + end(*mine) + "/" + end(*theirs))
anchor.connect("\\0beeline/1/bridge")
socket.send_fds(anchor, [hello], [lane])
print(*anchor.recv(1), flush=True)
"""
YES, FULL, REJECTED = "1", "5", "6"


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


def lanes_between_users():
    if tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 16):
        raise Skip("there are no lanes between users before Linux 6.16")


@case()
def an_address_that_is_not_the_clients():
    """Another user has no address over the bridge that TCP would not let him have."""
    lanes_between_users()
    other = "10.80.0.50"
    made = world(start=False, claims={0: ["10.80.0.1", other]})
    a, b = made.hosts
    a.write_config(addresses=[a.address, other])
    made.start()
    _, port = b.serve("any")
    listener = a.run(sys.executable, "-c", "import socket, sys\n"
                     f"s = socket.create_server(('{a.address}', 2049)); print('there', flush=True); sys.stdin.readline()")
    assert listener.line() == "there"

    def verdict(address, own_port, *how):
        words = (address, own_port, b.address, port)
        return a.run(*how, sys.executable, "-c", CLIENT, *words, beeline=False).line()

    assert verdict(a.address, 1023, *ELSE) == REJECTED
    assert verdict(other, 2050, *ELSE) == REJECTED
    assert verdict(other, 2050) == REJECTED, "not even root's"
    assert verdict(a.address, 2049, *ELSE) == FULL
    # A port of those that the kernel hands out is somebody's, or may be the next moment.
    assert verdict(a.address, 40000, *ELSE) == REJECTED
    assert b.totals()["accepted"] == 0
    assert verdict(a.address, 2050, *ELSE) == YES
    assert verdict(a.address, 1023) == YES
    until(lambda: b.totals()["accepted"] == 2, 5, "what they may have")


@case()
def clients_of_another_user():
    """Programs of another user than the bridge's go over it, but for those that have bound a port, which go by TCP."""
    lanes_between_users()
    a, b = world().hosts
    _, port = b.serve("any")
    names = (*ELSE, sys.executable, "-u", "-B", APP, "names", b.address, port)
    client = a.run(*names)
    client.facts()
    assert counters(client, a)["connections_bridged_client"] == 1
    bound = a.run(*names, a.address, 2051)
    assert bound.facts()["theirs"][1] == [a.address, 2051]
    assert reasons(bound, a) == {"explicit_bind_unsupported": 1}
    # The first still may, and so may one of root's that has bound a port.
    for more in (a.run(*names), a.app("names", b.address, port, a.address, 2052)):
        more.facts()
        assert counters(more, a)["connections_bridged_client"] == 1
