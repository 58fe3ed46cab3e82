"""Where the tiers are: one host, or four hosts that are network namespaces with a bridge each.

    clients, web, application, database     10.<NET>.0.1 to .4, one veth each, to a switch in a namespace of its own

Nothing here is left behind: World.end() ends the bridges and removes the namespaces.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

ROLES = ("clients", "web", "application", "database")
NET = 93


class Trouble(Exception):
    """What a user should read, without a trace."""

    status = 1


class Missing(Trouble):
    """What has to be there, or said otherwise, before anything can begin."""

    status = 2


def missing(programs, where="`ci/packages.sh site` installs"):
    return Missing(f"there is no {', no '.join(programs)}; {where} {'it' if len(programs) == 1 else 'them'}")


def shell(*command, **how):
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    except FileNotFoundError as error:
        raise missing([error.filename]) from None
    if done.returncode != 0:
        raise Trouble(f"{' '.join(str(word) for word in command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def background(*command):
    """Runs a command beside what is done meanwhile, and waits for its end."""
    running = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
        said = running.communicate()[0]
        if running.returncode != 0:
            raise Trouble(f"{' '.join(str(word) for word in command)}: {said.strip()[-2000:]}")
    finally:
        if running.poll() is None:
            running.kill()
            running.communicate()


def until(condition, seconds, what):
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise Trouble(f"{what} did not come about in {seconds} s")
        time.sleep(0.05)


class Host:
    def __init__(self, role, address, namespace=None):
        self.role, self.address, self.namespace = role, address, namespace

    def inside(self, command):
        # nsenter is exec'ed, so the process id is the program's.
        prefix = ["nsenter", f"--net=/run/netns/{self.namespace}", "--"] if self.namespace else []
        return [*prefix, *(str(word) for word in command)]

    def lasting(self, command):
        """The same for what goes on until it is ended: it ends as well if the harness is killed and cannot clean up. To be
        started by the main thread: the kernel takes the end of the thread that has started it for that."""
        return ["setpriv", "--pdeathsig", "TERM", "--", *self.inside(command)]

    def free_ports(self, count):
        """Ports that nobody has now, below those that the kernel gives to clients."""
        script = ("import random, socket, sys\nports = []\nwhile len(ports) < int(sys.argv[2]):\n"
                  " port = random.randrange(12000, 30000)\n socket_ = socket.socket()\n"
                  " try: socket_.bind((sys.argv[1], port))\n except OSError: continue\n"
                  " finally: socket_.close()\n port in ports or ports.append(port)\nprint(*ports)")
        return [int(port) for port in shell(*self.inside(["python3", "-c", script, self.address, count])).split()]


class World:
    """One host: all tiers on the loopback."""

    name = "host"

    def __init__(self):
        self.hosts = {role: Host(role, "127.0.0.1") for role in ROLES}

    def end(self):
        pass

    def bridges(self):
        """What each bridge tells of itself."""
        return {}

    def bridge_cpu(self):
        return 0.0


class Namespaces(World):
    """Four hosts, joined by a switch, with tc for rate and delay, and a bridge each."""

    name = "hosts"

    def __init__(self, directory, beelined, rate=None, delay=None):
        if os.geteuid() != 0:
            raise Trouble("network namespaces take root")
        self.directory, self.beelined = pathlib.Path(directory), beelined
        self.tag = f"site-{os.getpid()}"
        self.hosts = {role: Host(role, f"10.{NET}.0.{index + 1}", f"{self.tag}-{role}") for index, role in enumerate(ROLES)}
        self.running = {}
        remove_namespaces_of_the_dead()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        try:
            self._network(rate, delay)
            self._bridges()
        except BaseException:
            self.end()
            raise

    def _network(self, rate, delay):
        switch = f"{self.tag}-switch"
        shell("ip", "netns", "add", switch)
        shell("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        shell("ip", "-n", switch, "link", "set", "switch", "up")
        for host in self.hosts.values():
            shell("ip", "netns", "add", host.namespace)
            shell("ip", "-n", host.namespace, "link", "set", "lo", "up")
            port = f"p-{host.role}"
            shell("ip", "link", "add", "net0", "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", switch)
            shell("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
            shell("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "net0")
            shell("ip", "-n", host.namespace, "link", "set", "net0", "up")
            if delay:
                limits = ["netem", "limit", "20000", "delay", delay, *(["rate", rate] if rate else [])]
            elif rate:
                limits = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            if rate or delay:
                # Not every kernel has netem; all that have tc at all have tbf.
                shell("tc", "-n", host.namespace, "qdisc", "add", "dev", "net0", "root", *limits)
        for host in self.hosts.values():
            until(lambda host=host: "state UP" in shell("ip", "-n", host.namespace, "-o", "link", "show", "net0"), 10,
                  f"the network of {host.role}")

    def _bridges(self):
        for host in self.hosts.values():
            lines = [f'name = "{host.role}"', f'listen = ["{host.address}"]', f'admin_socket = "{self.socket(host)}"',
                     "insecure = true", f'addresses = ["{host.address}"]']
            for other in self.hosts.values():
                if other is not host:
                    lines += ["[[peers]]", f'name = "{other.role}"', f'control = ["{other.address}"]',
                              f'addresses = ["{other.address}"]']
            # What is measured is the bridge, also where TCP is faster.
            lines += ["[rails]", 'allow = [{ provider = "tcp" }]', 'deny = [{ netdev = "lo" }]', "[tunables]", "compare_s = 0"]
            config = self.directory / f"{host.role}.toml"
            config.write_text("\n".join(lines) + "\n")
            with open(self.directory / f"{host.role}.log", "w") as log:
                self.running[host.role] = subprocess.Popen(
                    host.lasting([self.beelined, "run", "--config", config]), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                    start_new_session=True)
        for host in self.hosts.values():
            until(lambda host=host: self._linked(host), 30, f"the links of the bridge of {host.role}")

    def _linked(self, host):
        if self.running[host.role].poll() is not None:
            raise Trouble(f"the bridge of {host.role} ended: {(self.directory / f'{host.role}.log').read_text()[-1000:]}")
        if not self.socket(host).exists():
            return False
        links = self.status(host)["data"]["links"]
        return sum(link["up"] for link in links) >= len(self.hosts) - 1

    def socket(self, host):
        return self.directory / f"{host.role}.sock"

    def status(self, host):
        return json.loads(shell(self.beelined, "status", "--json", "--socket", self.socket(host)))

    def bridges(self):
        return {role: self.status(host)["data"]["totals"] for role, host in self.hosts.items()}

    def bridge_cpu(self):
        return sum(cpu_seconds(process.pid) for process in self.running.values())

    def end(self):
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        for namespace in [f"{self.tag}-switch", *(host.namespace for host in self.hosts.values())]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def remove_namespaces_of_the_dead():
    """Those of a harness that was killed: the kernel keeps a namespace that has a name."""
    names = pathlib.Path("/run/netns")
    for name in sorted(entry.name for entry in names.iterdir()) if names.exists() else []:
        tag, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if tag == "site" and pid.isdigit() and not pathlib.Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def cpu_seconds(pid):
    """What a process has used, with its threads; 0 if it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
