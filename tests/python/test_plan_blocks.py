"""Inputs of blocks in host memory, and plans that know torch's part of the card. Both without a card."""

from __future__ import annotations

import tempfile
import unittest
import weakref
from unittest import mock

import hybrid_train as ht
from support import needs_torch

try:
    import blocks
    import torch
    from hybrid_train import _card, _inputs
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
        for size in (1000, 4000, 2000, 8000, 700, 8000):
            inputs.keep([torch.full((size,), 1.0), torch.full((2, size), 2.0)], "layer")
            inputs.clear()
            self.assertLessEqual(inputs.buffers.count, 2)

    def test_pinned_memory_is_cut_into_buffers_with_little_waste(self):
        taken = []

        def memory(size, is_pinned):
            taken.append(1 << (size - 1).bit_length())  # as torch does
            return torch.empty(size, dtype=torch.uint8)

        for size in (4096, 5000, 1_100_000, 33_554_433):
            taken.clear()
            with mock.patch.object(_inputs, "_memory", memory):
                buffers = _inputs._Buffers(True)
                ours = [buffers.take(size) for _ in range(8)]
            self.assertEqual(len({one.data_ptr() for one in ours}), 8)
            self.assertLessEqual(sum(taken), 2 * 8 * size)
            self.assertLessEqual(buffers.count * size, sum(taken))
            self.assertLess(sum(taken) - buffers.count * size, sum(taken) / 4)

    def test_a_shared_tensor_is_stored_once_unless_it_changes(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        mask, x = torch.ones(3), torch.zeros(3)
        calls = [inputs.keep([x, mask], "layer"), inputs.keep([x + 1, mask], "layer")]
        self.assertEqual(inputs.buffers.count, 3)
        inputs.keep([torch.zeros(3)], "layer")
        inputs.keep([torch.zeros(3)], "layer")
        mask.add_(1)  # its copy is complete
        calls.append(inputs.keep([mask, mask], "layer"))
        self.assertEqual(inputs.buffers.count, 6)
        found = [[t.tolist() for t in inputs.bring(call, [])] for call in reversed(calls)]
        self.assertEqual(found, [[[2.0] * 3] * 2, [[1.0] * 3, [1.0] * 3], [[0.0] * 3, [1.0] * 3]])

    def test_values_are_those_of_the_call(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        x = torch.arange(24.0).view(4, 6)
        views = [x.t(), x[:, 1:5:2], x[1], x.to(torch.bool), x.double().to(torch.complex64)]
        call = inputs.keep(views, "layer")
        wanted = [v.clone() for v in views]
        inputs._let_go(0)
        x.zero_()
        for found, value, view in zip(inputs.bring(call, []), wanted, views):
            self.assertTrue(torch.equal(found, value))
            self.assertEqual(found.stride(), view.stride())

    def test_an_input_that_changes_after_the_call_is_refused_by_name(self):
        class Adds(blocks.Mlp):
            def forward(self, x):
                x = self.body(x * self.scale)
                for layer in self.layers[:count]:
                    x += layer(x)
                return self.head(x)

        for count in (1, 2, 3):  # found in the backward pass, or in a later call
            here = in_host_memory(blocks.make(Adds))
            with self.assertRaisesRegex(ht.InputError, "block layers.0 was changed in place"):
                here.backward(0)

    def test_copied_tensors_are_freed_two_calls_later(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        storages = []
        for _ in range(5):
            x = torch.ones(300)
            storages.append(weakref.ref(x.untyped_storage()))
            inputs.keep([x], "layer")
            del x
        self.assertEqual([one() is not None for one in storages], [False] * 3 + [True] * 2)
        inputs.bring(4, [])
        self.assertEqual([one() is not None for one in storages], [False] * 5)

    def test_small_and_expanded_tensors_and_parameters_stay(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        expanded, parameter = torch.ones(1).expand(5), nn.Parameter(torch.ones(5))
        with mock.patch.object(_inputs, "_SMALL", 8):
            call = inputs.keep([torch.ones(1), expanded, torch.ones(5), parameter], "layer")
        tensors = [torch.ones(1), expanded, None, parameter]
        stayed = inputs.stay(call, tensors)
        self.assertEqual(len(stayed), 3)
        self.assertIs(inputs.bring(call, stayed)[1], expanded)

    def test_the_call_before_comes_back_ahead(self):
        inputs = _inputs.Inputs(torch.device("cpu"))
        calls = [inputs.keep([torch.full((3,), float(i))], "layer") for i in range(3)]
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


class PretendedMeter:
    """A card on which torch needs `bytes`."""

    bytes, held_bytes, restarts = 40 << 10, 0, 0

    def held(self):
        return self.held_bytes

    def restart(self):
        self.restarts += 1

    def peak(self):
        return self.bytes


CARD = dict(blocks.PLAIN, max_gpu_mem="128KiB", cpu_mem="1GiB", blocks=True, lr=3e-3) if torch else {}


@needs_torch
class TorchsPartOfTheCard(unittest.TestCase):
    def setUp(self):
        self.meter = PretendedMeter()
        patch = mock.patch.object(_card, "meter_for", lambda device: self.meter)
        patch.start()
        self.addCleanup(patch.stop)

    def loop(self, module, **keys):
        loop = ht.Loop(module, steps=blocks.STEPS, **{**CARD, **keys})
        self.addCleanup(loop.close)
        return loop

    def test_the_first_step_is_lean_and_the_next_has_a_plan_beside_torch(self):
        module = blocks.make(blocks.Mlp)
        losses, _ = blocks.trained(blocks.Mlp, blocks=True)
        loop = self.loop(module, activations_place="device")
        lean = loop.plan()
        self.assertIn("not known yet", str(lean))
        self.assertNotIn("caller_bytes", lean)
        found = [loop.step(module.loss).loss]
        plan = loop.plan()
        self.assertGreater(plan["vram_peak_bytes"] - plan["caller_bytes"], lean["vram_peak_bytes"])
        self.assertLessEqual(plan["vram_peak_bytes"], 128 << 10)
        self.assertEqual(plan["phases"]["full"]["classes"]["activations"]["bytes"], plan["caller_bytes"])
        self.assertIn("the caller's passes", str(plan))
        memory = loop.memory()
        self.assertEqual(memory.device.planned, plan["vram_peak_bytes"])
        self.assertLess(abs(memory.device.peak / memory.device.planned - 1), 0.05)
        while not loop.is_over:
            found.append(loop.step(module.loss).loss)
        self.assertEqual(found, losses)

    def test_a_plan_counts_what_torch_has_now(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module, activations_place="device")
        self.meter.held_bytes = 8 << 10
        plan_again = _card.lib.hy_loop_plan_again
        with mock.patch.object(_card.lib, "hy_loop_plan_again", side_effect=plan_again) as call:
            loop.step(module.loss)
        self.assertEqual([one.args[1:] for one in call.call_args_list], [(40 << 10, 8 << 10)])

    def test_a_step_that_needs_more_changes_the_plan_and_no_bit(self):
        module = blocks.make(blocks.Transformer)
        losses, state = blocks.trained(blocks.Transformer, blocks=True)
        found, plans = [], []
        with self.loop(module, activations_place="device", max_gpu_mem="256KiB") as loop:
            for i in range(blocks.STEPS):
                self.meter.bytes = (40 + 8 * i) << 10
                found.append(loop.step(module.loss).loss)
                plans.append(loop.plan()["vram_peak_bytes"] - loop.plan().get("caller_bytes", 0))
        self.assertEqual(found, losses)
        self.assertLess(plans[-2], plans[0])
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)

    def test_inputs_are_on_the_card_if_a_plan_fits_with_them(self):
        for card, place in (("256KiB", "device"), ("100KiB", "pinned")):
            with self.subTest(place), mock.patch.object(_inputs, "_SMALL", 0):
                module = blocks.make(blocks.Mlp)
                self.meter.bytes = 40 << 10
                loop = self.loop(module, max_gpu_mem=card)
                self.assertEqual(loop.plan()["choices"]["activations_place"], "pinned")
                loop._module.units.inputs.most_bytes = 50 << 10
                loop.step(module.loss)
                plan = loop.plan()
                self.assertEqual(plan["choices"]["activations_place"], place)
                need = (90 if place == "device" else 40) << 10
                self.assertEqual(plan["caller_bytes"], need + need // 32)
                loop.step(module.loss)

    def test_graphs_are_kept_in_memory_that_is_left(self):
        module = blocks.make(blocks.Mlp)
        losses, _ = blocks.trained(blocks.Mlp, blocks=True)
        loop = self.loop(module, max_gpu_mem="150KiB", activations_place="device")
        units, found, kept = loop._module.units, [], []
        while not loop.is_over:
            found.append(loop.step(module.loss).loss)
            kept.append(units.kept_graph_bytes)
            self.meter.bytes = (40 << 10) + kept[-1]  # as torch on a card
        self.assertEqual(found, losses)
        self.assertEqual(kept[0], 0)
        self.assertEqual(set(kept[1:]), {3 * 8 * 24 * 4})
        self.assertLessEqual(loop.plan()["vram_peak_bytes"], 150 << 10)

    def test_graphs_that_are_larger_than_expected_leave_before_weights(self):
        module = blocks.make(blocks.Mlp)
        losses, _ = blocks.trained(blocks.Mlp, blocks=True)
        loop = self.loop(module, max_gpu_mem="150KiB", activations_place="device")
        units, part = loop._module.units, loop._module.part
        found, kept = [loop.step(module.loss).loss], []
        ours, spare = part.library_bytes(), part._spare
        while not loop.is_over:
            begun = self.meter.restarts
            self.meter.bytes = 40 << 10
            found.append(loop.step(lambda batch: self.torch_needs(spare, units) or module.loss(batch)).loss)
            kept.append(units.kept_graph_bytes)
            if len(kept) == 1:
                self.assertEqual(self.meter.restarts, begun + 1)
            self.assertGreaterEqual(part.library_bytes(), ours)
        self.assertEqual(found, losses)
        self.assertEqual(kept[:2], [3 * 8 * 24 * 4, 2 * 8 * 24 * 4])
        self.assertGreater(kept[-1], 0)

    def torch_needs(self, spare, units):
        """Three graphs need more than the plan leaves, two a bit less."""
        count = units.kept_graph_bytes // (8 * 24 * 4)
        self.meter.bytes = (40 << 10) + (spare + 500 if count == 3 else 1000 * count)

    def test_a_recompute_that_does_not_fit_is_a_warning(self):
        said = []
        module = blocks.make(blocks.Mlp)
        self.meter.bytes = 500 << 10
        loop = self.loop(module, recompute="none", on_message=lambda level, text: said.append((level, text)))
        loop.step(module.loss)
        self.assertRegex(" ".join(text for level, text in said if level == "warning"), "without recompute=none")

    def test_kept_graphs_count_their_inputs_if_others_are_in_host_memory(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module, max_gpu_mem="150KiB", activations_place="pinned")
        for _ in range(2):
            loop.step(module.loss)
        self.assertEqual(loop._module.units.kept_graph_bytes, (3 + 6) * 8 * 24 * 4)

    def test_graphs_leave_before_inputs_if_they_do_not_fit(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module, max_gpu_mem="150KiB")
        for bytes_, has_graphs, place in ((40, True, "device"), (140, False, "device"), (141, False, "pinned")):
            self.meter.bytes = bytes_ << 10
            loop.step(module.loss)
            self.assertEqual(loop._module.units.graph_room > 0, has_graphs)
            self.assertEqual(loop.plan()["choices"]["activations_place"], place)

    def test_a_plan_without_memory_counts_torch(self):
        plan = ht.plan_parameters(blocks.make(blocks.Mlp), caller_bytes=32 << 10, **CARD)
        self.assertEqual(plan["caller_bytes"], 33 << 10)
        with self.assertRaisesRegex(ht.InputError, "with blocks"):
            ht.plan_parameters({"w": (3, 3)}, caller_bytes=1)

    def test_a_need_beyond_the_card_is_a_warning(self):
        said = []
        module = blocks.make(blocks.Mlp)
        self.meter.bytes = 500 << 10
        loop = self.loop(module, on_message=lambda level, text: said.append((level, text)))
        loop.step(module.loss)
        loop.step(module.loss)
        warnings = [text for level, text in said if level == "warning"]
        self.assertEqual(len(warnings), 1)
        self.assertRegex(warnings[0], "500 KiB.*max_gpu_mem is 128 KiB.*continues")

    def test_a_resumed_run_begins_with_the_measured_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            module = blocks.make(blocks.Mlp)
            with self.loop(module, out=folder, overwrite=True, activations_place="device") as loop:
                loop.step(module.loss)
                planned = loop.plan()["caller_bytes"]
            loop = self.loop(blocks.make(blocks.Mlp), out=folder, resume=True, activations_place="device")
            self.assertEqual(loop.plan()["caller_bytes"], planned)

    def test_out_of_memory_says_who_has_what_and_the_step_can_be_tried_again(self):
        module = blocks.make(blocks.Mlp)
        losses, _ = blocks.trained(blocks.Mlp, blocks=True)
        loop = self.loop(module)
        found = [loop.step(module.loss).loss]

        def fail(batch):
            raise torch.OutOfMemoryError("tried to allocate 9 GiB")

        with self.assertRaisesRegex(ht.MemoryError_, "step 2: the library had .* torch 40.0 KiB.*tried again.*9 GiB"):
            loop.step(fail)
        self.assertIn("not known yet", str(loop.plan()))
        restarts = self.meter.restarts
        while not loop.is_over:
            found.append(loop.step(module.loss).loss)
        self.assertEqual(found, losses)
        self.assertEqual(self.meter.restarts, restarts + 1)  # the peak of the pass that failed does not count

    def test_out_of_memory_in_the_middle_of_gradients_keeps_the_weights(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        loop.step(module.loss)
        before = loop.state_dict()

        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise torch.OutOfMemoryError("tried to allocate 9 GiB")

        enter = module.body.forward
        module.body.forward = lambda x: Failing.apply(enter(x))
        with self.assertRaisesRegex(ht.MemoryError_, "close the loop"):
            loop.step(module.loss)
        module.body.forward = enter
        loop.close()
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_activations_are_measured_in_the_first_step(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        with self.assertRaisesRegex(ht.StateError, "first step"):
            loop.estimate_activations()
        loop.step(module.loss)
        found = loop.estimate_activations()
        self.assertEqual(
            [(one.name, one.count, one.input_bytes) for one in found.blocks],
            [("body.0", 3, 8 * 24 * 4), ("layers.0", 3, 8 * 24 * 4)],
        )
        self.assertEqual(found.total, 6 * 8 * 24 * 4 + max(one.compute_bytes for one in found.blocks))
        self.assertEqual(found.blocks[0].compute_bytes, 8 * 24 * 4)  # tanh keeps its result

    def test_repr_is_short(self):
        module, said = blocks.make(blocks.Mlp), []
        loop = self.loop(module, on_step=lambda info: said.append(repr(loop)))
        self.assertRegex(
            repr(loop), r"^hybrid_train.Loop\(adamw, 15 parameters, full, step 0 of 22, .* planned on the device\)$"
        )
        loop.step(module.loss)
        self.assertIn("step", said[0])


if __name__ == "__main__":
    unittest.main()
