"""Hosts that are network namespaces, with bridges and programs on them.

    world.hosts[i].address        what host i is called by programs: on the network of rail 0
    control network               10.70.0.0/24, which is no rail: so a rail that is cut is only that
    rail r                        10.(80+r).0.0/24, one veth each, to a switch (a bridge device) in a namespace of its own

Everything ends with the namespaces of the case (run.py), so nothing is cleaned up here.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
BEELINE = os.environ.get("BEELINE", str(TARGET / "beeline"))
BEELINED = str(pathlib.Path(BEELINE).with_name("beelined"))
APP = str(HERE / "app.py")
NIGHTLY = bool(os.environ.get("BRIDGE_NIGHTLY"))
CONTROL_PORT = 4797
SKIPPED = 77

CASES = {}


@dataclasses.dataclass
class Case:
    name: str
    sentence: str
    usual: float
    body: object

    @property
    def seconds(self):
        """When it is given up. Asked late: the runner hears only from its options that it is night."""
        return self.usual * (10 if os.environ.get("BRIDGE_NIGHTLY") else 1)


class Skip(Exception):
    """What is needed is not there."""


def case(seconds=60):
    """Marks a case, which is given up after so many seconds (ten times as many at night)."""

    def mark(body):
        CASES[body.__name__] = Case(body.__name__, (body.__doc__ or "").strip().splitlines()[0], seconds, body)
        return body

    return mark


def note(text):
    """Something that the reader of a good case's result should know."""
    print(f"note: {text}", flush=True)


