#!/usr/bin/env python3
"""Foreign test suites and real programs, each without and with Beeline on both ends.

    tests/compat/run.py [NAME...] [--fast] [--jobs N] [--docs FILE]      BEELINE=path/to/beeline to test another build

A NAME is that of a program, of a suite, or SUITE/UNIT. `--fast` names those that `make test` runs.

A suite (suites/NAME.sh) builds itself once (`prepare`), names its units, one a line (`units`), and runs one (`run UNIT`),
leaving a line `pass NAME`, `fail NAME`, `skip NAME` or `begin NAME` a test in $OUTCOMES. A test that passes without
Beeline must pass with it. One that does not is run twice more, with its unit: if it passes then, it is called
unsteady and named; if it hangs, nothing excuses it.

A program (programs/NAME.sh, and those of tests/apps) prints facts, which must be the same both times. Some bytes must have
gone over lanes, unless the file says `# expects: REASON`. One that says `# prepares: yes` is called with `prepare` first, to
download and build into $CACHE.

Each job runs in namespaces of its own (see inside.py), so several run at once. They need Linux and either root or
unprivileged user namespaces.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BUILT = pathlib.Path(os.environ.get("BEELINE", TARGET / "release" / "beeline"))
# What suites download and build, kept between runs.
CACHE = TARGET / "compat"
# What jobs leave: where servers can look that run as other users. Removed when all is well.
WORK = pathlib.Path(tempfile.mkdtemp(prefix="beeline-compat-"))
BEELINE = str(WORK / "bin" / "beeline")
MODES = ("tcp", "beeline")
# About a minute of work, and of each kind something that `make test` does not run otherwise.
FAST = ("inetd", "netcat", "socat", "rsync", "haproxy", "stunnel", "cpython/test_asyncio.test_streams",
        "cpython/test_asyncio.test_sendfile", "cpython/test_socketserver", "cpython/test_ftplib", "cpython/test_httpservers",
        "cpython/test_epoll", "cpython/test_select")
UNIT_SECONDS = 300
PROGRAM_SECONDS = 180
# Nothing but the library or the loader says these.
COMPLAINTS = re.compile(r"^(beeline: |ERROR: ld\.so|.*libbeeline.*panicked)", re.MULTILINE)

printing = threading.Lock()


def say(text):
    with printing:
        print(text, flush=True)


def header(path, key, default=None):
    """The value of a line `# key: value` at the head of a script."""
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if line.startswith(f"# {key}: "):
            return line.split(": ", 1)[1]
    return default


@dataclasses.dataclass
class Job:
    """One script run in one mode."""
    directory: pathlib.Path
    code: int
    seconds: float

    def text(self, name):
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self):
        """What Beeline counted in each process of the job."""
        if not (self.directory / "stats").is_dir():
            return []
        command = [BEELINE, "stat", "--json", "--ended", "--root", self.directory / "stats"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(text)["processes"]


def run(script, arguments, mode, name, seconds):
    directory = WORK / name / mode
    if directory.exists():
        shutil.rmtree(directory)
    (directory / "stats").mkdir(parents=True)
    for path in (directory, *directory.relative_to(WORK).parents):
        (WORK / path).chmod(0o755)
    environment = dict(os.environ, MODE=mode, BEELINE=BEELINE, CACHE=str(CACHE), WORK=str(directory),
                       OUTCOMES=str(directory / "outcomes"), LC_ALL="C.UTF-8", COMPAT="1")
    # A job ends with us, however we end.
    own = ["setpriv", "--pdeathsig", "KILL",
           "unshare", "--net", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        own.append("--map-root-user")
    command = own + [sys.executable, HERE / "inside.py", directory, str(seconds), "bash", script, *arguments]
    began = time.monotonic()
    with open(directory / "facts", "wb") as facts, open(directory / "log", "wb") as log:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=facts, stderr=log, env=environment,
                              cwd=directory).returncode
    return Job(directory, code, time.monotonic() - began)


@dataclasses.dataclass
class Lanes:
    """What a job's processes sent and received, and why they did not use lanes."""
    connections: int = 0
    on_tcp: int = 0
    bytes: int = 0
    reasons: dict = dataclasses.field(default_factory=dict)
    poisoned: int = 0

    @classmethod
    def of(cls, processes):
        lanes = cls()
        for process in processes:
            lanes.connections += process["accelerated"]
            lanes.on_tcp += process["fallen_back"]
            # Each byte is received once; a process that is killed may not have counted its own.
            lanes.bytes += max(process["bytes_received"], 0)
            lanes.poisoned += sum(cause["count"] for cause in process["poisons"])
            for cause in process["reasons"]:
                key = f"{cause['name']} ({cause['role']})"
                lanes.reasons[key] = lanes.reasons.get(key, 0) + cause["count"]
        return lanes

    def add(self, other):
        self.connections += other.connections
        self.on_tcp += other.on_tcp
        self.bytes += other.bytes
        self.poisoned += other.poisoned
        for key, count in other.reasons.items():
            self.reasons[key] = self.reasons.get(key, 0) + count


