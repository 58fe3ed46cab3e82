#!/usr/bin/env python3
"""The whole bridge, between hosts that are network namespaces, over libfabric's `tcp` provider.

    tests/bridge/run.py [NAME...] [--jobs N] [--nightly] [--list]      BEELINE=path/to/beeline to test another build

Cases are the functions marked `@case` in cases_*.py. Each runs in namespaces of its own (network, processes, mounts):
so several run at once, and whatever one leaves running ends with it. The lines of a case's output that begin with
`note:` are shown; everything is shown when it fails or takes too long.

They need Linux, `ip`, libfabric's tcp provider, and root; without, nothing is run, and that is said.
"""

import argparse
import concurrent.futures
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import world

HERE = pathlib.Path(__file__).resolve().parent
# Nothing of the outside is seen inside, and nothing from the inside stays.
APART = ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]


def cases():
    for file in sorted(HERE.glob("cases_*.py")):
        importlib.import_module(file.stem)
    return world.CASES


def missing():
    """Why nothing can be run, or None."""
    if not os.access(world.BEELINE, os.X_OK):
        sys.exit(f"no {world.BEELINE}: build it first (make all)")
    if not os.access(world.BEELINED, os.X_OK):
        return "there is no beelined: it is only built where libfabric is"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program in ("unshare", "nsenter", "ip", "ss"):
        if not shutil.which(program):
            return f"there is no `{program}`"
    if subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        return "this system makes no namespaces"
    rails = subprocess.run([world.BEELINED, "rails"], capture_output=True, text=True)
    if rails.returncode != 0 and "fabric" in rails.stderr:
        return rails.stderr.strip()
    return None


def run(case):
    began = time.monotonic()
    command = [*APART, sys.executable, "-B", __file__, "--inside", case.name]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        output, late = done.communicate(timeout=case.seconds + 20)[0], False
    except subprocess.TimeoutExpired:
        done.kill()
        output, late = done.communicate()[0], True
    return done.returncode if not late else "late", output, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nightly", action="store_true", help="more of everything that repeats")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = cases()
    if options.inside:
        return world.inside(known[options.inside])
    if options.nightly:
        os.environ["BRIDGE_NIGHTLY"] = "1"
    chosen = [case for name, case in known.items() if not options.names or any(want in name for want in options.names)]
    if options.list:
        print("\n".join(f"{case.name:32} {case.sentence}" for case in chosen))
        return 0
    if why := missing():
        print(f"skip  all cases of the bridge: {why}")
        return 0
    bad = skipped = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for case, future in [(case, pool.submit(run, case)) for case in chosen]:
            code, output, seconds = future.result()
            notes = [line for line in output.splitlines() if line.startswith("note:")]
            if code == world.SKIPPED:
                skipped += 1
                print(f"skip  {case.name}: {notes[-1][6:] if notes else ''}", flush=True)
                continue
            word = "ok   " if code == 0 else "late " if code == "late" else "FAIL "
            told = [f"{word} {case.name} ({seconds:.1f} s)", *(f"      {note[6:]}" for note in notes)]
            print("\n".join(told), flush=True)
            if code != 0:
                bad += 1
                print("".join(f"    | {line}\n" for line in output.splitlines()), end="", flush=True)
    print(f"{len(chosen) - bad - skipped} of {len(chosen)} cases are good, {skipped} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
