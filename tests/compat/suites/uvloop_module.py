"""Runs one module of uvloop's own tests and writes one line a test to a file as soon as it has ended.

    uvloop_module.py MODULE FILE

The lines, and what is done when a test ends the process, are those of cpython_module.py. Modules are found in the working
directory.
"""

import os
import sys
import unittest

from cpython_module import Recorder, without


def main():
    module, path = sys.argv[1:]
    sys.argv = sys.argv[:1]
    sys.path.insert(0, os.getcwd())
    done = set()
    if os.path.exists(path):
        done = {line.split(" ", 1)[1] for line in open(path).read().splitlines() if " " in line}
    with open(path, "a", buffering=1) as lines:
        without(unittest.defaultTestLoader.loadTestsFromName(module), done).run(Recorder(lines, 60))
        print("end", file=lines)


if __name__ == "__main__":
    main()
