"""Runs the tests of this folder and says how many passed, in the words of tests/run.sh.

python run_tests.py [MODULE...]      all of test_*.py, or those named
"""

from __future__ import annotations

import collections
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.passed = 0
        self.why_not = collections.Counter()

    def tell(self, word, test):
        self.stream.writeln(f"{word}  {test.id()}")
        self.stream.flush()

    def addSuccess(self, test):
        self.passed += 1
        self.tell("ok   ", test)

    def addSkip(self, test, reason):
        self.why_not[reason] += 1

    def addError(self, test, error):
        self.errors.append((test, self._exc_info_to_string(error, test)))
        self.tell("FAIL ", test)

    def addFailure(self, test, error):
        self.failures.append((test, self._exc_info_to_string(error, test)))
        self.tell("FAIL ", test)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(subtest, error)


def main(names):
    names = names or sorted(path.stem for path in HERE.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result, verbosity=0)
    result = runner.run(suite)
    for reason, count in result.why_not.items():
        print(f"{count} tests were left out: {reason}")
    bad = len(result.failures) + len(result.errors)
    print(f"{result.passed} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
