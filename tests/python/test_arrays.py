"""Loops over NumPy arrays and over anything that speaks DLPack."""

from __future__ import annotations

import gc
import json
import os
import threading
import unittest
import weakref
from pathlib import Path

import hybrid_train as ht
from support import InFolder, needs_numpy

try:
    import numpy as np
    from regression import FEATURES, TRUTH, Regression
except ImportError:
    np = None


class Exported:
    """An array that only DLPack can read."""

    def __init__(self, array, refuses_versions=False):
        self.array, self.refuses_versions = array, refuses_versions

    def __dlpack__(self, **options):
        if self.refuses_versions and options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**options)

    def __imul__(self, factor):
        self.array *= factor
        return self


def loop_over(task, **more):
    return ht.Loop(task.weights, gradients=task.grads, **{"steps": 300, "lr": 0.05, "device": "cpu", "predictor": "outer", **more})


@needs_numpy
class Learning(InFolder):
    def test_it_reaches_the_known_optimum(self):
        for predictor in ("none", "outer", "line"):
            task = Regression()
            with loop_over(task, predictor=predictor) as loop:
                summary = loop.run(task.loss)
            self.assertLess(np.abs(task.weights["w"] - TRUTH).max(), 0.05, predictor)
            self.assertLess(task.held_out(), 1.05 * task.noise**2 + 1e-3)
            self.assertEqual(summary.parameters, FEATURES + 1)
            if predictor == "none":
                self.assertEqual(summary.steps, 300)
                self.assertEqual(summary.moves, 0)
            if predictor == "outer":
                self.assertGreater(summary.moves, 3)

    def test_question_by_question_gives_the_same_bits(self):
        first, second = Regression(), Regression()
        with loop_over(first, lr_warmup_ratio=0.1) as loop:
            loop.run(first.loss)
        phases, todos = set(), set()
        with loop_over(second, lr_warmup_ratio=0.1) as loop:
            for step in loop:
                phases.add(step.phase)
                todos.add(step.todo)
                self.assertEqual(list(step.batches), [step.batch])
                loop.answer(second.loss(step.batch))
        self.assertEqual(first.weights["w"].tobytes(), second.weights["w"].tobytes())
        self.assertEqual(todos, {"gradients", "loss"})
        self.assertEqual(phases, {"warmup", "full", "predict", "correct"})

    def test_no_value_of_another_model_is_taken(self):
        with loop_over(Regression()) as loop:
            step = loop.question
            self.assertEqual((step.phase, step.count, step.lr), ("full", 1, 0.05))
            self.assertEqual([loop.config[key] for key in ("grad_accum_steps", "lr_warmup_steps")], [1, 0])
        with loop_over(Regression(), grad_accum_steps=2, lr_warmup_ratio=0.1) as loop:
            self.assertEqual(loop.question.lr, 0.05 / 30)
            self.assertEqual(loop.config["grad_accum_steps"], 2)

    def test_evaluation_is_asked_for(self):
        task, seen, told = Regression(), [], []

        def evaluate():
            seen.append(task.held_out())
            return seen[-1], 5000

        with loop_over(task, evaluate=evaluate, eval_every=100, predictor="none", on_eval=told.append) as loop:
            summary = loop.run(task.loss)
        self.assertEqual(len(seen), 3)
        self.assertAlmostEqual(summary.val_loss, seen[-1])
        self.assertEqual([info.tokens for info in told], [5000] * 3)
        with loop_over(task, evaluate=True, steps=2, predictor="none") as loop:
            todos = [step.todo for step in loop if loop.answer(task.loss(step.batch)) is None]
        self.assertEqual(todos, ["gradients", "gradients", "evaluate"])
        with loop_over(task, evaluate=True, steps=2, predictor="none") as loop:
            with self.assertRaisesRegex(ht.StateError, "held-out"):
                loop.run(task.loss)

    def test_forks_go_back_to_earlier_batches(self):
        task, asked = Regression(), []

        def loss(batch):
            asked.append(batch)
            return task.loss(batch)

        with loop_over(task, can_rewind=True, fork_budget=0.5, regime="fine-tuning") as loop:
            summary = loop.run(loss)
        self.assertGreater(summary.forks, 0)
        self.assertGreater(len(asked), len(set(asked)))

    def test_several_micro_batches_weigh_by_their_targets(self):
        def sizes(batch):
            return 8 + batch % 5

        def by_us():
            task = Regression()
            with loop_over(task, predictor="none", grad_accum_steps=4, steps=50) as loop:
                loop.run(lambda batch: (task.loss(batch, sizes(batch)), sizes(batch)))
            return task.weights["w"]

        def by_hand():
            task = Regression()
            with loop_over(task, predictor="none", grad_accum_steps=4, steps=50, sum_gradients=False) as loop:
                for step in loop:
                    self.assertEqual(step.count, 4)
                    total = {name: np.zeros_like(g) for name, g in task.grads.items()}
                    weight = sum(map(sizes, step.batches))
                    loss = 0.0
                    for batch in step.batches:
                        loss += task.loss(batch, sizes(batch)) * sizes(batch) / weight
                        for name, g in task.grads.items():
                            total[name] += g * np.float32(sizes(batch) / weight)
                    for name, g in task.grads.items():
                        g[...] = total[name]
                    loop.answer(loss, weight)
            return task.weights["w"]

        self.assertLess(np.abs(by_us() - by_hand()).max(), 1e-5)

    def test_groups_by_name(self):
        task = Regression()
        with loop_over(task, groups={"b": {"lr_scale": 0}, "w*": {"weight_decay": 0.5}}, predictor="none") as loop:
            loop.run(task.loss)
        self.assertEqual(task.weights["b"][0], 0)
        self.assertLess(np.abs(task.weights["w"]).max(), 1)
        task = Regression()
        with loop_over(task, groups="b: lr_scale 0; w*: optimizer sgd, decay 0.5", predictor="none") as loop:
            loop.run(task.loss)
        self.assertEqual(task.weights["b"][0], 0)
        self.assertLess(np.abs(task.weights["w"]).max(), 1)
        for groups, words in (
            ("x*: decay 0", "x\\*"),
            ("b: frozen", "lr_scale 0"),
            ({"x*": {}}, "x\\*"),
            ({"b": {"lr": 1}}, "lr_scale"),
            ({"b": {"lr_scale": "much"}}, "number"),
        ):
            with self.assertRaisesRegex(ht.InputError, words):
                loop_over(task, groups=groups)

    def test_gradients_may_be_new_arrays_each_time(self):
        task, other = Regression(), Regression()
        grads = {}

        def loss(batch):
            out = task.loss(batch)
            for name, g in task.grads.items():
                grads[name] = g.copy()
            return out

        with ht.Loop(task.weights, gradients=grads, steps=60, lr=0.05, device="cpu", predictor="outer") as loop:
            loop.run(loss)
        with loop_over(other, steps=60) as loop:
            loop.run(other.loss)
        self.assertEqual(task.weights["w"].tobytes(), other.weights["w"].tobytes())

    def test_lists_of_arrays(self):
        task = Regression()
        lists = [list(task.weights.values()), list(task.grads.values())]
        with ht.Loop(lists[0], gradients=lists[1], steps=300, lr=0.05, device="cpu") as loop:
            loop.run(task.loss)
        self.assertLess(np.abs(task.weights["w"] - TRUTH).max(), 0.05)

    def test_fp16_weights_and_their_loss_scale(self):
        weights, grads = {"w": np.zeros(4, np.float16)}, {"w": np.zeros(4, np.float16)}

        def loss(batch):
            error = weights["w"].astype(np.float32) - 1
            grads["w"][...] = 2 * error / 4
            return float((error**2).mean())

        with ht.Loop(weights, gradients=grads, steps=200, lr=0.02, device="cpu", predictor="none") as loop:
            self.assertGreater(loop.question.loss_scale, 1)
            loop.run(loss)
        self.assertLess(np.abs(weights["w"] - 1).max(), 0.05)

    def test_dlpack(self):
        for refuses in (False, True):
            task, plain = Regression(), Regression()
            weights = {name: Exported(w, refuses) for name, w in task.weights.items()}
            grads = {name: Exported(g, refuses) for name, g in task.grads.items()}
            with ht.Loop(weights, gradients=grads, steps=60, lr=0.05, device="cpu", predictor="outer") as loop:
                loop.run(task.loss)
            with loop_over(plain, steps=60) as loop:
                loop.run(plain.loss)
            self.assertEqual(task.weights["w"].tobytes(), plain.weights["w"].tobytes())

    def test_scalars_and_many_dimensions(self):
        weights = {"s": np.zeros((), np.float32), "t": np.zeros((1,) * 7 + (2,), np.float32)}
        grads = {name: np.ones_like(w) for name, w in weights.items()}
        keys = dict(steps=3, lr=0.1, device="cpu", predictor="none", out="run")
        with ht.Loop(weights, gradients=grads, **keys) as loop:
            loop.run(lambda batch: 1.0)
        self.assertLess(float(weights["s"]), 0)
        saved = Path("run/checkpoint-3/weights.safetensors").read_bytes()
        header = json.loads(saved[8 : 8 + int.from_bytes(saved[:8], "little")])
        self.assertEqual([header[name]["shape"] for name in "st"], [[], [1] * 7 + [2]])


