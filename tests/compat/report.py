"""What `run.py` found, as a table for the terminal and as docs/compatibility.md."""

import re
import subprocess
from datetime import date


def amount(count):
    """Bytes with one unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def table(suites, programs):
    lines = []
    for suite in suites:
        outcome = "pass" if suite.good else "FAIL"
        lines.append(f"{outcome}  {suite.name:14} {suite.passed:5} pass without, {len(suite.only_beeline)} of them fail with; "
                     f"{suite.skipped} skipped, {suite.failed_both} fail without, {len(suite.unsteady)} unsteady; "
                     f"{suite.lanes.connections} lane ends, {amount(suite.lanes.bytes)}; {suite.seconds:.0f} s {suite.problem}")
        lines += [f"        fails only with Beeline: {name}" for name in suite.only_beeline]
        lines += [f"        unsteady: {name}" for name in suite.unsteady]
    for program in programs:
        lines.append(f"{program.outcome}  {program.name:14} {program.lanes.connections:5} lane ends, "
                     f"{amount(program.lanes.bytes):>7}; {program.seconds:.0f} s {program.why}")
    return "\n".join(lines)


def reasons(lanes):
    ordered = sorted(lanes.reasons, key=lambda name: -lanes.reasons[name])
    return ", ".join(f"`{name.split(' ')[0]}`" for name in dict.fromkeys(name.split(" ")[0] for name in ordered)) or "none"


def numbers(versions):
    """The version numbers in what programs say of themselves."""
    found = (re.search(r"\d+\.\d[\w.+~-]*", line) for line in versions.splitlines())
    return ", ".join(dict.fromkeys(number.group() for number in found if number)) or "?"


HEAD = """# What runs with Beeline

Written by `make compat`, which runs all of this without Beeline and with it on both ends, and compares.

A test suite counts as passed when no test fails with Beeline that passes without it. A program counts as passed when
what it computed, transferred and answered is the same both times, nothing of ours appears on its standard error, and
its data went over lanes, or the reason that it should give was counted.
"""


def document(suites, programs, beeline):
    version = subprocess.run([beeline, "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "log", "-1", "--format=commit %h"], capture_output=True, text=True).stdout.strip()
    lines = [HEAD, f"Last complete run: {', '.join(filter(None, [version, date.today().isoformat(), commit]))}.", "", "## Test suites of others", "",
             "| suite | tests that pass without | of them fail with | unsteady | connection ends on lanes | data over lanes |",
             "|---|---|---|---|---|---|"]
    for suite in suites:
        lines.append(f"| {suite.title} | {suite.passed} | {len(suite.only_beeline)} | {len(suite.unsteady)} "
                     f"| {suite.lanes.connections} | {amount(suite.lanes.bytes)} |")
    for suite in suites:
        if suite.only_beeline:
            lines += ["", f"Fail with Beeline in {suite.title}:", ""]
            lines += [f"- `{name}`" for name in suite.only_beeline]
    lines += ["", "An unsteady test failed with Beeline and passed when its unit ran again.", "", "## Programs", "",
              "| program | version | what it did | result | connection ends on lanes, on TCP | data over lanes | reasons for TCP |",
              "|---|---|---|---|---|---|---|"]
    for program in sorted(programs, key=lambda program: program.title.lower()):
        result = {"pass": "same", "skip": "not run"}.get(program.outcome, "**differs**")
        lines.append(f"| {program.title} | {numbers(program.versions)} | {program.what} | {result} "
                     f"| {program.lanes.connections}, {program.lanes.on_tcp} | {amount(program.lanes.bytes)} "
                     f"| {reasons(program.lanes)} |")
    return "\n".join(lines) + "\n"
