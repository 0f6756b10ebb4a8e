"""Answers to many prompts: generate() and Generator."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import hybrid_train as ht
from support import InFolder

TINY = dict(model="nano", layers=1, width=32, heads=2, mlp_width=64, seq_len=32, batch_size=2, steps=120,
            builtin_bytes=60000, sample_tokens=0, device="cpu", predictor="none", threads=1)  # fmt: skip
TEMPLATE = "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
OPEN = dict(device="cpu", threads=1)

_made = tempfile.TemporaryDirectory(prefix="hybrid-python-")
MODEL = Path(_made.name) / "run"


def setUpModule():
    ht.train(out=MODEL, **TINY)
    (MODEL / "model" / "chat_template.jinja").write_text(TEMPLATE)


def tearDownModule():
    _made.cleanup()


class Answers(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.generator = ht.Generator(MODEL, top_logprobs=3, **OPEN)
        cls.addClassCleanup(cls.generator.close)

    def test_every_kind_of_prompt(self):
        with ht.Generator(MODEL / "model", **OPEN) as generator:
            prompts = [
                "<user>Nina",
                generator.encode("<user>Nina", is_prompt=True),
                tuple(b"<user>Nina"),
                [{"role": "user", "content": "Nina"}],
                {"messages": [{"role": "user", "content": "Nina"}]},
                "[f]<user>Nina",
                {"messages": [{"role": "user", "content": "Nina"}], "tools": [{"name": "f"}]},
            ]
            answers = generator.generate(prompts, temperature=0, max_tokens=20)
            self.assertEqual(len({one.text for one in answers[:5]}), 1)
            self.assertEqual(answers[5].text, answers[6].text)
            self.assertNotEqual(answers[0].text, answers[5].text)
            self.assertEqual([one.prompt_tokens for one in answers], [10] * 5 + [13] * 2)

    def test_an_answer_has_tokens_and_an_end(self):
        (one,) = self.generator.generate(["Nina"], temperature=0, max_tokens=9)
        self.assertEqual((one.end, one.prompt_tokens, len(one.answers[0].tokens)), ("max_tokens", 4, 9))
        self.assertEqual(self.generator.decode(one.answers[0].tokens), one.text)
        self.assertIsNone(one.answers[0].logprobs)
        stopped = self.generator.generate(["Nina"], temperature=0, max_tokens=9, stop=["never", one.text[4]])[0]
        self.assertEqual(stopped.end, "stop_text")
        self.assertEqual(stopped.text, one.text[: one.text.index(one.text[4])])

    def test_seeds_are_those_of_a_file(self):
        three = self.generator.generate(["ab", "ab"], seed=10, answers=3, max_tokens=12)
        each = [self.generator.generate(["ab"], seed=10 + i, max_tokens=12)[0].text for i in range(6)]
        self.assertEqual([answer.text for one in three for answer in one.answers], each)
        self.assertGreater(len(set(each)), 3)

    def test_log_probabilities(self):
        (one,) = self.generator.generate(["Nina"], temperature=0, max_tokens=5, top_logprobs=3, prompt_logprobs=True)
        answer = one.answers[0]
        self.assertEqual([len(top) for top in answer.top_logprobs], [3] * 5)
        for token, logprob, top in zip(answer.tokens, answer.logprobs, answer.top_logprobs):
            self.assertEqual(next(iter(top.items())), (token, logprob))
            self.assertLess(logprob, 0)
        self.assertTrue(math.isnan(one.prompt_logprobs[0]))
        self.assertEqual(len(one.prompt_logprobs), 4)
        self.assertTrue(all(logprob < 0 for logprob in one.prompt_logprobs[1:]))

    def test_pieces_make_the_text(self):
        pieces = {}
        answers = self.generator.generate(
            ["ab", "Nina"], answers=2, max_tokens=30, on_text=lambda *at_text: pieces.setdefault(at_text[:2], []).append(at_text[2])
        )  # fmt: skip
        self.assertEqual(
            {key: "".join(parts) for key, parts in pieces.items()},
            {(i, j): answer.text for i, one in enumerate(answers) for j, answer in enumerate(one.answers)},
        )
        streamed = list(self.generator.stream("ab", max_tokens=30))
        self.assertEqual("".join(streamed), answers[0].text)
        self.assertGreater(len(streamed), 10)

    def test_a_stream_that_is_left_ends_its_answer(self):
        for text in self.generator.stream("ab", max_tokens=0):
            self.assertTrue(text)
            break
        gc.collect()
        for _ in range(500):
            if self.generator.state().running == 0:
                return
            time.sleep(0.01)
        self.fail("the answer goes on")

    def test_requests_can_be_cancelled_and_waited_for(self):
        request = self.generator.add("ab", max_tokens=0, answers=2)
        with self.assertRaises(TimeoutError):
            request.result(timeout=0)
        request.cancel()
        one = request.result(timeout=60)
        self.assertTrue(request.is_done)
        self.assertEqual([answer.end for answer in one.answers], ["stopped"] * 2)
        request.cancel()  # of one that has ended

    def test_threads_share_a_generator(self):
        texts = {}

        def ask(i):
            texts[i] = [one.text for one in self.generator.generate(["ab", f"Nina {i}"], seed=i, max_tokens=20)]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for i in range(8):
            alone = self.generator.generate(["ab", f"Nina {i}"], seed=i, max_tokens=20)
            self.assertEqual(texts[i], [one.text for one in alone])

    def test_an_exception_in_a_callback_is_raised(self):
        def on_text(prompt, answer, text):
            if prompt == 1:
                raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.generator.generate(["ab", "cd"], max_tokens=50, on_text=on_text)
        self.assertEqual(self.generator.generate(["ab"], max_tokens=2)[0].end, "max_tokens")

    def test_a_callback_may_add_a_prompt(self):
        added = []

        def on_text(answer, text):
            if not added:
                added.append(self.generator.add("Nina", max_tokens=3))

        self.generator.add("ab", max_tokens=3, on_text=on_text).result(timeout=60)
        self.assertEqual(len(added[0].result(timeout=60).answers[0].tokens), 3)

    def test_mistakes_are_named(self):
        def refuses(pattern, prompts=("ab",), **sampling):
            with self.assertRaisesRegex(ht.InputError, pattern):
                self.generator.generate(prompts, **sampling)

        refuses("prompts is a single str; expected a list", "ab")
        refuses("prompt 1: a prompt is of type int; expected a text, token ids or messages", ["ab", 5])
        refuses("prompt 0: a prompt is neither a text nor messages nor token ids", [["a", "b"]])
        refuses(f"prompt 0: {2**40} in a prompt is not a token id", [[2**40]])
        refuses("prompt 0: token 0 of the prompt is 999999, expected 0 to 255", [[999999]])
        refuses("prompt 0: the prompt is empty", [[]])
        refuses("prompt 0: the prompt has 600 tokens; the context of 512 tokens", ["a" * 600])
        refuses("prompt 0: unknown role \"ghost\"", [[{"role": "ghost", "content": "a"}]])
        refuses(f"max_tokens is {2**31}; accepted: 0 to {2**31 - 1}", max_tokens=2**31)
        refuses("seed is -1", seed=-1)
        refuses("top_p is 2", top_p=2)
        refuses("top_logprobs is 4", top_logprobs=4)
        refuses("zero byte", stop="a\0b")
        with self.assertRaisesRegex(TypeError, "temprature"):
            self.generator.generate(["ab"], temprature=1)
        with self.assertRaisesRegex(ht.InputError, "a stream has one answer"):
            self.generator.stream("ab", answers=2)


class Generators(InFolder):
    def test_a_call_loads_a_model_for_itself(self):
        answers = ht.generate(MODEL, ["ab"], temperature=0, max_tokens=6, top_logprobs=2, streams=2, **OPEN)
        with ht.Generator(MODEL, **OPEN) as generator:
            self.assertEqual(generator.generate(["ab"], temperature=0, max_tokens=6)[0].text, answers[0].text)
            facts = generator.facts
            self.assertEqual((facts.streams, facts.context, facts.tokenizer, facts.dtype), (16, 512, "bytes", "fp32"))
            self.assertEqual(generator.state().tokens, 6)
        self.assertEqual(len(answers[0].answers[0].top_logprobs[0]), 2)

    def test_wrong_models_and_keys_are_named(self):
        with self.assertRaisesRegex(ht.InputError, "nowhere"):
            ht.Generator("nowhere")
        with self.assertRaisesRegex(ht.InputError, "divice"):
            ht.Generator(MODEL, divice="cpu")
        with self.assertRaisesRegex(ht.InputError, "accepted: 1 to 512"):
            ht.Generator(MODEL, context=10000, **OPEN)

    def test_closing_ends_requests(self):
        generator = ht.Generator(MODEL, **OPEN)
        request = generator.add("ab", max_tokens=0, answers=40)
        generator.close()
        generator.close()
        with self.assertRaisesRegex(ht.Stopped, "closed"):
            request.result(timeout=60)
        for call in (lambda: generator.generate(["ab"]), lambda: generator.facts, lambda: generator.encode("a")):
            with self.assertRaisesRegex(ht.StateError, "this generator is closed"):
                call()
        request.cancel()

    def test_another_thread_may_close_a_generator_that_is_in_use(self):
        done = self.run_program(
            """
