"""Runs a module of tests of Twisted or Tornado, or those of trio, and writes one line a test to a file when it has ended.

    framework_tests.py MODULE FILE

A module `twisted.rest` stands for all packages of Twisted that are no unit of their own. The lines are those of cpython_module.py. Each framework's tests are run by its own runner.
"""

import sys
import unittest

from cpython_module import Recorder

TWISTED_REST = [f"twisted.{name}" for name in ("_threads", "application", "cred", "logger", "mail", "names", "pair", "persisted",
                "positioning", "protocols", "python", "runner", "scripts", "spread", "words")]


def twisted(module, lines):
    from twisted.trial import reporter, runner

    class Lines(reporter.Reporter):
        def startTest(self, test):
            super().startTest(test)
            self.outcome = "pass"
            print("begin", test.id(), file=lines)

        def stopTest(self, test):
            super().stopTest(test)
            print(self.outcome, test.id(), file=lines)

        def addError(self, test, error):
            super().addError(test, error)
            self.outcome = "fail"

        def addFailure(self, test, error):
            super().addFailure(test, error)
            self.outcome = "fail"

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.outcome = "skip"

        def addExpectedFailure(self, test, error, todo=None):
            super().addExpectedFailure(test, error, todo)
            self.outcome = "skip"

    names = TWISTED_REST if module == "twisted.rest" else [module]
    tests = runner.TestLoader().loadByNames(names, True)
    runner.TrialRunner(Lines, stream=sys.stderr).run(tests)


def tornado(module, lines):
    import asyncio
    import logging

    logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    unittest.defaultTestLoader.loadTestsFromName(module).run(Recorder(lines, 60))


def trio(lines):
    import pytest

    class Lines:
        def pytest_runtest_logstart(self, nodeid):
            print("begin", nodeid, file=lines)
            self.outcome = "pass"

        def pytest_runtest_logreport(self, report):
            if report.outcome != "passed":
                self.outcome = "skip" if report.outcome == "skipped" else "fail"

        def pytest_runtest_logfinish(self, nodeid):
            print(self.outcome, nodeid, file=lines)

    arguments = ["-q", "-p", "no:cacheprovider", "-p", "trio._tests.pytest_plugin", "--skip-optional-imports", "--pyargs", "trio"]
    pytest.main(arguments, plugins=[Lines()])


def main():
    module, path = sys.argv[1:]
    sys.argv = sys.argv[:1]
    with open(path, "a", buffering=1) as lines:
        match module.split(".")[0]:
            case "twisted":
                twisted(module, lines)
            case "tornado":
                tornado(module, lines)
            case "trio":
                trio(lines)
        print("end", file=lines)


if __name__ == "__main__":
    main()
