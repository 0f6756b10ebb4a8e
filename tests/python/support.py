"""What the tests of this folder share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("HYBRID_ROOT") or Path(__file__).resolve().parents[2])
HERE = Path(__file__).resolve().parent


def has(module):
    return importlib.util.find_spec(module) is not None


needs_numpy = unittest.skipUnless(has("numpy"), "NumPy is not here")
needs_torch = unittest.skipUnless(has("torch"), "torch is not here")
needs_transformers = unittest.skipUnless(has("torch") and has("transformers"), "transformers is not here")


class InFolder(unittest.TestCase):
    """A test in a folder of its own, which is removed."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="hybrid-python-"))
        self.was = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(os.chdir, self.was)