import random
def use(call):
    try:
        while True: call()
    except ht.StateError: pass
for round in range(30):
    g = ht.Generator(model, **open_)
    text, ids = "ab " * 2000, list(range(200)) * 20
    calls = [lambda: g.encode(text), lambda: g.decode(ids), g.state, lambda: g.facts]
    threads = [threading.Thread(target=use, args=(call,)) for call in calls]
    for one in threads: one.start()
    time.sleep(random.random() / 50)
    g.close()
    for one in threads: one.join()
"""
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_callback_cannot_close_its_generator(self):
        with ht.Generator(MODEL, **OPEN) as generator:
            with self.assertRaisesRegex(ht.StateError, "its own callback"):
                generator.add("ab", max_tokens=9, on_text=lambda *_: generator.close()).result(timeout=60)

    def test_what_is_dropped_is_closed(self):
        threads = threading.active_count()
        generator = ht.Generator(MODEL, **OPEN)
        generator.generate(["ab"], max_tokens=2)
        del generator
        gc.collect()
        self.assertEqual(threading.active_count(), threads)

    def run_program(self, code):
        text = f"import hybrid_train as ht, os, signal, threading, time\nopen_ = dict(device='cpu', threads=1)\nmodel = {str(MODEL)!r}\n{code}"
        return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=os.environ)

    def test_ctrl_c_ends_a_call(self):
        done = self.run_program(
            """
g = ht.Generator(model, **open_)
def press(): time.sleep(0.3); os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    g.generate([f"Nina {i}" for i in range(20000)], max_tokens=0)
except KeyboardInterrupt:
    print("interrupted")
print(len(g.generate(["ab"], max_tokens=4)[0].answers[0].tokens))
g.close()
"""
        )
        self.assertEqual((done.returncode, done.stdout), (0, "interrupted\n4\n"), done.stderr)

    def test_a_program_ends_without_closing(self):
        for last in ("", "g.add('ab', max_tokens=0, answers=40)", "raise SystemExit(0)"):
            done = self.run_program(f"g = ht.Generator(model, **open_)\ng.generate(['ab'], max_tokens=2)\n{last}\n")
            self.assertEqual((done.returncode, done.stderr), (0, ""), last)


if __name__ == "__main__":
    unittest.main()
