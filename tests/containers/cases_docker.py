"""Docker as Debian has it: its own networks, names and published ports, its seccomp profile, and the example for Compose."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

from cases_podman import REDIS, over_lanes, rates
from engine import LIBRARY, Contained, load, needs, rootfs
from pods import Pods
from world import BEELINE, BEELINED, ROOT, Skip, case, note, shell, until

HOME = pathlib.Path("/run/docker-of-the-case")
EXAMPLES = ROOT / "packaging/oci"
MOUNTS = ["-v", f"{BEELINE}:/opt/beeline/beeline:ro", "-v", f"{LIBRARY}:/opt/beeline/libbeeline.so:ro",
          "-v", "/run/beeline-agent:/run/beeline-agent:ro"]


class Docker:
    """A daemon of the case's own; everything of it lies in one directory and ends with it."""

    def __init__(self, name):
        needs("dockerd", "docker", "iptables")
        # Where Docker keeps its containers' control groups: named, to be removed.
        self.group = f"beeline-test-{name}"
        HOME.mkdir()
        shell("ip", "link", "set", "lo", "up")
        (HOME / "daemon.json").write_text("{}")
        os.environ["DOCKER_HOST"], os.environ["DOCKER_CONFIG"] = f"unix://{HOME}/docker.sock", str(HOME / "client")
        self.log = HOME / "dockerd.log"
        self.process = subprocess.Popen(
            ["dockerd", "--config-file", HOME / "daemon.json", "--data-root", HOME / "data", "--exec-root", HOME / "exec",
             "--pidfile", HOME / "pid", "--host", os.environ["DOCKER_HOST"], "--cgroup-parent", f"/{self.group}"],
            stdin=subprocess.DEVNULL, stdout=open(self.log, "wb"), stderr=subprocess.STDOUT)
        until(lambda: self.process.poll() is not None or self.answers(), 60, "dockerd")
        if self.process.poll() is not None:
            raise Skip(f"dockerd does not start here: {self.log.read_text().strip()[-300:]}")

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if failure:
            print(f"-- dockerd\n{self.log.read_text()[-3000:]}")
        if self.process.poll() is None:
            names = self("ps", "-aq").split()
            if names:
                self("rm", "-f", *names)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
        until(self.groups_are_gone, 10, "the end of its control groups")

    def groups_are_gone(self):
        # Of both kinds of hierarchies.
        top = pathlib.Path("/sys/fs/cgroup")
        groups = {path for place in ("", "*/") for path in top.glob(f"{place}{self.group}/**/") if path.is_dir()}
        for group in sorted(groups, reverse=True):
            try:
                group.rmdir()
            except OSError:
                return False
        return True

    def __call__(self, *words):
        return shell(*self.command(*words))

    def command(self, *words):
        return ["docker", *map(str, words)]

    def answers(self):
        return subprocess.run(self.command("info"), capture_output=True).returncode == 0

    def image(self, name, *programs, trees=(), files=(), entry=None):
        root = rootfs(HOME / "rootfs", *programs, trees=trees, files=files)
        change = ["--change", f"ENTRYPOINT {json.dumps(entry)}"] if entry else []
        load(root, self.command("import", *change, "-", name))
        return name


class Run(Contained):
    """A container on one of Docker's networks."""

    def __init__(self, docker, network, name, image, *command, options=(), mounts=MOUNTS):
        self.engine, self.name, self.log = docker, name, HOME / f"{name}.log"
        words = ["run", "--rm", "--name", name, "--network", network, "--read-only", *mounts, *options, image,
                 "/opt/beeline/beeline", "run", "--"]
        self.process = subprocess.Popen(docker.command(*words, *command), stdin=subprocess.DEVNULL, stdout=open(self.log, "wb"),
                                        stderr=subprocess.STDOUT)


def agent():
    """With the configuration of the examples."""
    return Pods((EXAMPLES / "beelined.toml").read_text().partition("[namespaces]\n")[2])


