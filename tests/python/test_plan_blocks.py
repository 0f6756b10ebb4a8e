"""Inputs of blocks in host memory, and plans that know torch's part of the card. Both without a card."""

from __future__ import annotations

import unittest
from unittest import mock

import hybrid_train as ht
from support import needs_torch

try:
    import blocks
    import torch
    from hybrid_train import _inputs
    from torch import nn
except ImportError:
    torch = None


def in_host_memory(module):
    """A module with its inputs in host memory, however small they are."""
    here = blocks.InRing(module)
    here.units.keep_inputs(True)
    return here


@needs_torch
class InputsInHostMemory(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.object(_inputs, "_SMALL", 0)
        patch.start()
        self.addCleanup(patch.stop)

    def test_all_modules_learn_with_the_same_bits(self):
        for kind in blocks.MODULES:
            with self.subTest(kind.__name__):
                losses = blocks.InRing(blocks.make(kind)).train(5)
                here = in_host_memory(blocks.make(kind))
                self.assertEqual(losses, here.train(5))
                self.assertGreater(here.units.inputs.most_bytes, 0)

    def test_buffers_are_used_again(self):
        here = in_host_memory(blocks.make(blocks.Mlp))
        here.backward(0)
        count = here.units.inputs.buffers.count
        self.assertEqual(count, 6)  # an input of each block
        for batch in range(1, 4):
            here.backward(batch)
        self.assertEqual(here.units.inputs.buffers.count, count)

    def test_other_sizes_take_the_place_of_free_buffers(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        for size in (10, 40, 20, 80, 7, 80):
            inputs.keep([torch.full((size,), 1.0), torch.full((2, size), 2.0)])
            inputs.clear()
            self.assertLessEqual(inputs.buffers.count, 2)

    def test_a_shared_tensor_is_stored_once_unless_it_changes(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        mask, x = torch.ones(3), torch.zeros(3)
        calls = [inputs.keep([x, mask]), inputs.keep([x + 1, mask])]
        self.assertEqual(inputs.buffers.count, 3)
        mask.add_(1)
        calls.append(inputs.keep([mask, mask]))
        self.assertEqual(inputs.buffers.count, 4)
        found = [[t.tolist() for t in inputs.bring(call, [])] for call in reversed(calls)]
        self.assertEqual(found, [[[2.0] * 3] * 2, [[1.0] * 3, [1.0] * 3], [[0.0] * 3, [1.0] * 3]])

    def test_values_are_those_of_the_call(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        x = torch.arange(24.0).view(4, 6)
        views = [x.t(), x[:, 1:5:2], x[1], x.to(torch.bool), x.double().to(torch.complex64)]
        call = inputs.keep(views)
        wanted = [v.clone() for v in views]
        x.zero_()
        for found, value, view in zip(inputs.bring(call, []), wanted, views):
            self.assertTrue(torch.equal(found, value))
            self.assertEqual(found.stride(), view.stride())

    def test_small_and_expanded_tensors_and_parameters_stay(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        expanded, parameter = torch.ones(1).expand(5), nn.Parameter(torch.ones(5))
        with mock.patch.object(_inputs, "_SMALL", 8):
            call = inputs.keep([torch.ones(1), expanded, torch.ones(5), parameter])
        tensors = [torch.ones(1), expanded, None, parameter]
        stayed = inputs.stay(call, tensors)
        self.assertEqual(len(stayed), 3)
        self.assertIs(inputs.bring(call, stayed)[1], expanded)

    def test_the_call_before_comes_back_ahead(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        calls = [inputs.keep([torch.full((3,), float(i))]) for i in range(3)]
        kept = [inputs._calls[i][0] for i in calls]
        inputs.bring(2, [])
        self.assertEqual([one.tensor is not None for one in kept], [False, True, False])
        inputs.bring(1, [])
        self.assertEqual([one.tensor is not None for one in kept], [True, False, False])

    def test_a_pass_that_fails_gives_its_buffers_back(self):
        module = blocks.make(blocks.Mlp)
        here = in_host_memory(module)
        here.backward(0)
        count = here.units.inputs.buffers.count
        head = module.head.forward

        def fail(x):
            raise RuntimeError("enough")

        module.head.forward = fail
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "enough"):
                here.backward(1)
        module.head.forward = head
        here.backward(2)
        self.assertEqual(here.units.inputs.buffers.count, count)

    def test_a_pass_without_gradients_keeps_nothing(self):
        module = blocks.make(blocks.Mlp)
        here = in_host_memory(module)
        with here.units.passing(False), torch.no_grad():
            module.loss(0)
        self.assertEqual(here.units.inputs.buffers.count, 0)

    def test_a_graph_may_be_used_twice(self):
        module = blocks.make(blocks.Mlp)
        here = in_host_memory(module)
        here.ring.wants_gradients = True
        with here.units.passing(True):
            loss = module.loss(0)
            loss.backward(retain_graph=True)
            first = [g.clone() for g in here.ring.grads]
            loss.backward()
        for one, both in zip(first, here.ring.grads):
            self.assertTrue(torch.equal(2 * one, both) or (one == 0).all())


if __name__ == "__main__":
    unittest.main()
