"""Long tests of modules with blocks, started by tests/long/blocks.sh."""

from __future__ import annotations

import random
import unittest

import test_resume
from support import InFolder, needs_torch

try:
    import blocks
    import torch
except ImportError:
    torch = None

STEPS = 100


def all_in(place):
    return {"offload_folder": ".", **{f"{what}_place": place for what in ("weights", "grads", "optim")}}


@needs_torch
class Losses(InFolder):
    """100 steps in fp32 against plain torch, and the same bits wherever weights, gradients and state are."""

    PLACES = (all_in("pinned"), all_in("disk"), {"optim_place": "pinned", "activations_place": "pinned"})

    def check(self, kind):
        expected = blocks.trained_by_torch(kind, STEPS)
        losses, kept = blocks.trained(kind, STEPS, blocks=True, grad_clip=1)
        self.assertLess(max(abs(a - b) for a, b in zip(expected, losses)), 1e-5)
        self.assertLess(sum(losses[-10:]), sum(losses[:10]))
        for places in self.PLACES:
            ours, elsewhere = blocks.trained(kind, STEPS, blocks=True, grad_clip=1, **places)
            self.assertEqual(ours, losses, places)
            for name in kept:
                self.assertTrue(torch.equal(kept[name], elsewhere[name]), (places, name))

    def test_cnn(self):
        self.check(blocks.Cnn)

    def test_encoder_decoder(self):
        self.check(blocks.EncoderDecoder)

    def test_graph_network(self):
        self.check(blocks.Graph)

    def test_mixed_frozen(self):
        self.check(blocks.Frozen)

    def test_tied(self):
        self.check(blocks.Transformer)

    def test_dropout(self):
        self.check(blocks.Dropout)


@needs_torch
class Killed(test_resume.KilledBlocks):
    """Killed and resumed at 30 moments: the same bits as undisturbed."""

    def test_blocks(self):
        drawn = random.Random(40)
        most = {"hold": 100, "release": 100, "fetch": 100, "add_gradients": 50, "answer": 9, "save": 3, "saved": 3}
        moments = [f"{call}:{drawn.randint(1, n)}" for call, n in most.items() for _ in range(3)]
        drawn.shuffle(moments)
        moments += [f"time:{random.randint(50, 1500)}" for _ in range(9)]
        self.check(moments)


if __name__ == "__main__":
    unittest.main()
