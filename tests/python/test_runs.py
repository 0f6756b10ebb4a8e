"""Configurations, the library's own models, tokenizers and what runs leave behind."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest

import hybrid_train as ht
from support import ROOT, InFolder

SMALL = dict(model="nano", layers=1, width=32, heads=2, mlp_width=64, seq_len=32, batch_size=2, steps=6,
             builtin_bytes=60000, sample_tokens=0, device="cpu", predictor="none", save_model=False)  # fmt: skip


class Configurations(InFolder):
    def test_values_come_back_by_their_type(self):
        config = ht.Config(steps=30, lr=1e-3, shuffle=False, out="here", **{"train.batch_size": 3})
        self.assertEqual(config["steps"], 30)
        self.assertEqual(config["optimizer.lr"], 1e-3)
        self.assertIs(config["shuffle"], False)
        self.assertEqual(config["batch_size"], 3)
        self.assertIn("steps", config)
        self.assertNotIn("stepss", config)

    def test_wrong_keys_and_values_are_named(self):
        with self.assertRaisesRegex(ht.InputError, "train.steps"):
            ht.Config(stepss=3)
        with self.assertRaisesRegex(ht.InputError, "lr"):
            ht.Config(lr="fast")
        with self.assertRaisesRegex(ht.InputError, "lr is .*of type list"):
            ht.Config(lr=[1])
        with self.assertRaisesRegex(ht.InputError, "zero byte"):
            ht.Config(name="a\0b")
        with self.assertRaises(ValueError):  # what Python programs catch
            ht.Config(lr=-1)

    def test_files_are_weaker_than_what_is_set(self):
        (self.folder / "my.cfg").write_text("train: { steps = 7; batch_size = 9; };\n")
        config = ht.Config(steps=5)
        config.load("my.cfg")
        self.assertEqual((config["steps"], config["batch_size"]), (5, 9))
        self.assertIn("my.cfg:1", config.origin("batch_size"))
        self.assertTrue(config.is_chosen("batch_size"))
        self.assertFalse(config.is_chosen("beta1"))
        with self.assertRaisesRegex(ht.InputError, "no.cfg"):
            config.load("no.cfg")

    def test_a_copy_stands_alone(self):
        config = ht.Config(steps=5, model="gpt2-124m")
        other = config.copy()
        other["steps"] = 6
        self.assertEqual((config["steps"], other["steps"], other["model"]), (5, 6, "gpt2-124m"))

    def test_keys_have_help(self):
        keys = {key.key: key for key in ht.Config.keys()}
        self.assertGreater(len(keys), 100)
        self.assertTrue(all(key.help and key.type for key in keys.values()))
        self.assertEqual(ht.Config.find("learning_rate").key, "optimizer.lr")
        self.assertEqual(set(ht.Config()), set(keys))

    def test_it_prints_as_a_file_that_loads(self):
        (self.folder / "out.cfg").write_text(str(ht.Config(steps=77)))
        config = ht.Config()
        config.load("out.cfg")
        self.assertEqual(config["steps"], 77)
        self.assertEqual(repr(ht.Config(steps=77)), "Config(steps=77)")


class Training(InFolder):
    def test_validations_score_rows_with_a_known_answer(self):
        rows = str(ROOT / "tests/golden/scores")
        (self.folder / "train.jsonl").write_text('{"prompt": "one", "completion": " two"}\n' * 8)
        seen = []
        settings = dict(SMALL, model=rows, seq_len=48, data="train.jsonl", out="none", steps=2)
        for key in ("layers", "width", "heads", "mlp_width"):
            del settings[key]
        config = ht.Config(**settings, eval_rows=rows + "/choices.jsonl", precision="fp32")
        with ht.Trainer(config, on_eval=lambda info: seen.append(info.row_scores)) as trainer:
            first = trainer.evaluate().row_scores
            summary = trainer.run()
        self.assertEqual((first.choice_rows, first.accuracy, first.accuracy_norm), (10, 0.9, 0.6))
        self.assertEqual(summary.row_scores.accuracy, seen[-1].accuracy)
        self.assertTrue(math.isnan(first.greedy_accuracy))

    def test_a_run_is_rewarded_and_scaled(self):
        (self.folder / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 12)
        settings = dict(SMALL, data="sums.jsonl", task="grpo", reward="regex:[0-9]", answer_tokens=4)
        settings.update(prompts=2, samples=4, steps=2, out="run", val_fraction=0.3)
        with ht.Trainer(ht.Config(**settings)) as trainer:
            rewards = trainer.step().rewards
            trainer.save()
        self.assertTrue(0 <= rewards.reward <= 1 and rewards.answer_tokens > 0)
        self.assertTrue(math.isnan(rewards.kl))
        with ht.Trainer(ht.Config(**settings, resume="run")) as trainer:
            with self.assertRaisesRegex(ht.Error, "began with random weights"):
                trainer.scale(2)
            trainer.scale(1)
            self.assertEqual(trainer.evaluate().row_scores.rewarded_rows, 4)
            with self.assertRaisesRegex(ht.Error, "were scaled"):
                trainer.step()

    def test_train_runs_to_the_end_and_reports(self):
        steps, evals, saves = [], [], []
        summary = ht.train(
            SMALL, out="run", on_step=steps.append, on_eval=evals.append, on_save=lambda *a: saves.append(a)
        )
        self.assertEqual([info.step for info in steps], [1, 2, 3, 4, 5, 6])
        self.assertTrue(all(info.loss > 0 and info.phase in ("warmup", "full") for info in steps))
        self.assertEqual((summary.steps, summary.model), (6, "nano"))
        self.assertAlmostEqual(summary.val_loss, evals[-1].loss)
        self.assertTrue(saves and os.path.isdir(saves[-1][0]))
        self.assertEqual(summary.phases["full"].memory["weights"].place, "device")
        self.assertEqual(repr(pickle.loads(pickle.dumps(steps[0]))), repr(steps[0]))

    def test_an_exception_in_a_callback_stops_the_run_and_comes_out(self):
        seen = []

        def on_step(info):
            seen.append(info.step)
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            ht.train(SMALL, out="run", on_step=on_step)
        self.assertEqual(seen, [1])
        self.assertTrue(list((self.folder / "run").glob("checkpoint-*")))  # it was saved
        self.assertEqual(ht.train(SMALL, resume="run", out="run").steps, 6)

    def test_control_c_finishes_the_step_and_saves(self):
        code = (
            "import hybrid_train, signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # shells ignore it for jobs behind
            f"hybrid_train.train({ {**SMALL, 'steps': 100000}!r}, out='run', eval_every=0, overwrite=True,\n"
            "    on_step=lambda info: print(info.step, flush=True))\n"
        )
        for _ in range(5):
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(child.wait)
            self.addCleanup(child.kill)
            for _ in range(5):
                child.stdout.readline()
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
            self.assertIn(b"KeyboardInterrupt", said)
            self.assertTrue(list((self.folder / "run").glob("checkpoint-*")))

    def test_step_by_step(self):
        with ht.Trainer(SMALL, out="none") as trainer:
            self.assertEqual([trainer.step().step for _ in range(3)], [1, 2, 3])
            self.assertGreater(trainer.evaluate().loss, 0)
            self.assertEqual(trainer.summary().steps, 3)
            self.assertIsInstance(trainer.sample("Lela", tokens=5), str)
            self.assertGreater(trainer.memory().classes["weights"].live["device"], 0)
            self.assertTrue(trainer.plan()["fits"] and trainer.plan_facts().fits)
        for call in (trainer.step, trainer.run, trainer.summary, trainer.save):
            with self.assertRaisesRegex(ht.StateError, "closed"):
                call()

    def test_a_trainer_is_not_called_by_two(self):
        with ht.Trainer(SMALL, out="none", on_step=lambda info: trainer.step()) as trainer:
            with self.assertRaisesRegex(ht.StateError, "callback"):
                trainer.run()

    def test_a_stop_that_was_asked_for_is_an_exception(self):
        trainer = ht.Trainer({**SMALL, "steps": 100000}, out="none", eval_every=0)
        threading.Timer(0.3, trainer.request_stop).start()
        with self.assertRaises(ht.Stopped) as caught:
            trainer.run()
        self.assertEqual(caught.exception.status, "HY_STOPPED")

    def test_messages_go_to_logging(self):
        with self.assertLogs("hybrid_train", logging.INFO) as logs:
            ht.train(SMALL, out="run", save_model=True, save_every=0)
        self.assertTrue(any("model" in line for line in logs.output))

    def test_wrong_input_has_the_librarys_own_words(self):
        with self.assertRaisesRegex(ht.InputError, "nowhere.txt"):
            ht.train(SMALL, data="nowhere.txt")
        with self.assertRaisesRegex(ht.InputError, "config is a int"):
            ht.train(3)
        with self.assertRaisesRegex(ht.Error, "cuda:99"):
            ht.train({**SMALL, "device": "cuda:99"})

    def test_a_plan_takes_nothing(self):
        plan = ht.plan(model="llama-3.2-1b", card="rtx5080", cpu_mem="28GiB")
        self.assertTrue(plan["fits"])
        self.assertGreater(plan["parameters"], 1_000_000_000)
        plan = ht.plan(model="qwen2.5-7b", card="rtx5080", cpu_mem="2GiB")
        self.assertFalse(plan["fits"])

    def test_a_plan_of_custom_parameters(self):
        plan = ht.plan_parameters({"w": (1000, 1000), "b": (1000,)}, dtype="bf16", predictor="none", device="cpu")
        self.assertEqual(plan["parameters"], 1_001_000)
        classes = plan["phases"]["full"]["classes"]
        self.assertEqual(classes["optim"]["bytes"] // 1_001_000, 8)
        self.assertEqual(classes["weights"]["dtype"], "bf16")
        with self.assertRaisesRegex(ht.InputError, "fp8"):
            ht.plan_parameters({"w": (2, 2)}, dtype="fp8")
        with self.assertRaisesRegex(ht.InputError, "no parameter"):
            ht.plan_parameters({})


class Reading(InFolder):
    def test_runs_are_read_and_reported(self):
        ht.train(SMALL, out="a")
        ht.train(SMALL, out="b", seed=2)
        run = ht.read_run("a")
        self.assertEqual(len(run.points), 6)
        self.assertEqual(run.column("step"), [1, 2, 3, 4, 5, 6])
        self.assertTrue(run.facts.is_complete)
        self.assertEqual(run.events[0].kind, "start")
        with self.assertRaisesRegex(ht.InputError, "lost"):
            run.column("lost")
        ht.report(["a", "b"], out="both.html")
        ht.report("a")
        self.assertGreater((self.folder / "both.html").stat().st_size, 10000)
        self.assertTrue((self.folder / "report.html").exists())
        with self.assertRaisesRegex(ht.InputError, "nowhere"):
            ht.read_run("nowhere")
        with self.assertRaises(ht.InputError):
            ht.report([])


class Tokens(InFolder):
    def setUp(self):
        super().setUp()
        self.tokenizer = ht.Tokenizer(ROOT / "tests" / "golden" / "rows")

    def test_text_comes_back(self):
        for text in ("Hello, wörld!", "", "a\0b", "\N{SNOWMAN} \n\t"):
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)
        self.assertEqual(self.tokenizer.decode_bytes(self.tokenizer.encode(b"\xff\xfe")), b"\xff\xfe")
        self.assertGreater(self.tokenizer.vocab_size, self.tokenizer.eos)

    def test_special_tokens(self):
        ids = self.tokenizer.encode("<|im_end|>")
        self.assertEqual(len(ids), 1)
        self.assertGreater(len(self.tokenizer.encode("<|im_end|>", plain=True)), 1)
        self.assertEqual(self.tokenizer.decode(ids, skip_special=True), "")

    def test_wrong_ids_and_files_are_refused(self):
        for ids in ([10**6], [-1], [2**40]):
            with self.assertRaises(ht.InputError):
                self.tokenizer.decode(ids)
        with self.assertRaisesRegex(ht.InputError, "nowhere"):
            ht.Tokenizer("nowhere")
        self.tokenizer.close()
        with self.assertRaisesRegex(ht.StateError, "closed"):
            self.tokenizer.encode("x")

    def test_files_become_shards(self):
        (self.folder / "text.txt").write_text("one two three\n" * 1000)
        told = []
        result = self.tokenizer.tokenize_files(["text.txt"], "shards", on_progress=lambda *a: told.append(a))
        self.assertEqual(result.files, 1)
        self.assertGreater(result.tokens[0], 1000)
        self.assertTrue(list((self.folder / "shards").rglob("*.bin")))
        with self.assertRaisesRegex(KeyError, "mine"):

            def fail(*_):
                raise KeyError("mine")

            self.tokenizer.tokenize_files(["text.txt"], "others", on_progress=fail)


if __name__ == "__main__":
    unittest.main()
