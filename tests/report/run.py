#!/usr/bin/env python3
"""Looks at a report of `beeline bench paper`, and at one of the site, with a real browser, headless: on a phone, on a screen, and on paper.

    tests/report/run.py             `make test-report` installs Chromium and builds the instrument first

A small run is made over a library that the loader passes over, as figures do not matter here; the site's report is that of its tests. Then, of the page: it asks for
nothing from outside; nothing is wider than the screen but tables and figures, which scroll in their boxes; no figure is cut off, all text of
figures lies within them; and on paper every table is there. Exit code 77 where there is no Chromium.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = Path(os.environ.get("BEELINE_BENCH", ROOT / "target/release/beeline-bench")).resolve()
# A phone, a tablet, a screen.
WIDTHS = (360, 768, 1280)
# An A4 sheet on its side without its margins, 96 pixels an inch.
SHEET = 1030
PLAN = """
format = 1
name = "page"
title = "A page with <everything> & more"
document = "None"
rounds = 2
sample_ms = 20

[[table]]
id = "curve"
title = "A curve, with a reference"
source = "figure 1"
work = "latency"
bytes = "1..64K doubling"
place = ["same"]
beside = ["verbs"]
figures = ["p50", "p99", "rate", "cpu-client", "cpu-server"]

[[table.published]]
what = "A system of another century with a long name"
figure = "p50"
value = "12 us"

[[table]]
id = "dots"
title = "Dots, with a long label for each"
source = "figure 2"
work = "stream"
bytes = ["64K"]
streams = [1, 4]
place = ["same", "free"]
load = ["none", "memory"]

[[table]]
id = "absent"
title = "What was not measured"
source = "figure 3"
not_measured = "there is a reason, and it is a long one, so long that a narrow screen has to break it over several lines"
"""
# What the page says of itself, in a page around it.
ASK = """<!DOCTYPE html><html><body><script>
const frame = document.createElement("iframe");
frame.style.cssText = "width: %dpx; height: 900px; border: 0";
frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement, found = [];
    const broken = [...page.querySelectorAll("td")].filter(cell => cell.getBoundingClientRect().height > 36);
    if (broken.length) found.push("in several lines: " + broken[0].textContent);
    const outside = box => box.right > root.clientWidth + 1 || box.left < -1;
    for (const element of page.querySelectorAll("p, h1, h2, .box, nav"))
        if (outside(element.getBoundingClientRect())) found.push(element.tagName + ": " + element.textContent.slice(0, 60));
    for (const svg of page.querySelectorAll("svg")) {
        const around = svg.getBoundingClientRect();
        for (const text of svg.querySelectorAll("text")) {
            const box = text.getBoundingClientRect();
            if (box.right > around.right + 1 || box.left < around.left - 1 || box.bottom > around.bottom + 1 || box.top < around.top - 1)
                found.push("cut off: " + text.textContent.trim());
        }
    }
    document.body.textContent = "SAID" + JSON.stringify({
        width: root.clientWidth, wide: root.scrollWidth, found,
        tables: page.querySelectorAll("table").length, figures: page.querySelectorAll("svg").length,
        rows: page.querySelectorAll("tbody tr").length, title: page.title,
        text: page.body.innerText.length,
        asked: performance.getEntriesByType("resource").length + frame.contentWindow.performance.getEntriesByType("resource").length,
    }) + "DIAS";
};
frame.src = "%s";
document.body.append(frame);
</script></body></html>"""


def chromium(profile, *words):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--allow-file-access-from-files", "--disable-background-networking", f"--user-data-dir={profile}", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"chromium ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


def look(directory, width, page="report.html"):
    """What the page is like on a screen of that width."""
    around = directory / f"around-{width}.html"
    around.write_text(ASK % (width, page))
    words = (f"--window-size={width + 40},1000", "--virtual-time-budget=5000", "--dump-dom", around.as_uri())
    dom = chromium(directory / "profile", *words)
    said = re.search(r"SAID(.*)DIAS", dom, re.S)
    if not said:
        sys.exit(f"the browser says nothing of the page: {dom[-400:]}")
    # The DOM is printed as HTML.
    return json.loads(said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def views_of(run, tables, rows, figures, title, pages_most):
    """What is wrong with the report in a directory, in all views."""
    wrong = []
    # The rules for paper, on a screen as wide as what a sheet has within its margins.
    text = (run / "report.html").read_text()
    (run / "paper.html").write_text(text.replace("@media print", "@media all").replace("@media screen", "@media not all"))
    for width, page in [(width, "report.html") for width in WIDTHS] + [(SHEET, "paper.html")]:
        said = look(run, width, page)
        print(f"{page}, {width}: {said['tables']} tables, {said['rows']} rows, {said['figures']} figures, {said['wide']} px wide")
        if said["wide"] > said["width"]:
            wrong.append(f"{width}: the page is {said['wide']} px wide")
        wrong += [f"{width}: {what}" for what in said["found"]]
        if (said["tables"], said["figures"], said["rows"]) != (tables, figures, rows):
            wrong.append(f"{width}: expected {tables} tables with {rows} rows and {figures} figures")
        if said["title"] != title:
            wrong.append(f"{width}: the title is {said['title']}")
        if said["asked"]:
            wrong.append(f"{width}: the page asks for {said['asked']} things from outside")
    paper = run / "report.pdf"
    chromium(run / "profile", "--no-pdf-header-footer", f"--print-to-pdf={paper}", (run / "report.html").as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes()))
    print(f"on paper: {pages} pages")
    if not 2 <= pages <= pages_most:
        wrong.append(f"on paper there are {pages} pages")
    return wrong


def site(directory):
    """The report of the site's tests. Returns what is wrong with it."""
    sys.path.insert(0, str(ROOT / "site"))
    sys.dont_write_bytecode = True
    from harness import report, tests_sweep

    directory.mkdir()
    report.write(tests_sweep.Reports().result(), directory)
    page = (directory / "report.html").read_text()
    tables, figures, rows = (page.count(word) for word in ("<table>", "<svg ", "<tr><td>"))
    if not all((tables, figures, rows)):
        return ["the site's report has no tables or no figures"]
    return [f"site, {what}" for what in views_of(directory, tables, rows, figures, report.TITLE, 20)]


def main():
    if not shutil.which("chromium"):
        print("skip: there is no chromium; `ci/packages.sh browser` installs it")
        sys.exit(77)
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "page.toml").write_text(PLAN)
        (directory / "lib.so").write_text("no library")
        run = directory / "run"
        words = [str(BENCH), "paper", "page.toml", "--into", str(run), "--library", "lib.so"]
        done = subprocess.run(words, cwd=directory, stdout=subprocess.DEVNULL, check=False)
        # 1: something failed or stayed unknown, and the report says so.
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(words)} ended with {done.returncode}")
        wrong += views_of(run, 2, 17 + 8, 2, "A page with <everything> & more", 6)
        wrong += site(directory / "site")
        keep = os.environ.get("KEEP")
        if keep:
            shutil.copytree(run, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("profile"))
            shutil.copytree(directory / "site", Path(keep) / "site", dirs_exist_ok=True, ignore=shutil.ignore_patterns("profile"))
            chromium(run / "profile", "--window-size=390,2600", f"--screenshot={keep}/phone.png", (run / "report.html").as_uri())
    for what in wrong:
        print(f"WRONG {what}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
