"""What a script writes into a document: all that stands between its two comments there."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = ROOT / "docs" / "measurements.md"


def arguments(usage):
    """The note, ready to be put behind what it is said of, and the files that a script was given."""
    note, files = "", sys.argv[1:]
    if files[:1] == ["--note"] and len(files) > 1:
        note, files = f"; {files[1]}", files[2:]
    if not files:
        sys.exit(usage.strip())
    return note, files


def comments(name):
    """The comments of ci/NAME.py."""
    return f"<!-- {name}: written by ci/{name}.py -->", f"<!-- {name} end -->"


def put(document, name, between):
    """Replaces what stands between the comments of ci/NAME.py."""
    begin, end = comments(name)
    before, found, rest = document.read_text().partition(begin)
    _, found_too, after = rest.partition(end)
    if not found or not found_too:
        sys.exit(f"{document} lacks {begin} or {end}")
    document.write_text(f"{before}{begin}\n{between}\n{end}{after}")
