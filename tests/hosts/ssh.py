#!/usr/bin/env python3
"""The papers' instrument between two hosts that are reached by ssh, one of which is lost in the middle.

    tests/hosts/ssh.py

`tests/hosts/bench.sh` makes the hosts: two network namespaces, each with a bridge and an ssh server of its own. A run is begun; when
some of it is there, a host is lost: the server's or the client's (its ssh server and all that it started are killed), or the
server's without a word (its cable is cut, so that nobody is told). The run has to end by itself, to say why, to keep what
was measured and to write its report; between the same hosts, made anew, it has to go on where it was and to end with every cell
measured in every round, and once; it is lost and comes back several times in one run. A host that was never there is an error that
names the plan's line. Takes root; without it nothing is run, and that is said.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent / "bench.sh"
BIN = Path(os.environ.get("BEELINE_BIN", BENCH.parent.parent.parent / "target/release")).resolve()
ROUNDS = 8
SIZES = (64, 65536)
PLAN = f"""format = 1
name = "far"
title = "By ssh"
document = "None"
rounds = {ROUNDS}
sample_ms = 100
[[table]]
id = "latency"
title = "L"
source = "S"
work = "latency"
bytes = {list(SIZES)}
place = ["free"]
"""


def fail(what):
    sys.exit(f"ssh.py: {what}")


def pairs(run):
    """The cells and rounds that a run has; a line that is under way does not count."""
    samples = run / "samples.jsonl"
    lines = samples.read_text().split("\n")[:-1] if samples.exists() else []
    records = [json.loads(line) for line in lines]
    return [(record["cell"], record["round"]) for record in records if record["event"] == "pair"], records


def start(work, **more):
    environment = dict(os.environ, WAY="ssh", WORK=str(work), LIMIT="200", **more)
    words = [str(BENCH)] if "RESUME" in more else [str(BENCH), "--into", str(work / "run"), "--patience", "5"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(work, end, program):
    """Kills what is called so in a host."""
    namespace = (work / end).read_text().strip()
    listed = subprocess.run(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, text=True, check=True)
    for pid in map(int, listed.stdout.split()):
        try:
            if Path(f"/proc/{pid}/comm").read_text().startswith(program):
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


def cut(work):
    """Nothing passes any more, and nobody is told."""
    subprocess.run(["ip", "-n", (work / "server").read_text().strip(), "link", "set", "veth0", "down"], check=True)


# How a host is lost, and what the run says of it.
LOSSES = {
    "the server's host": (lambda work: kill(work, "server", "sshd"), "cannot reach beta"),
    "the client's host": (lambda work: kill(work, "client", "sshd"), "cannot reach alpha"),
    # Whoever asks it waits in vain, or is told by its own host that there is no way.
    "the cable": (cut, "beta"),
}


def a_host_is_lost(work, what):
    """What was measured before, and when it is lost again, in all."""
    lose, told_of_it = LOSSES[what]
    had = len(pairs(work / "run")[0])
    process = start(work, **({"RESUME": str(work / "run")} if had else {"PAPER": str(work / "far.toml")}))
    deadline = time.monotonic() + 100
    while len(pairs(work / "run")[0]) < had + 2:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            fail(f"nothing is measured: {process.communicate()[0]}")
        time.sleep(0.02)
    (work / "run/report.html").unlink(missing_ok=True)
    lose(work)
    told, _ = process.communicate(timeout=150)
    now, records = pairs(work / "run")
    early = records[-1].get("early")
    if process.returncode != 1 or not early or told_of_it not in early:
        fail(f"{what} was lost: the run ended with {process.returncode}, {records[-1]}: {told}")
    report = work / "run/report.html"
    if len(now) >= ROUNDS * len(SIZES) or not report.exists() or "ended early" not in report.read_text():
        fail(f"{what} was lost: {len(now)} pairs were measured; the report is {'' if report.exists() else 'not '}there")
    print(f"{what} was lost after {len(now)} pairs: {early}", flush=True)


def it_goes_on(work):
    before, _ = pairs(work / "run")
    process = start(work, RESUME=str(work / "run"))
    told, _ = process.communicate(timeout=220)
    after, records = pairs(work / "run")
    if process.returncode != 0 or records[-1] != {"event": "end", "early": None}:
        fail(f"going on ended with {process.returncode}: {told}")
    wanted = {(f"latency/bytes={size}/place=free", number) for size in SIZES for number in range(ROUNDS)}
    if after[: len(before)] != before or len(after) != len(wanted) or set(after) != wanted:
        fail(f"the pairs are {after}, of which {before} were there before")
    print(f"went on to {len(after)} pairs")


def a_host_that_is_not_there(work):
    plan = PLAN.replace("sample_ms = 100\n", 'sample_ms = 100\nhosts = ["local", "nobody.invalid"]\n')
    (work / "nobody.toml").write_text(plan)
    words = [str(BIN / "beeline"), "bench", "paper", str(work / "nobody.toml"), "--into", str(work / "none")]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 2 or "nobody.toml:7:9: cannot reach nobody.invalid" not in done.stdout:
        fail(f"a host that is not there ended with {done.returncode}: {done.stdout}")


def main():
    if os.geteuid() != 0:
        print("skip: network namespaces take root")
        return
    if not (BIN / "beelined").exists():
        print("skip: there is no beelined: it is only built where libfabric is")
        return
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "far.toml").write_text(PLAN)
        a_host_that_is_not_there(work)
        for what in LOSSES:
            a_host_is_lost(work, what)
        it_goes_on(work)


if __name__ == "__main__":
    main()