def outcomes(job):
    """Each test's outcome. One that began and did not end hung, or took its process with it."""
    found = {}
    for line in job.text("outcomes").splitlines():
        outcome, _, name = line.partition(" ")
        if name:
            found[name] = "hang" if outcome == "begin" else outcome
    return found


@dataclasses.dataclass
class SuiteResult:
    name: str
    title: str = ""
    passed: int = 0
    skipped: int = 0
    failed_both: int = 0
    only_beeline: list = dataclasses.field(default_factory=list)
    unsteady: list = dataclasses.field(default_factory=list)
    lanes: Lanes = dataclasses.field(default_factory=Lanes)
    seconds: float = 0.0
    problem: str = ""

    @property
    def good(self):
        return not self.problem and not self.only_beeline and self.passed > 0


class Suite:
    def __init__(self, path):
        self.path = path
        self.name = path.stem
        self.result = SuiteResult(self.name, header(path, "title", self.name))
        self.lock = threading.Lock()

    def call(self, *arguments, seconds):
        """Runs a part of the script that needs no namespaces of its own."""
        CACHE.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ, CACHE=str(CACHE), LC_ALL="C.UTF-8")
        log = WORK / f"{self.name}.{arguments[0]}"
        with open(log, "wb") as output:
            done = subprocess.run(["bash", self.path, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=output, env=environment, timeout=seconds, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments[0]} failed with {done.returncode}: {log}")
        return done.stdout

    def units(self):
        try:
            self.call("prepare", seconds=1500)
            return self.call("units", seconds=60).split()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.result.problem = str(error)
            say(f"FAIL  {self.name}: {error}")
            return []

    def run_unit(self, unit):
        label = f"{self.name}/{unit}"
        seconds = int(header(self.path, "seconds", UNIT_SECONDS))
        jobs = {mode: run(self.path, ("run", unit), mode, label, seconds) for mode in MODES}
        without, having = outcomes(jobs["tcp"]), outcomes(jobs["beeline"])
        passing = [name for name, outcome in without.items() if outcome == "pass"]
        suspects = {name: having.get(name, "missing") for name in passing if having.get(name) != "pass"}
        lanes = Lanes.of(jobs["beeline"].processes())
        hung = [name for name, outcome in suspects.items() if outcome == "hang"]
        bad, unsteady = list(hung), []
        others = [name for name in suspects if name not in hung]
        if others:
            # Moved, for there may be sockets and pipes in it.
            jobs["beeline"].directory.rename(WORK / label / "beeline.first")
        for attempt in range(2):
            if not others:
                break
            again = outcomes(run(self.path, ("run", unit), "beeline", label, seconds))
            unsteady += [name for name in others if again.get(name) == "pass"]
            others = [name for name in others if again.get(name) != "pass"]
        bad += others
        with self.lock:
            result = self.result
            result.passed += len(passing)
            result.skipped += sum(outcome == "skip" for outcome in without.values())
            result.failed_both += sum(outcome in ("fail", "hang") for outcome in without.values())
            result.only_beeline += [f"{unit}: {name} ({suspects[name]})" for name in bad]
            result.unsteady += [f"{unit}: {name} ({suspects[name]})" for name in unsteady]
            result.lanes.add(lanes)
            result.seconds += sum(job.seconds for job in jobs.values())
            if not without:
                result.problem += f"{unit} ran no test over TCP; "
        mark = "pass" if not bad and without else "FAIL"
        times = " / ".join(f"{jobs[mode].seconds:.0f} s" for mode in MODES)
        say(f"{mark}  {label}: {len(passing)} tests, {lanes.connections} lanes, {times}"
            + "".join(f"\n        only with Beeline: {name} ({suspects[name]})" for name in bad)
            + "".join(f"\n        unsteady: {name} ({suspects[name]})" for name in unsteady))


@dataclasses.dataclass
class ProgramResult:
    name: str
    title: str
    what: str
    versions: str = ""
    outcome: str = ""
    why: str = ""
    lanes: Lanes = dataclasses.field(default_factory=Lanes)
    expected: str = ""
    seconds: float = 0.0

    @property
    def good(self):
        return self.outcome == "pass"


def description(path):
    """Title and text of the comment at the head of a script: `# Title: text`, over several lines."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not re.match(r"#(!| (title|expects|prepares|seconds): )", line):
            lines.append(line.lstrip("# "))
    title, _, what = " ".join(lines).partition(": ")
    return title, what


def prepare_program(path):
    """Lets a script download and build what it needs, outside of the namespaces of its jobs."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(WORK / f"{path.stem}.prepare", "wb") as output:
        done = subprocess.run(["bash", path, "prepare"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                              env=dict(os.environ, CACHE=str(CACHE), LC_ALL="C.UTF-8"), timeout=1500)
    return done.returncode == 0


def run_program(path):
    name = path.stem
    title, what = description(path)
    result = ProgramResult(name, title, what, expected=header(path, "expects", ""))
    seconds = int(header(path, "seconds", PROGRAM_SECONDS))
    if header(path, "prepares") and not prepare_program(path):
        result.outcome, result.why = "FAIL", f"prepare failed: {WORK / name}.prepare"
        say(f"FAIL  {name}: {result.why}")
        return result
    tcp = run(path, (), "tcp", name, seconds)
    result.seconds = tcp.seconds
    if tcp.code == 77:
        result.outcome, result.why = "skip", (tcp.text("log").splitlines() or ["?"])[-1]
        say(f"skip  {name}: {result.why}")
        return result
    beeline = run(path, (), "beeline", name, seconds)
    result.seconds += beeline.seconds
    result.versions = beeline.text("version").strip()
    processes = beeline.processes()
    result.lanes = Lanes.of(processes)
    whys = []
    if tcp.code != 0:
        whys.append(f"exit code over TCP {tcp.code}")
    if beeline.code != 0:
        whys.append(f"exit code over Beeline {beeline.code}")
    if tcp.text("facts") != beeline.text("facts"):
        whys.append("the facts differ")
    if complaint := COMPLAINTS.search(beeline.text("log")):
        whys.append(f"on stderr: {complaint.group(0)}")
    if result.lanes.poisoned:
        whys.append(f"{result.lanes.poisoned} connections were poisoned")
    if result.expected:
        if not any(reason.startswith(result.expected + " ") for reason in result.lanes.reasons):
            whys.append(f"the reason {result.expected} was not counted")
    elif result.lanes.bytes == 0:
        whys.append("no byte went over a lane")
    result.outcome, result.why = ("FAIL", "; ".join(whys)) if whys else ("pass", "")
    lines = [f"{result.outcome}  {name}: {result.lanes.connections} lane ends, {report.amount(result.lanes.bytes)}, "
             f"{tcp.seconds:.0f} s / {beeline.seconds:.0f} s" + (f": {result.why}" if whys else "")]
    if whys:
        difference = subprocess.run(["diff", "-u", tcp.directory / "facts", beeline.directory / "facts"],
                                    capture_output=True, text=True, errors="replace").stdout.splitlines()[2:]
        lines += [f"      {line}" for line in difference[:20]]
        for job in (tcp, beeline):
            lines += [f"      {job.directory.name}: {line[:200]}" for line in job.text("log").splitlines()[-12:]]
        lines += [f"      {count} x {reason}" for reason, count in result.lanes.reasons.items()]
    say("\n".join(lines))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="suites and programs (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--docs", type=pathlib.Path, help="where to write what was found, as Markdown")
    parser.add_argument("--fast", action="store_true", help="the ones that make test runs")
    arguments = parser.parse_args()
    if arguments.fast:
        arguments.names += FAST
    if not os.access(BUILT, os.X_OK):
        sys.exit(f"no beeline at {BUILT}: build it first (make all)")
    (WORK / "bin").mkdir()
    for file in ("beeline", "libbeeline.so"):
        shutil.copy2(BUILT.parent / file, WORK / "bin")
    (WORK / "bin").chmod(0o755)

    def wanted(path):
        return not arguments.names or any(name.split("/")[0] == path.stem for name in arguments.names)

    suites = [Suite(path) for path in sorted((HERE / "suites").glob("*.sh")) if wanted(path)]
    programs = [path for folder in (HERE / "programs", ROOT / "tests" / "apps" / "cases")
                for path in sorted(folder.glob("*.sh")) if wanted(path)]
    for name in arguments.names:
        if name.split("/")[0] not in {path.stem for path in programs} | {suite.name for suite in suites}:
            sys.exit(f"there is no suite or program {name}")
    began = time.monotonic()
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # Programs first: suites are being built meanwhile.
        waiting = [pool.submit(run_program, path) for path in programs]
        units = [(suite, unit) for suite in suites for unit in suite.units()
                 if not arguments.names or {suite.name, f"{suite.name}/{unit}"} & set(arguments.names)]
        done = [pool.submit(suite.run_unit, unit) for suite, unit in units]
        for future in done:
            future.result()
        results = [future.result() for future in waiting]
    text = report.table([suite.result for suite in suites], results)
    say(f"\n{text}\n{(time.monotonic() - began) / 60:.1f} minutes")
    if arguments.docs:
        arguments.docs.write_text(report.document([suite.result for suite in suites], results, BEELINE))
    everything = [suite.result for suite in suites] + results
    failed = sum(not result.good and getattr(result, "outcome", "") != "skip" for result in everything)
    skipped = sum(getattr(result, "outcome", "") == "skip" for result in everything)
    say(f"{len(everything) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    if failed:
        say(f"what the jobs left is in {WORK}")
        sys.exit(1)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
