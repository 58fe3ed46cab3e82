"""A tier as processes, started under Beeline or not and ended by their pids; and the application server, which is one."""

import os
import pathlib
import signal
import subprocess

from .hosts import Trouble, until


def session_of(pid):
    """The processes of a tier: those of the session that its first one leads."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == pid:
                found.append(int(entry.name))
    return found


def children_of(pid):
    try:
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


class Tier:
    """A process, or several that one leads."""

    name = ""
    # Ends it in good order.
    end_signal = signal.SIGTERM

    def __init__(self, host, directory, beeline=None, options=()):
        """`beeline`: the command under which it runs; none means kernel TCP."""
        self.host, self.directory, self.beeline, self.options = host, pathlib.Path(directory), beeline, options
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = None

    def command(self):
        raise NotImplementedError

    def ready(self):
        raise NotImplementedError

    def start(self):
        command = self.command()
        if self.beeline:
            command = [self.beeline, "run", "-q", *(word for option in self.options for word in ("-o", option)), "--", *command]
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(self.host.lasting(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)

    def wait_ready(self, seconds=90):
        def look():
            if self.process.poll() is not None:
                raise Trouble(f"{self.name} ended with {self.process.returncode}: {self.log()[-2000:]}")
            return self.ready()
        until(look, seconds, f"{self.name} ({self.directory})")

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def log_of_errors(self):
        return self.log()

    def pids(self):
        return session_of(self.process.pid) if self.process else []

    def kill(self):
        """kill -9 of all its processes."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def stop(self, seconds=30):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(self.end_signal)
            try:
                self.process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        self.process = None


class Application(Tier):
    name = "application"

    def __init__(self, *words, port=8080, database=None, class_path="", server="jetty", pooled=True, threads=64, connections=24,
                 heap_mib=512, **more):
        super().__init__(*words, **more)
        self.server = server
        self.port, self.database, self.class_path = port, database, class_path
        self.pooled, self.threads, self.connections, self.heap_mib = pooled, threads, connections, heap_mib
        self.lines_before = 0

    def command(self):
        return ["java", f"-Xms{self.heap_mib}m", f"-Xmx{self.heap_mib}m", "-XX:+UseParallelGC", "-XX:+PreserveFramePointer",
                "-cp", self.class_path, "store.Main",
                "--server", self.server, "--directory", self.directory,
                "--address", self.host.address, "--port", self.port, "--database", self.database.jdbc, "--user", "store",
                "--pool", "on" if self.pooled else "off", "--connections", self.connections, "--threads", self.threads]

    def start(self):
        self.lines_before = self.log().count("ready\n") if (self.directory / "log").exists() else 0
        super().start()

    def ready(self):
        return self.log().count("ready\n") > self.lines_before


APPLICATION_SERVERS = ("jetty", "tomcat")