@needs_numpy
class WrongUse(InFolder):
    def refused(self, words, parameters=None, gradients=None, kind=ht.InputError, **more):
        task = Regression()
        with self.assertRaisesRegex(kind, words):
            ht.Loop(
                task.weights if parameters is None else parameters,
                gradients=task.grads if gradients is None else gradients,
                **{"steps": 3, "lr": 0.1, "device": "cpu", **more},
            )

    def test_arrays_that_cannot_be_parameters(self):
        w = np.zeros((4, 4), np.float32)
        frozen = w.copy()
        frozen.flags.writeable = False
        big = w.astype(">f4")
        one = {"w": w}
        for array, words in (
            (w.astype(np.float64), "w has type float64"),
            (np.zeros((4, 8), np.float32)[:, ::2], "w is not contiguous"),
            (frozen, "w is read-only"),
            (big, "w has type >f4"),
            (np.zeros((0, 3), np.float32), "w is empty"),
            (np.zeros((1,) * 9, np.float32), "w has 9 dimensions"),
            ([1.0, 2.0], "w is a list"),
        ):
            self.refused(words, {"w": array}, one)
        self.refused("a and b share memory", {"a": w, "b": w[1:]}, {"a": w, "b": w})
        self.refused("b has type fp16, but a has fp32", {"a": w, "b": w.astype(np.float16)}, {"a": w})
        self.refused("no parameter to train", {}, {})
        self.refused("cannot be read", 3, one)
        self.refused("two parameters have the name 'a'", [("a", w), ("a", w.copy())], [w, w])
        with self.assertRaisesRegex(ht.InputError, "gradients="):
            ht.Loop(one, steps=3, lr=0.1)

    def test_dlpack_that_cannot_be_read(self):
        class Bad:
            def __dlpack__(self, **_):
                return "no capsule"

        class Broken:
            def __dlpack__(self, **_):
                raise BufferError("it is on the moon")

        self.refused("did not return a tensor capsule", {"w": Bad()}, {})
        self.refused("on the moon", {"w": Broken()}, {})
        self.refused("not contiguous", {"w": Exported(np.zeros((4, 8), np.float32)[:, ::2])}, {})

    def test_configurations(self):
        self.refused("needs steps=", steps=None)
        self.refused("needs lr=", lr=None)
        self.refused("stepss", stepss=3)
        self.refused("device is cuda", device="cuda")
        self.refused("'x'", gradients={"x": np.zeros(3, np.float32)})
        self.refused("1 gradients, but 2 parameters", gradients=[np.zeros(3, np.float32)])
        self.refused("out=FOLDER", resume=True)

    def test_gradients(self):
        def after(change, words):
            task = Regression()
            with loop_over(task, steps=10, predictor="none") as loop:
                loop.step(task.loss)

                def loss(batch):
                    out = task.loss(batch)
                    change(task)
                    return out

                with self.assertRaisesRegex(ht.InputError, words):
                    loop.step(loss)
                task.grads.update({name: np.zeros_like(w) for name, w in task.weights.items()})
                if task.weights["w"].shape == (FEATURES,):
                    self.assertEqual(loop.step(task.loss).step, 2)  # and the loop goes on

        after(lambda t: t.grads.pop("b"), "b has no gradient")
        after(lambda t: t.grads.update(w=None), "w has no gradient")
        after(lambda t: t.grads.update(w=np.zeros(3, np.float32)), "gradient of parameter w has shape")
        after(lambda t: t.grads.update(w=np.zeros(FEATURES)), "gradient of parameter w has type float64")
        after(lambda t: t.grads.update(w=np.zeros(2 * FEATURES, np.float32)[::2]), "w is not contiguous")
        after(lambda t: t.grads.update(w="text"), "gradient of parameter w is a str")

    def test_weights_that_move(self):
        def after(change, words):
            task = Regression()
            with loop_over(task, steps=10, predictor="none") as loop:
                loop.step(task.loss)

                def loss(batch):
                    out = task.loss(batch)
                    change(task)
                    return out

                with self.assertRaisesRegex(ht.InputError, words):
                    loop.step(loss)

        after(lambda t: t.weights.update(w=t.weights["w"].copy()), "w is not the array")
        after(lambda t: t.weights.pop("w"), "w is not the array")
        after(lambda t: setattr(t.weights["w"], "shape", (2, 5)), "shape or type of parameter w has changed")

        def resized(task):
            task.weights["w"].resize(100_000, refcheck=False)

        after(resized, "of parameter w has changed")

    def test_losses(self):
        task = Regression()
        with loop_over(task, steps=10, predictor="none") as loop:
            for wrong, words in (
                (np.zeros(3), "shape \\(3,\\)"),
                ("text", "a str"),
                (None, "a NoneType"),
                ((1.0, 2, 3), "3 values"),
                ((1.0, 0), "tokens is 0"),
                (object(), "an? object"),
            ):
                with self.assertRaisesRegex(ht.InputError, words):
                    loop.step(lambda batch, wrong=wrong: wrong)
            self.assertEqual(loop.step(lambda batch: np.float32(1)).step, 1)
            self.assertEqual(loop.step(lambda batch: np.ones(1)).step, 2)
            self.assertTrue(loop.step(lambda batch: float("nan")).was_skipped)
            self.assertEqual(loop.step(lambda batch: 1.0).step, 4)

    def test_a_loss_function_that_raises_leaves_the_loop_as_it_was(self):
        task = Regression()
        with loop_over(task, steps=10, predictor="none") as loop:
            with self.assertRaisesRegex(KeyError, "mine"):
                loop.step(lambda batch: {}["mine"])
            self.assertEqual(loop.step(task.loss).step, 1)

    def test_after_the_end_and_after_close(self):
        task = Regression()
        loop = loop_over(task, steps=2, predictor="none")
        loop.run(task.loss)
        self.assertTrue(loop.is_over)
        self.assertIsNone(loop.question)
        self.assertEqual(list(loop), [])
        self.assertEqual(loop.summary().steps, 2)
        for call in (lambda: loop.answer(1.0), lambda: loop.step(task.loss), loop.save):
            with self.assertRaisesRegex(ht.StateError, "over"):
                call()
        loop.close()
        loop.close()
        for call in (
            lambda: loop.answer(1.0),
            lambda: loop.step(task.loss),
            lambda: loop.run(task.loss),
            lambda: loop.is_over,
            lambda: loop.last,
            lambda: next(iter(loop)),
            loop.save,
            loop.stop,
            loop.summary,
            loop.memory,
            loop.plan,
        ):
            with self.assertRaisesRegex(ht.StateError, "closed"):
                call()

    def test_a_loss_function_may_ask_for_the_question(self):
        task, phases = Regression(), []

        def loss(batch):
            phases.append(loop.question.phase)
            self.assertEqual(loop.question.batch, batch)
            with self.assertRaisesRegex(ht.StateError, "from a callback"):
                loop.save()
            return task.loss(batch)

        with loop_over(task, steps=20, lr_warmup_steps=2) as loop:
            loop.run(loss)
        self.assertEqual(phases[0], "warmup")

    def test_an_iteration_without_answers(self):
        with loop_over(Regression(), steps=2) as loop:
            with self.assertRaisesRegex(ht.StateError, "gradients, but the question was not answered"):
                for _ in loop:
                    pass

    def test_two_threads(self):
        task = Regression()
        with loop_over(task, steps=100000, predictor="none") as loop:
            began, may_end = threading.Event(), threading.Event()

            def slow(batch):
                began.set()
                may_end.wait(10)
                return task.loss(batch)

            thread = threading.Thread(target=loop.step, args=(slow,))
            thread.start()
            began.wait(10)
            for call in (lambda: loop.step(task.loss), lambda: loop.is_over, loop.save, loop.close, loop.summary):
                with self.assertRaisesRegex(ht.StateError, "in another thread"):
                    call()
            may_end.set()
            thread.join()
            self.assertEqual(loop.step(task.loss).step, 2)

    def test_callbacks(self):
        task, seen = Regression(), []

        def on_step(info):
            seen.append(info.step)
            if info.step == 3:
                raise KeyError("mine")
            if info.step == 5:
                loop.save()

        with loop_over(task, steps=10, predictor="none", on_step=on_step) as loop:
            loop.step(task.loss)
            loop.step(task.loss)
            with self.assertRaisesRegex(KeyError, "mine"):
                loop.step(task.loss)
            loop.step(task.loss)
            with self.assertRaisesRegex(ht.StateError, "another thread|callback"):
                loop.step(task.loss)
            loop.run(task.loss)
        self.assertEqual(seen, list(range(1, 11)))

    def test_a_loop_that_is_forgotten_gives_all_back(self):
        task = Regression()
        loop = loop_over(task, steps=100)
        loop.step(task.loss)
        gone = weakref.ref(loop)
        array = weakref.ref(task.weights["w"])
        threads = len(os.listdir("/proc/self/task"))
        del loop, task
        gc.collect()
        self.assertIsNone(gone())
        self.assertIsNone(array())
        self.assertLess(len(os.listdir("/proc/self/task")), threads)

    def test_arrays_that_are_forgotten_stay_while_the_loop_lives(self):
        weights, grads = {"w": np.zeros(1000, np.float32)}, {"w": np.ones(1000, np.float32)}
        kept = weakref.ref(weights["w"])
        with ht.Loop(list(weights.values()), gradients=list(grads.values()), steps=5, lr=0.1, device="cpu") as loop:
            del weights, grads
            gc.collect()
            self.assertIsNotNone(kept())
            loop.run(lambda batch: 1.0)

    def test_a_fork_of_the_process_leaves_the_loop_alone(self):
        task = Regression()
        loop = loop_over(task, steps=10, predictor="none")
        loop.step(task.loss)
        child = os.fork()
        if child == 0:
            loop.close()
            del loop
            gc.collect()
            os._exit(7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        loop.run(task.loss)
        self.assertEqual(loop.summary().steps, 10)
        loop.close()

    def test_a_loop_is_not_copied(self):
        import copy
        import pickle

        with loop_over(Regression()) as loop:
            for call in (copy.copy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "Loop"):
                    call(loop)


if __name__ == "__main__":
    unittest.main()
