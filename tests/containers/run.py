#!/usr/bin/env python3
"""Lanes between network namespaces of one host, through the host's agent.

    tests/containers/run.py [NAME...] [--jobs N] [--pods N] [--list] [--bench]   BEELINE=path/to/beeline to test another build

Cases are the functions marked `@case` in cases_*.py, and run like those of the bridge (tests/bridge/run.py): each in namespaces
of its own. They need Linux, `ip`, and root; without, nothing is run, and that is said. What a case needs beyond that (`nft`,
`redis-server`) it says itself.
"""

import argparse
import concurrent.futures
import importlib
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bridge")]

import world  # noqa: E402  (the bridge's: programs, cases, patience)

# 200 namespaces have 400 programs that start at once, and whatever runs beside them waits a minute for its CPUs; Kubernetes has them for
# half a minute.
ALONE = ("many_that_come_and_go", "kubernetes_example")
APART = ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]


def missing():
    if not os.access(world.BEELINE, os.X_OK):
        sys.exit(f"no {world.BEELINE}: build it first (make all)")
    if not os.access(world.BEELINED, os.X_OK):
        return "there is no beelined: it is only built where libfabric is"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        return "this system makes no namespaces"
    return None


def run(case):
    began = time.monotonic()
    done = subprocess.Popen([*APART, sys.executable, "-B", __file__, "--inside", case.name], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        output = done.communicate(timeout=case.seconds + 20)[0]
    except subprocess.TimeoutExpired:
        done.kill()
        output = done.communicate()[0] + "\nit was given up\n"
    return done.returncode, output, time.monotonic() - began


def results(cases, jobs):
    """Each case with what became of it; so many at a time, and those last that run alone."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for case, future in [(case, pool.submit(run, case)) for case in cases if case.name not in ALONE]:
            yield case, future.result()
    for case in cases:
        if case.name in ALONE:
            yield case, run(case)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pods", type=int, default=16, help="namespaces of the case with many (16; 200 for the whole of it)")
    parser.add_argument("--bench", action="store_true", help="measure, instead of testing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("PODS", str(options.pods))
    for file in sorted(HERE.glob("cases_*.py")):
        importlib.import_module(file.stem)
    if options.inside:
        return world.inside(world.CASES[options.inside])
    chosen = [case for name, case in world.CASES.items() if name.startswith("bench_") == options.bench]
    chosen = [case for case in chosen if not options.names or any(want in case.name for want in options.names)]
    if options.list:
        print("\n".join(f"{case.name:36} {case.sentence}" for case in chosen))
        return 0
    if why := missing():
        print(f"skip  all cases between namespaces: {why}")
        return 0
    bad = skipped = 0
    for case, (code, output, seconds) in results(chosen, 1 if options.bench else options.jobs):
        notes = [line[6:] for line in output.splitlines() if line.startswith("note:")]
        word = {0: "ok   ", world.SKIPPED: "skip "}.get(code, "FAIL ")
        print("\n".join([f"{word} {case.name} ({seconds:.1f} s)", *(f"      {line}" for line in notes)]), flush=True)
        skipped += code == world.SKIPPED
        if word == "FAIL ":
            bad += 1
            print("".join(f"    | {line}\n" for line in output.splitlines()), end="", flush=True)
    print(f"{len(chosen) - bad - skipped} of {len(chosen)} cases are good, {skipped} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
