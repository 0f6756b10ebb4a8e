"""What measurements in Python share (bench/measurement), against values worked out by hand."""
import argparse
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "measurement"))
import command  # noqa: E402
import journal  # noqa: E402
import rates  # noqa: E402


class Options(unittest.TestCase):
    def test_numbers_are_different_and_positive(self):
        self.assertEqual(command.numbers(float)("1e-3,2"), [1e-3, 2.0])
        self.assertEqual(command.numbers(int)("none"), [])
        for wrong in ("0", "1,1", "-1", "1.5", "x", ""):
            self.assertRaises(argparse.ArgumentTypeError, command.numbers(int), wrong)
        self.assertRaises(argparse.ArgumentTypeError, command.some_numbers(int), "none")

    def test_a_pair_has_a_key(self):
        self.assertEqual(command.pair("a=b=c"), "a=b=c")
        for wrong in ("a", "=b"):
            self.assertRaises(argparse.ArgumentTypeError, command.pair, wrong)


class Journals(unittest.TestCase):
    def test_a_run_with_another_setting_is_another_run(self):
        self.assertEqual(journal.key_of({"a": 1, "b": 2}), journal.key_of({"b": 2, "a": 1}))
        self.assertNotEqual(journal.key_of({"a": 1}), journal.key_of({"a": 2}))

    def test_a_line_that_was_cut_off_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.jsonl")
            first = journal.Journal(path)
            first.add("x", {"arm": "full"}, {"val_loss": 2.0})
            first.add("y", {"arm": "lora"}, {"val_loss": 2.1})
            os.truncate(path, os.path.getsize(path) - 3)
            again = journal.Journal(path)
            self.assertEqual(again.lines, {"x": {"key": "x", "arm": "full", "val_loss": 2.0}})
            again.add("z", {}, {})
            self.assertEqual(list(journal.Journal(path).lines), ["x", "z"])


class Rates(unittest.TestCase):
    def test_a_best_rate_at_an_edge_is_marked(self):
        grid = {1: {"val_loss": 3.0}, 2: {"val_loss": 2.0}, 4: {"val_loss": None}}
        self.assertEqual(rates.best_rate(grid), (2, False))
        self.assertEqual(rates.best_rate({**grid, 4: {"val_loss": 1.0}}), (4, True))
        self.assertEqual(rates.best_rate({1: {"val_loss": None}}), (None, False))

    def test_a_loss_as_text(self):
        self.assertEqual(rates.loss_text({"val_loss": 2.0}), "2.0000")
        self.assertEqual(rates.loss_text({"val_loss": None}), "diverged")
        self.assertEqual(rates.loss_text({"val_loss": float("nan")}), "diverged")


if __name__ == "__main__":
    unittest.main()