def by_tcp(server, body):
    before = server.lanes()
    body()
    assert server.lanes() == before, server.counters()


@case(240)
def docker_redis():
    """Redis in one of Docker's containers, clients in another one, by its name, and on the host: lanes, and every value right."""
    [program, benchmark] = needs("redis-server", "redis-benchmark")
    python = str(pathlib.Path("/usr/bin/python3").resolve())
    agent()
    with Docker("redis") as docker:
        image = docker.image("redis", program, benchmark)
        clients = docker.image("python", python, trees=[f"/usr/lib/{pathlib.Path(python).name}"])
        docker("network", "create", "shop")
        server = Run(docker, "shop", "store", image, program, "--protected-mode", "no", "--save", "",
                     options=["-p", "127.0.0.1:7000:6379", "-p", "7001:6379"])
        server.says("Ready to accept connections")
        server.is_confined()
        turns = iter(range(100))

        def values():
            client = Run(docker, "shop", f"values{next(turns)}", clients, python, "-c", REDIS, "store")
            assert "keys are right" in client.finish()

        def twenty():
            run = Run(docker, "shop", f"bench{next(turns)}", image, benchmark, "-h", "store", "-c", "20", "-n", "20000",
                      "-t", "set,get", "-q")
            note("; ".join(rates(run.finish())))

        def from_host(*at):
            words = [BEELINE, "run", "--", benchmark, *at, "-c", "4", "-n", "4000", "-t", "get", "-q"]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0 and "requests per second" in done.stdout, done

        over_lanes(server, 1, values)
        over_lanes(server, 20, twenty)
        network = json.loads(docker("inspect", "store"))[0]["NetworkSettings"]["Networks"]["shop"]
        over_lanes(server, 4, lambda: from_host("-h", network["IPAddress"]))
        # Ports that Docker publishes are TCP's: behind the host's loopback address is a proxy of Docker's, which makes a connection of its
        # own, and its other addresses are this namespace's, where nobody with a door listens.
        by_tcp(server, lambda: from_host("-h", "127.0.0.1", "-p", "7000"))
        by_tcp(server, lambda: from_host("-h", network["Gateway"], "-p", "7001"))


@case(240)
def docker_compose():
    """The example for Compose to the letter, agent included, with images of this host's own programs."""
    [program, benchmark, compose] = needs("redis-server", "redis-benchmark", "docker-compose")
    of_beeline = [("/usr/bin/beeline", pathlib.Path(BEELINE).read_bytes()), ("/usr/lib/beeline/libbeeline.so", LIBRARY.read_bytes()),
                  ("/usr/bin/beelined", pathlib.Path(BEELINED).read_bytes()),
                  ("/etc/beeline/beelined.toml", (EXAMPLES / "beelined.toml").read_bytes())]
    with Docker("compose") as docker:
        for name in ("localhost/beeline", "localhost/beeline-redis"):
            docker.image(name, program, benchmark, BEELINED, files=of_beeline, entry=["/usr/bin/beeline", "run", "--"])
        shutil.copytree(EXAMPLES, HOME / "oci")
        order = [compose, "--project-directory", str(HOME / "oci"), "-f", str(HOME / "oci/compose.yaml"), "-p", "shop"]
        try:
            shell(*order, "up", "--no-build", "-d")
            [client] = shell(*order, "ps", "-q", "client").split()
            until(lambda: "requests per second" in docker("logs", client), 90, "the client's figure")
            [store] = shell(*order, "ps", "-q", "store").split()
            stat = json.loads(docker("exec", store, "beeline", "stat", "--json", "--ended"))
        finally:
            print(subprocess.run([*order, "logs", "--no-color", "--tail", "20"], capture_output=True, text=True).stdout[-3000:])
        accepted = sum(process["counters"]["connections_accelerated_server"] for process in stat["processes"])
        note(f"{accepted} lanes, by TCP {[process['reasons'] for process in stat['processes']]}")
        assert accepted, stat
