"""Pods: network namespaces joined by veth pairs or by a Linux bridge, and the agent of their host."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from world import APP, BEELINE, BEELINED, Program, Skip, WORLDS, shell, until

SOCKET = pathlib.Path("/run/beeline-agent/agent.sock")


def tables_full():
    """How often somebody found the kernel's table of IPv4 neighbours full."""
    words = shell("ip", "-s", "ntable", "show", "name", "arp_cache").split()
    return int(words[words.index("table_fulls") + 1])


def waits_of(pid):
    """What each thread of a process waits in: the kernel's function, and the system call with its arguments."""
    said = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            said.append(f"   thread {task.name}: {(task / 'wchan').read_text()}, {(task / 'syscall').read_text().strip()}")
        except OSError as error:
            said.append(f"   thread {task.name}: {error}")
    return "\n".join(said)


class Pod:
    """A network namespace with an address, in which programs run. What it is called by others is `address`."""

    def __init__(self, world, name, address):
        self.world, self.name, self.address, self.running = world, name, address, []
        self.directory = world.directory / name
        self.directory.mkdir()
        shell("ip", "netns", "add", name)
        shell("ip", "-n", name, "link", "set", "lo", "up")

    def inside(self, command):
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    def sh(self, *command):
        return shell(*self.inside(command))

    def nft(self, rules):
        if not shutil.which("nft"):
            raise Skip("there is no `nft` (Debian: nftables)")
        done = subprocess.run(self.inside(["nft", "-f", "-"]), input=rules, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run(self, *command, beeline=True, options=(), prefix=(), **environment):
        log = self.directory / f"program{len(self.running)}.log"
        host = self if not prefix else Wrapped(self, prefix)
        self.running.append(Program(host, command, beeline, options, log, environment))
        return self.running[-1]

    def app(self, *words, **how):
        return self.run(sys.executable, "-u", "-B", APP, *words, **how)

    def serve(self, address=None, **how):
        """Starts a server of app.py. Returns it and its port."""
        server = self.app("serve", "any", address or self.address, **how)
        return server, int(server.line())


class Wrapped:
    """A pod whose programs are started by another program."""

    def __init__(self, pod, prefix):
        self.pod, self.prefix = pod, list(prefix)

    def inside(self, command):
        return self.pod.inside([*self.prefix, *command])


class Pods:
    def __init__(self, rules="all = true", agent=True):
        self.directory = pathlib.Path("/run/pods")
        self.directory.mkdir()
        self.pods, self.agent, self.full = {}, None, tables_full()
        self.log = self.directory / "agent.log"
        self.config = self.directory / "beelined.toml"
        WORLDS.append(self)
        if agent:
            self.start_agent(rules)

    # ---- networks

    def pod(self, name, address):
        self.pods[name] = Pod(self, name, address)
        return self.pods[name]

    def pair(self, one="a", two="b", net="10.99.0", addresses=True):
        """Two pods joined by a veth pair."""
        first, second = self.pod(one, f"{net}.1"), self.pod(two, f"{net}.2")
        shell("ip", "link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", two)
        for pod in (first, second):
            self.up(pod, "eth0")
        return first, second

    def up(self, pod, device):
        shell("ip", "-n", pod.name, "addr", "add", f"{pod.address}/24", "dev", device)
        shell("ip", "-n", pod.name, "link", "set", device, "up")

    def switched(self, count, net="10.98.0", switch="switch"):
        """Pods joined by a Linux bridge, each with a veth pair, as containers are."""
        shell("ip", "netns", "add", switch)
        shell("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        shell("ip", "-n", switch, "link", "set", "br0", "up")
        pods = []
        for index in range(count):
            pod = self.pod(f"p{index}", f"{net}.{index + 1}")
            shell("ip", "link", "add", "eth0", "netns", pod.name, "type", "veth", "peer", "name", f"port{index}",
                  "netns", switch)
            shell("ip", "-n", switch, "link", "set", f"port{index}", "master", "br0", "up")
            self.up(pod, "eth0")
            pods.append(pod)
        return pods

    # ---- the agent

    def start_agent(self, rules=None):
        if rules is not None:
            self.config.write_text(f"[namespaces]\n{rules}\n")
            self.config.chmod(0o644)
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen([BEELINED, "agent", "--config", str(self.config)], stdout=log, stderr=log,
                                          stdin=subprocess.DEVNULL)
        before = self.log.read_text().count("ready at")

        def ready():
            assert self.agent.poll() is None, self.log.read_text()
            return self.log.read_text().count("ready at") > before

        until(ready, 10, "the agent") if before == 0 else until(lambda: SOCKET.exists() and self.answers(), 10, "it")

    def answers(self):
        import socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(SOCKET))
                return True
            except OSError:
                return False

    def stop_agent(self, what=signal.SIGKILL):
        self.agent.send_signal(what)
        self.agent.wait(timeout=10)

    def hold_agent(self):
        """Stops it for a while; each of its threads stops a moment later than the signal is sent."""
        self.agent.send_signal(signal.SIGSTOP)
        states = lambda: {path.read_text().rpartition(")")[2].split()[0]
                          for path in pathlib.Path(f"/proc/{self.agent.pid}/task").glob("*/stat")}
        until(lambda: states() == {"T"}, 10, "the agent's stop")

    def agent_descriptors(self):
        return len(list(pathlib.Path(f"/proc/{self.agent.pid}/fd").iterdir()))

    # ---- what is known of programs

    def about(self, program):
        known = json.loads(shell(BEELINE, "stat", "--json"))["processes"]
        found = [process for process in known if process["pid"] == program.pid]
        assert found, f"`beeline stat` does not know process {program.pid}"
        return found[0]

    def lanes(self, program):
        counters = self.about(program)["counters"]
        return counters["connections_accelerated_client"] + counters["connections_accelerated_server"]

    def all_lanes(self, program):
        """The same, by what the program's own file says: without a look at all others."""
        known = json.loads(shell(BEELINE, "stat", "--json", str(program.pid)))["processes"]
        counters = known[0]["counters"] if known else {}
        return sum(counters.get(f"connections_accelerated_{role}", 0) for role in ("client", "server"))

    def reasons(self, program):
        return {cause["name"]: cause["count"] for cause in self.about(program)["reasons"]}

    def met(self, pod, address, port, *words, prefix=()):
        """A client of `names` that has a lane, and what it says. One that is kept from its CPU for too long goes by TCP, and another
        one is tried."""
        for last in [False] * 19 + [True]:
            client = pod.app("names", address, port, *(word() if callable(word) else word for word in words), prefix=prefix)
            facts = client.facts()
            if self.lanes(client) == 1:
                return client, facts
            why = self.reasons(client)
            client.say("end")
            client.finish()
            assert not last, why
            # What was said against the destination counts for a while.
            time.sleep(2.2)

    # ---- as bridge/world.py asks for

    def no_breach(self):
        if self.agent is not None:
            assert self.agent.poll() is None, f"the agent ended with {self.agent.poll()}: {self.log.read_text()}"

    def logs(self):
        print(f"-- agent\n{self.log.read_text() if self.log.exists() else ''}")
        # All namespaces of the host share the table of neighbours; who finds it full sends nothing, and tries again a second later.
        print(f"-- the host's table of neighbours was full {tables_full() - self.full} times meanwhile")
        for pod in self.pods.values():
            print(f"-- {pod.name}\n{subprocess.run(pod.inside(['ss', '-Htanoe']), capture_output=True, text=True).stdout}")
            for program in pod.running:
                print(f"-- {pod.name}: {program.name}\n{open(program.log).read()[-1000:]}")
                if program.process.poll() is None:
                    print(waits_of(program.process.pid))
        try:
            for process in json.loads(shell(BEELINE, "stat", "--json", "--ended"))["processes"]:
                reasons = {cause["name"]: cause["count"] for cause in process["reasons"]}
                print(process["pid"], process.get("program"), reasons)
        except Exception as error:
            print("no stat:", error)
