"""Pauses of the disk: spans in which requests wait for it and none ends. A site that commits stands still as long as its disk does,
over TCP and over Beeline, and the table should say so."""

import os
import pathlib
import threading
import time

STATISTICS = pathlib.Path("/proc/diskstats")
LOOK_S = 0.02
# What ends of itself is no pause.
PAUSE_S = 0.05


def look(device):
    """How many requests the device has ended so far, and how many wait; none if there is no such device."""
    for line in STATISTICS.read_text().splitlines():
        words = line.split()
        if words[:2] == device:
            # Reads, writes, discards and flushes that have ended; those under way (Documentation/admin-guide/iostats.rst).
            ended = sum(int(words[place]) for place in (3, 7, 14, 18) if place < len(words))
            return ended, int(words[11])
    return None


def device_of(path):
    """As diskstats names it. That of a file system in memory has none there."""
    number = os.stat(path).st_dev
    return [str(os.major(number)), str(os.minor(number))]


def pauses(looks):
    """Seconds of each pause in looks (time, ended, waiting)."""
    found, since = [], None
    for (before_s, before, _), (now_s, ended, waiting) in zip(looks, looks[1:]):
        if waiting and ended == before:
            since = before_s if since is None else since
        else:
            found.append(before_s - since if since is not None else 0.0)
            since = None
    if since is not None:
        found.append(looks[-1][0] - since)
    return [span for span in found if span >= PAUSE_S]


class Watch(threading.Thread):
    """Looks at the disk of a path until it is ended."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.device, self.looks, self.over = device_of(path), [], threading.Event()

    def run(self):
        while not self.over.wait(LOOK_S):
            found = look(self.device)
            if found is None:
                return
            self.looks.append((time.monotonic(), *found))

    def end(self):
        self.over.set()
        self.join()
        return pauses(self.looks)
