"""docs/bridge.md, followed to the letter by somebody who has no systemd: two hosts with a file system of their own each."""

import json
import os
import signal
import subprocess
import sys
import time

from world import APP, BEELINE, BEELINED, case, note, shell, until, world

PREPARE = """
set -e
mount --make-rprivate /
for place in /etc /run; do mkdir -p {own}$place/upper {own}$place/work; done
mount -t overlay overlay -o lowerdir=/etc,upperdir={own}/etc/upper,workdir={own}/etc/work /etc
rm -rf /etc/beeline
mount -t tmpfs tmpfs /run
"""


class Page:
    """A host as the page has it: its own /etc and /run, and a shell of root's."""

    def __init__(self, host, name):
        self.name, self.address = name, host.address
        own = host.directory / "own"
        own.mkdir()
        shell("mount", "-t", "tmpfs", "tmpfs", str(own))
        script = PREPARE.format(own=own) + "echo ready; exec sleep 1000"
        self.process = subprocess.Popen(host.inside(["unshare", "--mount", "sh", "-c", script]), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.environment = {**os.environ, "PATH": f"{os.path.dirname(BEELINED)}:{os.environ['PATH']}"}
        self.log = host.directory / "page.log"

    def inside(self, command):
        return ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", f"--net=/proc/{self.process.pid}/ns/net", *command]

    def sh(self, script):
        done = subprocess.run(self.inside(["sh", "-c", script]), capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, f"{self.name}# {script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command, **how):
        with open(self.log, "ab") as log:
            return subprocess.Popen(self.inside(command), stdin=subprocess.PIPE, stdout=how.get("stdout", log), stderr=log, text=True,
                                    env=self.environment)


USERADD = "useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin beeline"
CONFIGURATION = """cat > /etc/beeline/beelined.toml <<END
user = "beeline"

[[peers]]
name = "{name}"
control = "{address}"

[rails]
allow = [{{ provider = "tcp" }}]

[tunables]
compare_s = 0
END"""


@case(90)
def the_page_holds_without_systemd():
    """docs/bridge.md as it stands: keys, trust, configuration, root's `beelined run` that becomes `beeline`; lanes, reload and stop."""
    made = world(start=False)
    alpha, beta = (Page(host, name) for host, name in zip(made.hosts, ("alpha", "beta")))
    for host, other in ((alpha, beta), (beta, alpha)):
        host.sh(f"getent passwd beeline || {USERADD}")
        host.sh(f"beelined keygen --name {host.name} --address {host.address}")
        # The key is the bridge's, not root's.
        assert host.sh("stat -c %U /etc/beeline/beelined.key").strip() == "beeline"
    for host, other in ((alpha, beta), (beta, alpha)):
        certificate = other.sh("cat /etc/beeline/beelined.crt")
        host.sh(f"cat > /run/{other.name}.crt <<END\n{certificate}END\nbeelined trust /run/{other.name}.crt")
        host.sh(CONFIGURATION.format(name=other.name, address=other.address))
    bridges = [host.start("beelined", "run") for host in (alpha, beta)]
    for host in (alpha, beta):
        def is_up(host=host):
            assert all(bridge.poll() is None for bridge in bridges), alpha.log.read_text() + beta.log.read_text()
            done = subprocess.run(host.inside(["beelined", "status", "--json"]), capture_output=True, text=True, env=host.environment)
            return done.returncode == 0 and any(link["up"] for link in json.loads(done.stdout)["data"]["links"])
        try:
            until(is_up, 15, f"a link of {host.name}")
        except AssertionError:
            print(alpha.log.read_text(), beta.log.read_text())
            raise
        assert f"speaks for {host.address}" in host.sh("beelined status")
    for bridge in bridges:
        with open(f"/proc/{bridge.pid}/status", encoding="ascii") as facts:
            assert "Uid:\t0" not in facts.read(), "it is still root"
    server = beta.start(BEELINE, "run", "--", sys.executable, "-u", "-B", APP, "serve", "any", beta.address, stdout=subprocess.PIPE)
    port = server.stdout.readline().strip()
    client = alpha.start(BEELINE, "run", "--", sys.executable, "-u", "-B", APP, "many", beta.address, port, "3", stdout=subprocess.PIPE)
    assert '"open": 3' in client.stdout.readline()
    told = alpha.sh("beeline stat")
    assert "tcp/rail0" in told and f"{beta.address}:{port}" in told, told
    for host in (alpha, beta):
        host.sh("beeline topo")
    client.stdin.write("\n")
    client.stdin.flush()
    assert '"again": 3' in client.stdout.readline()
    # SIGHUP reads certificates again as the user that the bridge has become; a renewed key is that user's.
    alpha.sh("beelined keygen --name alpha --address " + alpha.address + " --force")
    bridges[0].send_signal(signal.SIGHUP)
    until(lambda: "were read again" in alpha.log.read_text(), 5, "the reload")
    client.stdin.close()
    client.wait(20)
    for bridge in bridges:
        bridge.send_signal(signal.SIGTERM)
        assert bridge.wait(20) == 0
        time.sleep(0.1)
    server.kill()
    note("as written")
