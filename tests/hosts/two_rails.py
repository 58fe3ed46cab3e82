#!/usr/bin/env python3
"""Two rails of different rates at once, between two network namespaces: the aggregate against what each gives alone.

    tests/hosts/two_rails.py [RATE RATE]        as tc takes them (default: 800mbit 300mbit)

The rates are those of tc's token buckets on pairs of veth; `tests/hosts/bench.sh` makes the namespaces and the bridges. Prints a table, and
fails when one stream or several get less than 0.95 of the sum (medians of five rounds), or when a rail has another share of one stream than its part of the rates. Takes root;
without it, and without the bridge, nothing is run, and that is said.
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
# How far a rail's share of what one stream sent may be from its rate's. What is sent at the very end goes where there is room.
APART = 0.1
BIN = Path(os.environ.get("BEELINE_BIN", BENCH.parent.parent.parent / "target/release"))


def measure(*rates):
    """The Beeline column of the rows over rails of these rates, and the share of each rail in what was moved."""
    environment = dict(os.environ, RAILS=str(len(rates)), RATES=" ".join(rates))
    words = [str(BENCH), "--rounds", "5", "--duration", "1500", "--transports", "beeline", "--json"]
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
    if os.geteuid() != 0:
        print("skip: network namespaces take root")
        return
    if not (BIN / "beelined").exists():
        print("skip: there is no beelined: it is only built where libfabric is")
        return
    alone = [measure(rate)[0] for rate in rates]
    both, moved = measure(*rates)
    print(f"| MB/s | {rates[0]} alone | {rates[1]} alone | both at once | of the sum | share of each rail |")
    print("|---|---|---|---|---|---|")
    worst = 1.0
    wrong = []
    for row in ROWS:
        first, second = (figures[row] / 1e6 for figures in alone)
        part = both[row] / 1e6 / (first + second)
        worst = min(worst, part)
        sent = moved.get(row, {})
        # The slower rail is the one that had less: names do not tell which it is.
        slower = min(sent.values(), default=0) / max(1, sum(sent.values()))
        expected = min(figures[row] for figures in alone) / sum(figures[row] for figures in alone)
        if row == ROWS[0] and (len(sent) != 2 or abs(slower - expected) > APART):
            wrong.append(f"of {row} the slower rail has {slower:.2f}, expected {expected:.2f}")
        shares = ", ".join(f"{name} {count / max(1, sum(sent.values())):.0%}" for name, count in sorted(sent.items()))
        print(f"| {row} | {first:.1f} | {second:.1f} | {both[row] / 1e6:.1f} | {part:.3f} | {shares} |")
    if worst < LEAST:
        wrong.append(f"{worst:.3f} of the sum, expected {LEAST}")
    if wrong:
        sys.exit(f"two_rails.py: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
