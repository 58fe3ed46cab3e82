#!/usr/bin/env python3
"""Writes what runs of `make programs` measured into docs/measurements.md.

    ci/programs.py [--note TEXT] FILE...

A FILE is what `tests/programs/run.py --json FILE` left; of several that have the same program in the same placement the last one counts.
TEXT is said of all of them, such as what else the machine did. The table stands between two comments, and what was there before goes.
"""

import sys

import marked

DOCUMENT = marked.MEASUREMENTS
sys.path.insert(0, str(marked.ROOT / "tests/programs"))

import measure  # noqa: E402
import table  # noqa: E402


def main():
    note, files = marked.arguments(__doc__)
    marked.put(DOCUMENT, "programs", table.document([table.read(file) for file in files], measure.PLACEMENTS, note))


if __name__ == "__main__":
    main()