def shell(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def until(condition, seconds=10, what="it"):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about in {seconds} s")


class Program:
    """A program on a host."""

    def __init__(self, host, command, accelerated, options, log, environment):
        self.name = " ".join(str(part) for part in command)[-120:]
        self.log = log
        run = [BEELINE, "run", *(word for option in options for word in ("-o", option)), "--"] if accelerated else []
        self.process = subprocess.Popen(
            host.inside([*run, *map(str, command)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=open(log, "ab"), text=True, env={**os.environ, **environment})

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        """The next line of its output."""
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended with {self.process.wait()}: {open(self.log).read()[-1500:]}"
        return line.strip()

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def facts(self):
        """The next line, which is JSON."""
        return json.loads(self.line())

    def finish(self, seconds=60):
        """Its whole output, when it has ended well."""
        output, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, \
            f"{self.name} ended with {self.process.returncode}: {output[-500:]}{open(self.log).read()[-1500:]}"
        return output

    def kill(self, what=signal.SIGKILL):
        self.process.send_signal(what)
        if what == signal.SIGKILL:
            self.process.wait()


class Host:
    def __init__(self, world, index):
        self.world, self.index, self.name = world, index, f"h{index}"
        self.directory = world.directory / self.name
        self.directory.mkdir()
        self.socket = self.directory / "admin.sock"
        self.config = self.directory / "beelined.toml"
        self.bridge = None
        self.running = []

    @property
    def address(self):
        return self.on_rail(0)

    @property
    def control(self):
        return f"10.70.0.{self.index + 1}"

    def on_rail(self, rail):
        return f"10.{80 + rail}.0.{self.index + 1}"

    def inside(self, command):
        # nsenter, not `ip netns exec`: it is exec'ed, so the process id is the program's.
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    def sh(self, *command):
        return shell(*self.inside(command))

    # ---- the bridge

    def write_config(self, peers=None, extra="", tunables=None, secure=False, deny=(), addresses=None, joined=()):
        others = [host for host in self.world.hosts if host is not self] if peers is None else peers
        own = addresses or [self.on_rail(rail) for rail in range(self.world.rails)]
        lines = [f'admin_socket = "{self.socket}"', f'name = "{self.name}"',
                 f'listen = ["{self.control}:{CONTROL_PORT}"]']
        if secure:
            lines += [f'certificate = "{self.directory}/beelined.crt"', f'key = "{self.directory}/beelined.key"',
                      f'trusted = "{self.directory}/trusted"']
        else:
            lines += ["insecure = true", f"addresses = {json.dumps(own)}"]
        lines.append(extra)
        for other in others:
            lines += ["[[peers]]", f'name = "{other.name}"', f'control = ["{other.control}:{CONTROL_PORT}"]']
            if not secure:
                named = [other.on_rail(rail) for rail in range(self.world.rails)]
                lines.append(f"addresses = {json.dumps(self.world.claims.get(other.index, named))}")
        # The control network is no rail.
        rules = [{"netdev": "control"}, *deny]
        lines.append("[rails]")
        lines.append("deny = [" + ", ".join(
            "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in rule.items()) + " }"
            for rule in rules) + "]")
        lines.append('allow = [{ provider = "tcp" }]')
        lines.append(f"joined = {json.dumps(list(joined))}")
        lines.append("[tunables]")
        # Over TCP the bridge is slower by nature, and a case that stops one means it.
        settings = {"compare_s": 0, "drain_s": 0, **(tunables or self.world.tunables)}
        lines += [f"{key} = {value}" for key, value in settings.items()]
        self.config.write_text("\n".join(lines) + "\n")
        self.config.chmod(0o644)

    def make_key(self):
        shell(BEELINED, "keygen", "--name", self.name, "--address", self.address, "--out", str(self.directory),
              "--user", "root")

    def start_bridge(self):
        self.bridge = subprocess.Popen(self.inside([BEELINED, "run", "--config", str(self.config)]), text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        threading.Thread(target=self.keep_log, args=(self.bridge.stdout,), daemon=True).start()
        until(self.socket.exists, 10, "the bridge")

    def keep_log(self, lines):
        with open(self.directory / "bridge.log", "a", buffering=1) as log:
            for line in lines:
                log.write(f"{time.monotonic() - BEGAN:6.2f} {line}")

    def stop_bridge(self, what=signal.SIGTERM):
        self.bridge.send_signal(what)
        self.bridge.wait(timeout=10)
        self.bridge = None
        self.socket.unlink(missing_ok=True)

    def ask_bridge(self, *words):
        return shell(BEELINED, *words, "--socket", str(self.socket))

    def status(self):
        return json.loads(self.ask_bridge("status", "--json"))

    def data(self):
        return self.status()["data"]

    def log(self):
        return (self.directory / "bridge.log").read_text()

    def has_logged(self, *words, seconds=5):
        """Waits until the bridge's log has these: what it has written comes here through a pipe and a thread."""
        for word in words:
            until(lambda word=word: word in self.log(), seconds, f"{word!r} in the log of {self.name}'s bridge")

    def totals(self):
        return self.data()["totals"]

    def set(self, key, value):
        self.ask_bridge("set", key, str(value))

    def links_up(self):
        return sum(link["up"] for link in self.data()["links"])

    # ---- programs

    def run(self, *command, beeline=True, options=(), **environment):
        log = self.directory / f"program{len(self.running)}.log"
        self.running.append(Program(self, command, beeline, options, log, environment))
        return self.running[-1]

    def app(self, *words, **how):
        return self.run(sys.executable, "-u", "-B", APP, *words, **how)

    def serve(self, what, *words, **how):
        """Starts a server of app.py. Returns it and its port."""
        server = self.app("serve", what, self.address, *words, **how)
        return server, int(server.line())

    def stat(self):
        return json.loads(self.sh(BEELINE, "stat", "--json"))


class World:
    def __init__(self, hosts=2, rails=1, tunables=None, start=True, claims=None):
        self.rails, self.tunables, self.claims = rails, tunables or {}, claims or {}
        self.directory = pathlib.Path("/run/bridge")
        self.directory.mkdir()
        self.hosts = [Host(self, index) for index in range(hosts)]
        shell("ip", "netns", "add", "switch")
        for host in self.hosts:
            shell("ip", "netns", "add", host.name)
            shell("ip", "-n", host.name, "link", "set", "lo", "up")
        self.network("control", lambda host: host.control)
        for rail in range(rails):
            self.network(f"rail{rail}", lambda host, rail=rail: host.on_rail(rail))
        if start:
            self.start()

    def network(self, name, address):
        shell("ip", "-n", "switch", "link", "add", name, "type", "bridge")
        shell("ip", "-n", "switch", "link", "set", name, "up")
        for host in self.hosts:
            port = f"{name}h{host.index}"
            shell("ip", "link", "add", name, "netns", host.name, "type", "veth",
                  "peer", "name", port, "netns", "switch")
            shell("ip", "-n", "switch", "link", "set", port, "master", name, "up")
            shell("ip", "-n", host.name, "addr", "add", f"{address(host)}/24", "dev", name)
            shell("ip", "-n", host.name, "link", "set", name, "up")

    def end(self):
        for host in self.hosts:
            if host.bridge is not None:
                host.stop_bridge()
            for program in host.running:
                if program.process.poll() is None:
                    program.kill()
        for name in ["switch", *(host.name for host in self.hosts)]:
            shell("ip", "netns", "del", name)
        shutil.rmtree(self.directory)

    def start(self):
        for host in self.hosts:
            if not host.config.exists():
                host.write_config()
            host.start_bridge()
        self.connected()

    def connected(self, seconds=15):
        wanted = self.rails * (len(self.hosts) - 1)
        for host in self.hosts:
            until(lambda host=host: host.links_up() == wanted, seconds, f"{wanted} links of {host.name}")

    def cut(self, rail, host=0):
        """Packets of a rail vanish, and no end of it is told."""
        shell("ip", "-n", "switch", "link", "set", f"rail{rail}h{host}", "nomaster")

    def mend(self, rail, host=0):
        shell("ip", "-n", "switch", "link", "set", f"rail{rail}h{host}", "master", f"rail{rail}")

    def set(self, key, value):
        for host in self.hosts:
            host.set(key, value)

    def no_breach(self):
        for host in self.hosts:
            if host.bridge is not None:
                assert host.bridge.poll() is None, f"the bridge of {host.name} ended with {host.bridge.poll()}"
                assert host.totals()["breaches"] == 0, f"{host.name} counts a breach"

    def quiet(self, seconds=5):
        """Waits until no connection is left."""
        for host in self.hosts:
            until(lambda host=host: not host.data()["connections"], seconds, f"the end of {host.name}'s connections")

    def logs(self):
        for host in self.hosts:
            log = host.directory / "bridge.log"
            if log.exists():
                print(f"-- bridge of {host.name}\n{log.read_text()[-3000:]}")
            try:
                print(json.dumps(host.data(), indent=None)[:4000])
            except Exception as error:
                print(f"   no status: {error}")


WORLDS = []
BEGAN = time.monotonic()


def world(*arguments, fresh=False, **named):
    """Makes the hosts of a case; `fresh` ends those that it had."""
    if fresh:
        for old in WORLDS:
            old.no_breach()
            old.end()
        WORLDS.clear()
    made = World(*arguments, **named)
    WORLDS.append(made)
    return made


def inside(case):
    """Runs one case in namespaces that are its own already."""
    shell("mount", "--make-rprivate", "/")
    for place in ("/run", "/dev/shm"):
        shell("mount", "-t", "tmpfs", "tmpfs", place)

    def late(*_):
        raise TimeoutError(f"{case.seconds} s are over")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(case.seconds)
    try:
        case.body()
        for made in WORLDS:
            made.no_breach()
    except Skip as why:
        note(why)
        return SKIPPED
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        for made in WORLDS:
            made.logs()
        return 1
    return 0
