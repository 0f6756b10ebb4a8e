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


class Wide(torch.nn.Module if torch else object):
    """Eight blocks with dropout; the input of each has 8 MiB, and the weights have 32 MiB together."""

    def __init__(self):
        super().__init__()
        linear = torch.nn.Linear
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(linear(1024, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(8)
        )

    def loss(self, batch):
        torch.manual_seed(batch)
        x = first = torch.randn(2048, 1024).cuda()
        for layer in self.layers:
            x = x + layer(x)
        return (x - first).square().mean()


@unittest.skipIf(REASON, REASON or "")
class BlocksOnACard(InFolder):
    def loop(self, module, steps=8, **keys):
        loop = ht.Loop(module, blocks=True, device="cuda", steps=steps, lr=1e-3, predictor="none", **keys)
        self.addCleanup(loop.close)
        return loop

    def losses(self, **keys):
        torch.manual_seed(0)
        module = Wide()
        loop = self.loop(module, **keys)
        return [loop.step(module.loss).loss for _ in range(8)]

    def test_places_of_weights_and_inputs_change_no_bit(self):
        wanted = self.losses(activations_place="device", recompute="all")
        for keys in ({}, {"activations_place": "pinned"}, {"max_gpu_mem": "250MiB"}, {"weights_place": "pinned"}):
            with self.subTest(**keys):
                self.assertEqual(self.losses(**keys), wanted)

    def test_the_plan_is_what_library_and_torch_use(self):
        torch.manual_seed(0)
        module = Wide()
        loop = self.loop(module, max_gpu_mem="400MiB", activations_place="device", recompute="all")
        lean = loop.plan()["vram_peak_bytes"]
        for _ in range(4):
            loop.step(module.loss)
        plan, memory = loop.plan(), loop.memory()
        self.assertGreater(plan["vram_peak_bytes"] - plan["caller_bytes"], lean)
        self.assertLessEqual(torch.cuda.max_memory_reserved(), plan["caller_bytes"])
        self.assertLessEqual(plan["vram_peak_bytes"], 400 << 20)
        self.assertAlmostEqual(memory.device.peak / memory.device.planned, 1, delta=0.05)
        self.assertEqual(str(memory.device.status), "normal")

    def test_a_step_that_ran_out_of_memory_can_be_tried_again(self):
        module = Wide()
        loop = self.loop(module)
        loop.step(module.loss)
        with self.assertRaisesRegex(ht.MemoryError_, "the library had"):
            loop.step(lambda batch: torch.empty(1 << 45, device="cuda").sum())
        loop.step(module.loss)
        self.assertGreater(loop.estimate_activations().total, 8 * (8 << 20))


if __name__ == "__main__":
    unittest.main()
