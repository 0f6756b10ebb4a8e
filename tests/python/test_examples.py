"""The examples, as they are."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest

from support import ROOT, InFolder, needs_numpy, needs_torch


class Examples(InFolder):
    def said(self, name, *arguments):
        command = [sys.executable, str(ROOT / "python" / "examples" / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def losses(self, text):
        """The held-out loss, and the best possible one."""
        return map(float, re.search(r"held-out loss ([\d.]+).*the best possible ([\d.]+)", text).groups())

    @needs_numpy
    def test_regression(self):
        for arguments in ((), ("none",)):
            loss, best = self.losses(self.said("regression.py", *arguments))
            self.assertLess(loss, 1.2 * best)

    @needs_torch
    def test_transformer(self):
        text = self.said("transformer.py", "--steps", "120", "--out", "run")
        loss, best = self.losses(text)
        self.assertLess(loss, best + 0.25)
        self.assertRegex(text, r"optimizer state: 0\.\d MB pinned, 0\.0 MB on the device")
        self.assertTrue((self.folder / "run" / "metrics.jsonl").exists())
        again = self.said("transformer.py", "--steps", "120", "--out", "run")  # it is over: nothing is done again
        self.assertEqual(text.splitlines()[-1], again.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
