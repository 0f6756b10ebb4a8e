"""The examples, as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

from support import ROOT, InFolder, needs_numpy, needs_torch, needs_transformers


class Examples(InFolder):
    def said(self, name, *arguments):
        command = [sys.executable, str(ROOT / "python" / "examples" / name), *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}  # the models are small, and the machine may be busy
        done = subprocess.run(command, capture_output=True, text=True, env=env)
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

    @needs_torch
    def test_multimodal(self):
        arguments = ("--steps", "90", "--max-gpu-mem", "400KiB", "--cpu-mem", "1GiB", "--device", "cpu", "--out", "run")
        text = self.said("multimodal.py", *arguments)
        loss, variance = map(float, re.search(r"held-out loss ([\d.]+).* target ([\d.]+)", text).groups())
        self.assertLess(loss, 0.4 * variance)
        self.assertEqual(len(re.findall(r"^step \d+: loss", text, re.MULTILINE)), 90)
        again = self.said("multimodal.py", *arguments)  # it is over: nothing is done again
        self.assertEqual(text.splitlines()[-1], again.splitlines()[-1])
        self.assertNotIn("step 90:", again)

    @needs_torch
    def test_multimodal_of_the_original_size_is_planned(self):
        budget = ("--card", "a100-80", "--max-gpu-mem", "47.4GB", "--cpu-mem", "120GiB")
        text = self.said("multimodal.py", "--size", "8.5b", "--plan", *budget)
        self.assertRegex(text, r"8,4\d\d,\d{3},\d{3} parameters; it fits")
        self.assertRegex(text, r"weights +pinned +bf16 +15\.\d+ GiB")

    @needs_torch
    def test_convnet(self):
        text = self.said("convnet.py", "--device", "cpu", "--out", "run")
        self.assertGreater(float(re.search(r"accuracy ([\d.]+) on 512 images", text)[1]), 0.7)
        again = self.said("convnet.py", "--device", "cpu", "--out", "run")
        self.assertEqual(text.splitlines()[-1], again.splitlines()[-1])

    @needs_transformers
    def test_finetune(self):
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

        letters = {chr(i): i - 32 for i in range(32, 127)}
        own = Tokenizer(models.WordLevel(letters, unk_token=" "))
        own.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        PreTrainedTokenizerFast(tokenizer_object=own).save_pretrained("model")
        size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=95, **size)).save_pretrained("model")
        (self.folder / "text").write_text("the quick brown fox jumps over the lazy dog. " * 20)
        arguments = ("model", "text", "out", "--lr", "1e-2", "--length", "32", "--steps", "12")
        text = self.said("finetune.py", *arguments)
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", text)]
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], 0.8 * losses[0])
        AutoModelForCausalLM.from_pretrained("out")
        self.assertNotIn("step 12:", self.said("finetune.py", *arguments))  # it is over


if __name__ == "__main__":
    unittest.main()
