"""Real containers for the cases: Podman with crun, images made of this host's own programs, networks made by pods.py.

A container has a read-only root, private /dev/shm, /tmp and pid namespace, Podman's default capabilities and seccomp profile. From the host it
has two mounts: the program and library of Beeline, as a DaemonSet or a package would put them there, and the agent's directory, both
read-only. All of it is within the case's own mount and pid namespaces, and ends with them.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

from world import BEELINE, Skip, shell, until

STORE = pathlib.Path("/run/containers-of-the-case")
NEEDED = ("podman", "crun", "conmon")
LIBRARY = pathlib.Path(BEELINE).resolve().with_name("libbeeline.so")


def needs(*programs):
    """Skips the case where one is missing; returns where they are."""
    found = []
    for program in programs:
        places = [shutil.which(program), *map(str, pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))]
        places = [place for place in places if place]
        if not places:
            raise Skip(f"there is no `{program}`")
        found.append(places[-1])
    return found


def libraries(program):
    """What the loader will look for. Nothing for a script."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/[^ ]+) \(0x", told)


def rootfs(root, *programs, trees=(), files=()):
    """A directory with these programs and all that they and Beeline need, whole directories, and `(path, text)`."""
    wanted = {"/bin/sh", *programs}
    for one in list(wanted) + [BEELINE, str(LIBRARY)]:
        wanted.update(libraries(one))
    for tree in trees:
        target = root / tree.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tree, target, symlinks=True, ignore=shutil.ignore_patterns("test", "__pycache__", "locale", "man"))
        for module in target.rglob("*.so"):
            wanted.update(libraries(str(module)))
    for path in wanted:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(pathlib.Path(path).resolve(), target)
    users = "root:x:0:0::/:/bin/sh\nserver:x:999:999::/tmp:/bin/sh\n"
    for path, text in [("/etc/passwd", users), ("/etc/group", "root:x:0:\nserver:x:999:\n"), *files]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        target.chmod(0o755 if "/bin/" in path else 0o644)
    for directory in ("tmp", "run", "proc", "sys", "dev", "data", "usr/local/bin"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    return root


def load(root, importing):
    """Gives a directory to an engine as an image, and removes it."""
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        done = subprocess.run(importing, stdin=tar.stdout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(root)


class Engine:
    def __init__(self):
        needs(*NEEDED)
        if STORE.exists():
            return
        STORE.mkdir()
        # A user namespace may not set what Podman sets by itself.
        (STORE / "containers.conf").write_text("[containers]\ndefault_sysctls = []\n")
        os.environ["CONTAINERS_CONF"] = str(STORE / "containers.conf")
        # crun wants one kind of cgroups only, and needs none of them here.
        subprocess.run(["umount", "-R", "/sys/fs/cgroup"], capture_output=True)
        subprocess.run(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], capture_output=True)

    def command(self, *words):
        return ["podman", "--root", str(STORE / "images"), "--runroot", str(STORE / "run"), "--tmpdir", str(STORE / "tmp"),
                "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
                "--log-level", "error", *map(str, words)]

    def image(self, name, *programs, trees=(), files=()):
        """An image that has these programs with all that they need, whole directories, and `(path, text)`."""
        root = rootfs(STORE / "rootfs" / name, *programs, trees=trees, files=files)
        load(root, self.command("import", "-", f"localhost/{name}"))
        return f"localhost/{name}"

    def python(self):
        """An image with Debian's Python, and where that is in it."""
        program = pathlib.Path("/usr/bin/python3").resolve()
        home = pathlib.Path("/usr/lib") / program.name
        if not program.exists() or not home.is_dir():
            raise Skip("there is no /usr/bin/python3")
        return self.image("python", str(program), trees=[str(home)]), str(program)


class Contained:
    """A running container of an engine: `engine`, `name`, `log` and `process` say which."""

    @property
    def pid(self):
        return int(shell(*self.engine.command("inspect", "--format", "{{.State.Pid}}", self.name)))

    def said(self):
        return self.log.read_text(errors="replace")

    def sh(self, *command):
        """What a command in the container says."""
        return shell(*self.engine.command("exec", self.name, *command))

    def says(self, text, seconds=30):
        def there():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.said()[-2000:]}"
            return text in self.said()
        until(there, seconds, f"`{text}` of {self.name}: {self.said()[-500:]}")

    def finish(self, seconds=90):
        """Its whole output, when it has ended well."""
        code = self.process.wait(timeout=seconds)
        assert code == 0, f"{self.name} ended with {code}: {self.said()[-2000:]}"
        return self.said()

    def counters(self):
        """The counters and reasons of its programs, those that have ended included, summed."""
        sums, reasons = {}, {}
        for process in json.loads(self.sh("/opt/beeline/beeline", "stat", "--json", "--ended"))["processes"]:
            for name, count in process["counters"].items():
                sums[name] = sums.get(name, 0) + count
            for cause in process["reasons"]:
                reasons[cause["name"]] = reasons.get(cause["name"], 0) + cause["count"]
        return sums, reasons

    def lanes(self):
        sums, _ = self.counters()
        return sums.get("connections_accelerated_server", 0) + sums.get("connections_accelerated_client", 0)

    def is_confined(self):
        """What a container is told apart from a program by."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        assert "Seccomp:\t2" in status, "no seccomp profile"
        for kind in ("mnt", "pid", "ipc", "uts"):
            own, its = (pathlib.Path(f"/proc/{pid}/ns/{kind}").readlink() for pid in ("self", self.pid))
            assert own != its, f"it shares the {kind} namespace"
        done = subprocess.run(self.engine.command("exec", self.name, "/bin/sh", "-c", "echo x > /x"), capture_output=True, text=True)
        assert done.returncode != 0 and "Read-only" in done.stderr, done.stderr

    # As Program of bridge/world.py, for what looks through all that runs.

    def kill(self):
        subprocess.run(self.engine.command("rm", "-f", "-t", "0", self.name), capture_output=True)
        self.process.wait()


class Container(Contained):
    """One of Podman's in a pod's network namespace."""

    def __init__(self, engine, pod, image, *command, user=None, beeline=True, subordinate=None, data=False, dropped=False,
                 options=()):
        self.engine, self.name, self.log = engine, f"c{len(pod.running)}-{pod.name}", pod.directory / f"c{len(pod.running)}.log"
        pod.running.append(self)
        nofile, nproc = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_NPROC)[1]
        run = ["/opt/beeline/beeline", "run", *(word for option in options for word in ("-o", option)), "--"] if beeline else []
        words = ["run", "--rm", "--name", self.name, "--read-only", "--cgroups=disabled", f"--network=ns:/run/netns/{pod.name}",
                 # No more than the tests have: a host where they run may forbid to raise it.
                 f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=nproc={nproc}:{nproc}",
                 "-v", f"{BEELINE}:/opt/beeline/beeline:ro", "-v", f"{LIBRARY}:/opt/beeline/libbeeline.so:ro",
                 "-v", "/run/beeline-agent:/run/beeline-agent:ro"]
        words += ["--user", str(user)] if user else []
        words += ["--cap-drop=ALL", "--security-opt=no-new-privileges"] if dropped else []
        words += ["--tmpfs", "/data:rw,mode=1777,size=256m"] if data else []
        words += [f"--uidmap=0:{subordinate}:10000", f"--gidmap=0:{subordinate}:10000"] if subordinate else []
        self.process = subprocess.Popen(engine.command(*words, image, *run, *command), stdin=subprocess.DEVNULL,
                                        stdout=open(self.log, "wb"), stderr=subprocess.STDOUT)
