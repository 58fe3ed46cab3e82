#!/usr/bin/env python3
"""Two rails of different rates at once, between two network namespaces: the aggregate against what each gives alone.

    tests/hosts/two_rails.py [RATE RATE]        as tc takes them (default: 800mbit 300mbit)

The rates are those of tc's token buckets on pairs of veth; `tests/hosts/bench.sh` makes the namespaces and the bridges. Prints a table, and
fails when one stream or several get less than 0.95 of the sum. Takes root.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent / "bench.sh"
# Of the suite: one stream, and several at once.
ROWS = ("stream-1m", "streams-4")
LEAST = 0.95


def measure(*rates):
    """The Beeline column of the rows over rails of these rates, and the share of each rail in what was moved."""
    environment = dict(os.environ, RAILS=str(len(rates)), RATES=" ".join(rates))
    words = [str(BENCH), "--rounds", "3", "--duration", "1000", "--transports", "beeline", "--json"]
    words += [word for row in ROWS for word in ("--only", row)]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"two_rails.py: {' '.join(words)} ended with {done.returncode}")
    told = json.loads(done.stdout)
    figures = {row["id"]: row["columns"]["beeline"]["median"] for row in told["rows"]}
    moved = {name: ends["from_client"] for name, ends in told["hosts"]["moved"].items()}
    return figures, moved


def main():
    rates = sys.argv[1:] or ["800mbit", "300mbit"]
    if len(rates) != 2:
        sys.exit(__doc__.strip())
    alone = [measure(rate)[0] for rate in rates]
    both, moved = measure(*rates)
    print(f"| MB/s | {rates[0]} alone | {rates[1]} alone | both at once | of the sum | share of each rail |")
    print("|---|---|---|---|---|---|")
    worst = 1.0
    for row in ROWS:
        first, second = (figures[row] / 1e6 for figures in alone)
        part = both[row] / 1e6 / (first + second)
        worst = min(worst, part)
        sent = moved.get(row, {})
        shares = ", ".join(f"{name} {count / max(1, sum(sent.values())):.0%}" for name, count in sorted(sent.items()))
        print(f"| {row} | {first:.1f} | {second:.1f} | {both[row] / 1e6:.1f} | {part:.3f} | {shares} |")
    if worst < LEAST:
        sys.exit(f"two_rails.py: {worst:.3f} of the sum, expected {LEAST}")


if __name__ == "__main__":
    main()
