"""Runs that are stopped or killed go on to the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
import unittest

import hybrid_train as ht
from support import HERE, InFolder, needs_numpy, needs_torch

try:
    import numpy as np
    from regression import Regression
except ImportError:
    np = None

STEPS = 120


class Killed(InFolder):
    def command(self, kind, folder, *more):
        return [sys.executable, str(HERE / "resumable.py"), kind, folder, str(STEPS), *more]

    def whole(self, kind, folder):
        done = subprocess.run(self.command(kind, folder), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[-1]

    def killed_after(self, kind, folder, lines):
        child = subprocess.Popen(self.command(kind, folder), stdout=subprocess.PIPE, text=True)
        for _ in range(lines):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.communicate()
        self.assertEqual(child.returncode, -signal.SIGKILL)

    def check(self, kind):
        expected = self.whole(kind, "whole")
        for after in (3, 40, 30):  # before the first checkpoint, then in the middle, twice
            self.killed_after(kind, "killed", after)
        self.assertEqual(self.whole(kind, "killed"), expected)

    @needs_numpy
    def test_numpy(self):
        self.check("numpy")

    @needs_torch
    def test_torch(self):
        self.check("torch")

    @needs_torch
    def test_torch_in_bf16(self):
        self.check("bf16")

    @needs_numpy
    def test_stopped(self):
        expected = self.whole("numpy", "whole")
        stopped = self.command("numpy", "stopped", "--stop-at", "33")
        self.assertEqual(subprocess.run(stopped, capture_output=True, text=True).stdout.splitlines()[-1], "33")
        self.assertEqual(self.whole("numpy", "stopped"), expected)


@needs_torch
class KilledBlocks(InFolder):
    def run_with(self, folder, *moments):
        command = [sys.executable, str(HERE / "killed_blocks.py"), folder, *moments]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()[-1]

    def check(self, moments):
        self.assertEqual(self.run_with("killed", *moments), self.run_with("whole"), moments)

    def test_blocks(self):
        self.check(["hold:17", "release:80", "add_gradients:40", "answer:9", "save:2", "saved:2"])


@needs_numpy
class Folders(InFolder):
    def loop(self, task, **more):
        keys = {"steps": 30, "lr": 0.05, "device": "cpu", "out": "run", "predictor": "none", **more}
        return ht.Loop(task.weights, gradients=task.grads, **keys)

    def test_nothing_is_written_unless_a_folder_is_named(self):
        task = Regression()
        with self.loop(task, out=None) as loop:
            loop.run(task.loss)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_record_is_that_of_any_run(self):
        task = Regression()
        with self.loop(task) as loop:
            loop.run(task.loss)
        run = ht.read_run("run")
        self.assertEqual(run.column("step"), list(range(1, 31)))
        self.assertTrue(run.facts.is_complete)
        ht.report("run")

    def test_resuming_needs_no_other_values(self):
        task = Regression()
        with self.loop(task) as loop:
            for _ in range(10):
                loop.step(task.loss)
        at_ten = task.weights["w"].copy()
        again = Regression()
        with ht.Loop(again.weights, gradients=again.grads, resume="run") as loop:
            self.assertEqual(again.weights["w"].tobytes(), at_ten.tobytes())
            self.assertEqual(loop.question.batch, 10)
            self.assertEqual(loop.run(again.loss).steps, 30)

    def test_a_run_may_go_on_elsewhere(self):
        task = Regression()
        with self.loop(task) as loop:
            loop.step(task.loss)
        path = self.folder / "run" / "config.cfg"
        text = path.read_text()
        self.assertIn('device = "cpu"', text)
        path.write_text(text.replace('device = "cpu"', 'device = "cuda:3"'))  # as if it had begun on a card
        with ht.Loop(task.weights, gradients=task.grads, resume="run") as loop:
            self.assertEqual(loop.config["device"], "cpu")

    def test_save_now(self):
        task = Regression()
        loop = self.loop(task)
        loop.step(task.loss)
        loop.save()
        kept = task.weights["w"].tobytes()
        loop.step(task.loss)
        loop.close()  # what came after is lost
        again = Regression()
        with self.loop(again, resume="run"):
            self.assertEqual(again.weights["w"].tobytes(), kept)

    def test_leaving_with_an_exception_saves(self):
        task = Regression()
        with self.assertRaises(KeyboardInterrupt):
            with self.loop(task) as loop:
                loop.step(task.loss)
                raise KeyboardInterrupt
        with self.loop(Regression(), resume=True) as loop:
            self.assertEqual(loop.question.step, 1)

    def test_other_parameters_are_refused(self):
        task = Regression()
        with self.loop(task) as loop:
            loop.step(task.loss)
        other = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}
        with self.assertRaisesRegex(ht.InputError, "w"):
            ht.Loop(other, gradients=other, steps=3, lr=0.1, resume="run", device="cpu")
        with self.assertRaisesRegex(ht.InputError, "nowhere"):
            self.loop(task, resume="nowhere")

    def test_state_that_cannot_be_saved(self):
        task = Regression()

        def broken():
            raise KeyError("mine")

        loop = self.loop(task, save_state=broken)
        loop.step(task.loss)
        with self.assertRaisesRegex(KeyError, "mine"):
            loop.save()
        loop.close()
        loop = self.loop(task, save_state=lambda: "text", overwrite=True)
        loop.step(task.loss)
        with self.assertRaisesRegex(ht.InputError, "a str; expected bytes"):
            loop.save()
        loop.close()

    def test_state_that_cannot_be_loaded(self):
        task = Regression()
        with self.loop(task, save_state=lambda: b"abc\0def") as loop:
            loop.step(task.loss)
        got = []
        loop = self.loop(task, resume="run", load_state=got.append)
        self.assertEqual(got, [b"abc\0def"])
        loop.close()

        def broken(data):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.loop(task, resume="run", load_state=broken)


if __name__ == "__main__":
    unittest.main()
