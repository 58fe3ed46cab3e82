#!/usr/bin/env python3
"""The papers' instrument between two hosts that are reached by ssh, one of which is lost in the middle.

    tests/hosts/ssh.py

`tests/hosts/bench.sh` makes the hosts: two network namespaces, each with a bridge and an ssh server of its own. A run is begun; when
some of it is there, the server's host is lost (its ssh server and all that it started are killed). The run has to end by itself, to say
why, to keep what was measured and to write its report; between the same hosts, made anew, it has to go on where it was and to end
with every cell measured in every round, and once. A host that was never there is an error that names the plan's line. Takes root.
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
ROUNDS = 6
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


def lose(work):
    """Kills the ssh server of the second host, and what it has started."""
    namespace = (work / "server").read_text().strip()
    listed = subprocess.run(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, text=True, check=True)
    for pid in map(int, listed.stdout.split()):
        try:
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


def a_host_is_lost(work):
    process = start(work, PAPER=str(work / "far.toml"))
    deadline = time.monotonic() + 100
    while len(pairs(work / "run")[0]) < 2:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            fail(f"nothing is measured: {process.communicate()[0]}")
        time.sleep(0.02)
    lose(work)
    told, _ = process.communicate(timeout=150)
    before, records = pairs(work / "run")
    if process.returncode != 1 or not records[-1].get("early"):
        fail(f"a lost host ended the run with {process.returncode}, {records[-1]}: {told}")
    if len(before) >= ROUNDS * len(SIZES) or not (work / "run/report.html").exists():
        fail(f"{len(before)} pairs were measured; the report is {'' if (work / 'run/report.html').exists() else 'not '}there")
    print(f"lost after {len(before)} pairs: {records[-1]['early']}")
    return before


def it_goes_on(work, before):
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
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "far.toml").write_text(PLAN)
        a_host_that_is_not_there(work)
        it_goes_on(work, a_host_is_lost(work))


if __name__ == "__main__":
    main()
