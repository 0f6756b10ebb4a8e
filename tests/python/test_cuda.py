"""Loops over tensors on a card. Left out where there is none, or no backend for it."""

from __future__ import annotations

import unittest

import hybrid_train as ht
from support import InFolder
from test_torch import PLAIN, bits, make

try:
    import torch
except ImportError:
    torch = None


def why_not():
    if torch is None:
        return "torch is not here"
    if not torch.cuda.is_available():
        return "torch sees no card"
    try:
        module = torch.nn.Linear(2, 2).cuda()
        ht.Loop(module, steps=1, lr=0.1).close()
    except ht.DeviceError as error:
        return f"the library cannot use the card: {error}"
    except ht.InputError as error:
        return f"the library cannot use the card: {error}"
    return None


REASON = why_not()
ON_CARD = {key: value for key, value in PLAIN.items() if key != "device"}


def on_card(module, number, size=16):
    import test_torch

    x, y = test_torch.batch_of(number, size)
    dtype = next(module.parameters()).dtype
    return (module(x.cuda().to(dtype)) - y.cuda().to(dtype)).float().square().mean()


@unittest.skipIf(REASON, REASON or "")
class OnACard(InFolder):
    def test_the_device_follows_the_tensors(self):
        with ht.Loop(make().cuda(), steps=3, lr=1e-3) as loop:
            self.assertEqual(loop.config["device"], "cuda:0")
            self.assertTrue(loop.summary().is_gpu)
        with self.assertRaisesRegex(ht.InputError, "device is cpu"):
            ht.Loop(make().cuda(), steps=3, lr=1e-3, device="cpu")

    def test_losses_are_those_of_torchs_adamw(self):
        module, theirs, losses = make().cuda(), make().cuda(), []
        with ht.Loop(module, steps=100, lr=3e-3, weight_decay=0, precision="fp32", **ON_CARD) as loop:
            while not loop.is_over:
                losses.append(loop.step(lambda batch: on_card(module, batch)).loss)
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
        for number in range(100):
            optimizer.zero_grad()
            loss = on_card(theirs, number)
            loss.backward()
            optimizer.step()
            self.assertAlmostEqual(loss.item(), losses[number], delta=1e-4)

    def test_state_in_pinned_memory_changes_no_bit(self):
        results = []
        for place in ("device", "pinned"):
            module = make(torch.bfloat16).cuda()
            keys = dict(optim_place=place, master_place=place)
            with ht.Loop(module, steps=100, lr=5e-3, **keys) as loop:
                loop.run(lambda batch: on_card(module, batch))
                self.assertGreater(loop.memory().classes["optim"].live[place], 0)
            results.append(bits(module.cpu()))
        self.assertEqual(*results)

    def test_another_stream_than_the_default_one(self):
        results = []
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            module = make().cuda()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                with ht.Loop(module, steps=100, lr=5e-3) as loop:
                    loop.run(lambda batch: on_card(module, batch))
            torch.cuda.synchronize()
            results.append(bits(module.cpu()))
        self.assertEqual(*results)

    def test_a_stream_that_changes_is_refused(self):
        module = make().cuda()
        with ht.Loop(module, steps=9, lr=5e-3) as loop:
            loop.step(lambda batch: on_card(module, batch))
            with torch.cuda.stream(torch.cuda.Stream()):
                with self.assertRaisesRegex(ht.StateError, "stream is not the one"):
                    loop.step(lambda batch: on_card(module, batch))
            self.assertEqual(loop.step(lambda batch: on_card(module, batch)).step, 2)

    def test_updates_in_turn_change_no_bit(self):
        results = []
        for in_turn in (False, True):
            torch.manual_seed(0)
            layers = [torch.nn.Linear(1200, 1200) for _ in range(6)]
            module = torch.nn.Sequential(torch.nn.Linear(8, 1200), *layers, torch.nn.Linear(1200, 1)).cuda()
            named = list(module)[1:] if in_turn else None
            with ht.Loop(module, steps=20, lr=1e-3, in_turn=named, optim_place="pinned") as loop:
                loop.run(lambda batch: on_card(module, batch))
            results.append(bits(module.cpu()))
        self.assertEqual(*results)

    def test_it_goes_on_after_a_stop(self):
        whole = make(torch.bfloat16).cuda()
        with ht.Loop(whole, steps=60, lr=5e-3) as loop:
            loop.run(lambda batch: on_card(whole, batch))
        module = make(torch.bfloat16).cuda()
        with ht.Loop(module, steps=60, lr=5e-3, out="run") as loop:
            for _ in range(25):
                loop.step(lambda batch: on_card(module, batch))
        again = make(torch.bfloat16, seed=3).cuda()
        with ht.Loop(again, resume="run") as loop:
            loop.run(lambda batch: on_card(again, batch))
        self.assertEqual(bits(again.cpu()), bits(whole.cpu()))

    def test_gradients_on_another_device_are_refused(self):
        weights = {"w": torch.zeros(4, device="cuda")}
        grads = {"w": torch.zeros(4)}
        with ht.Loop(weights, gradients=grads, steps=3, lr=0.1) as loop:
            with self.assertRaisesRegex(ht.InputError, "gradient of parameter w is on cpu; expected cuda:0"):
                loop.step(lambda batch: 1.0)
        mixed = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4, device="cuda"))]
        with self.assertRaisesRegex(ht.InputError, "is on cuda:0, but"):
            ht.Loop(mixed, steps=3, lr=0.1)


if __name__ == "__main__":
    unittest.main()
