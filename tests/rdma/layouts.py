"""What a run of the plan `socket-direct` between two guests must have: the part of layouts.sh that looks.

    layouts.py RUN
"""

import json
import pathlib
import sys

RUN = pathlib.Path(sys.argv[1])
CELLS = {
    "layouts-latency/bytes=64/place=both/load=between-nodes": ("p50", "p99", "cpu-client", "cpu-server", "load"),
    "layouts/bytes=65536/place=both/load=between-nodes": ("throughput", "cpu-gb-client", "cpu-gb-server", "load"),
    "layouts/bytes=65536/place=remote/load=between-nodes": ("throughput", "cpu-gb-client", "cpu-gb-server", "load"),
}


def pairs():
    records = [json.loads(line) for line in (RUN / "samples.jsonl").read_text().splitlines()]
    for record in records:
        assert record["event"] not in ("failed", "absent"), record
    return {record["cell"]: record for record in records if record["event"] == "pair"}


def each_layout_has_its_figures(measured):
    assert measured.keys() == CELLS.keys(), measured.keys() ^ CELLS.keys()
    for cell, figures in CELLS.items():
        for column in ("tcp", "beeline"):
            sample = measured[cell][column]
            print(f"{cell}, {column}:", ", ".join(f"{figure} {sample[figure]:.4g}" for figure in figures))
            assert all(sample[figure] > 0 for figure in figures), (cell, column, sample)
        # Both clients of a layout are connections of the bridge.
        carried = measured[cell]["carried"]
        assert carried["bridged"] == 2 and not carried["fallen_back"], (cell, carried)


def the_report_has_the_gains():
    report = (RUN / "report.md").read_text()
    gains = report.split("\n## Gains\n")[1].split("\n## ")[0]
    print(gains)
    rows = [line.split("|")[1].strip() for line in gains.splitlines() if " over remote " in line]
    wanted = ["layouts: 64 KiB, layout both, load between nodes over remote"]
    assert rows == wanted, rows


if __name__ == "__main__":
    each_layout_has_its_figures(pairs())
    the_report_has_the_gains()
