#!/usr/bin/env python3
"""Checks that what the documents point to is there.

In every Markdown file: the targets of links, headings included; files of this repository that are named in `backquotes`, by
their whole path or by the end of it; and targets of the Makefile. In sources and scripts: documents that are named.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
# A file of ours by its ending, or a place in one of our folders.
FILE = re.compile(r"^[\w.-]*(?:/[\w.-]+)*\.(?:rs|c|h|py|sh)$")
PLACE = re.compile(r"^(?:crates|tests|ci|docs|profiles|fuzz)/[\w./*-]*$")
DOCUMENT = re.compile(r"(?<![\w/.])(?:docs/[\w./-]+\.md|(?:README|ARCHITECTURE|CONTRIBUTING|SECURITY|CHANGELOG)\.md)")


def anchors(text):
    """Names of a document's headings, as links have them."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def main():
    files = set()
    for directory, inside, names in os.walk(ROOT):
        inside[:] = [name for name in inside if name not in ("target", ".git", "__pycache__")]
        files |= {(Path(directory) / name).relative_to(ROOT).as_posix() for name in names}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    complaints = []

    def is_there(name):
        if "*" in name:
            return any(True for _ in ROOT.glob(name))
        return (ROOT / name).exists() or any(file.endswith("/" + name) for file in files)

    for name in sorted(files):
        path = ROOT / name
        if path.suffix == ".md":
            is_code = False
            for number, line in enumerate(path.read_text().split("\n"), 1):
                wrong = []
                is_code ^= line.startswith("```")
                if is_code and (make := re.match(r"make ([a-z][\w-]*)", line)) and make[1] not in targets:
                    wrong.append(f"the Makefile has no {make[1]}")
                for link in LINK.findall(line):
                    place, _, heading = link.partition("#")
                    if "://" in place:
                        continue
                    target = path if not place else (path.parent / place).resolve()
                    if not target.exists():
                        wrong.append(f"there is no {link}")
                    elif heading and heading not in anchors(target.read_text()):
                        wrong.append(f"{place or name} has no heading for #{heading}")
                for words in QUOTED.findall(line):
                    if (FILE.match(words) or PLACE.match(words)) and "NNNN" not in words and not is_there(words):
                        wrong.append(f"there is no {words}")
                    if (make := re.match(r"make ([a-z][\w-]*)", words)) and make[1] not in targets:
                        wrong.append(f"the Makefile has no {make[1]}")
                complaints += [f"{name}:{number}: {what}" for what in wrong]
        elif (path.suffix in (".rs", ".py", ".sh", ".c", ".toml", ".in") or path.name == "Makefile") and path.name != "checks_test.py":
            for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
                complaints += [f"{name}:{number}: there is no {document}" for document in DOCUMENT.findall(line)
                               if not (ROOT / document).exists()]
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
