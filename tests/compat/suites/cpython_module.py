"""Runs one module of CPython's own tests and writes one line a test to a file as soon as it has ended.

    cpython_module.py MODULE FILE [SECONDS]

The lines are `begin NAME`, `pass NAME`, `fail NAME`, `skip NAME` and, at the end, `end`. Tests that the file names
already are not run again: so a module whose process a test has killed or blocked is gone on with by calling again. A
test that takes longer than SECONDS ends the process, with all stacks on stderr.
"""

import faulthandler
import importlib
import os
import sys
import tempfile
import unittest


class Recorder(unittest.TestResult):
    def __init__(self, lines, seconds):
        super().__init__()
        self.lines, self.seconds = lines, seconds

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "pass"
        print("begin", test.id(), file=self.lines)
        faulthandler.dump_traceback_later(self.seconds, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        print(self.outcome, test.id(), file=self.lines)

    def failed(self, test, error):
        self.outcome = "fail"
        print("==", test.id(), self._exc_info_to_string(error, test), sep="\n", file=sys.stderr)

    def addError(self, test, error):
        if isinstance(test, unittest.TestCase):
            self.failed(test, error)
        else:
            # A class or module that could not be set up. Its tests are missing then, and that is noticed.
            print("==", str(test), self._exc_info_to_string(error, test), sep="\n", file=sys.stderr)

    def addFailure(self, test, error):
        self.failed(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.failed(test, error)

    def addSkip(self, test, reason):
        if isinstance(test, unittest.TestCase):
            self.outcome = "skip"

    def addUnexpectedSuccess(self, test):
        self.outcome = "fail"


def without(suite, done):
    """The suite as it was nested, so that fixtures of classes and modules are set up once."""
    kept = [without(test, done) if isinstance(test, unittest.TestSuite) else test
            for test in suite if isinstance(test, unittest.TestSuite) or test.id() not in done]
    return type(suite)(kept)


# Nothing happens at the top: multiprocessing imports its parent's main module in each child.
def main():
    module, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    # The tests look at it.
    sys.argv = sys.argv[:1]
    from test import support

    # What a machine without the Internet can do. "network" is wrong in test_socketserver only, which never leaves it.
    support.use_resources = ["cpu", "subprocess"] + (["network"] if module == "test_socketserver" else [])
    support.verbose = False
    done = set()
    if os.path.exists(path):
        done = {line.split(" ", 1)[1] for line in open(path).read().splitlines() if " " in line}
    lines = open(path, "a", buffering=1)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            loaded = importlib.import_module("test." + module)
        except unittest.SkipTest as reason:
            print("skipped:", reason, file=sys.stderr)
        else:
            without(unittest.defaultTestLoader.loadTestsFromModule(loaded), done).run(Recorder(lines, seconds))
        print("end", file=lines)
        os.chdir("/")


if __name__ == "__main__":
    main()
