"""Modules with blocks, whose weights the library keeps: the same numbers as a loop over torch's own memory."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import unittest
import weakref
from unittest import mock

import hybrid_train as ht
from support import InFolder, has, needs_torch, needs_transformers

try:
    import blocks
    import torch
    from hybrid_train import _kept, _units
    from hybrid_train import loop as loop_module
    from torch import nn
except ImportError:
    torch = None

OUTSIDE = dict(weights_place="pinned", grads_place="pinned", optim_place="pinned")


def layers(block, count=2, width=8):
    """A class of modules with these blocks."""

    class Net(blocks.Regressor):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(24, width)
            self.layers = nn.ModuleList(block() for _ in range(count))
            self.head = nn.Linear(width, 1)

        def forward(self, x):
            x = self.enter(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Net


def gradients(module, batch=1):
    module.loss(batch).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@needs_torch
class Learning(unittest.TestCase):
    def test_losses_and_weights_are_those_of_a_loop_without_blocks(self):
        for kind in blocks.MODULES:
            with self.subTest(kind.__name__):
                losses, state = blocks.trained(kind)
                ours, kept = blocks.trained(kind, blocks=True)
                outside, pinned = blocks.trained(kind, blocks=True, **OUTSIDE)
                self.assertLess(max(abs(a - b) for a, b in zip(losses, ours)), 1e-6)
                self.assertEqual(ours, outside)
                self.assertEqual(list(state), list(kept))
                for name in state:
                    self.assertLess((state[name] - kept[name]).abs().max().item(), 1e-6, name)
                    self.assertTrue(torch.equal(kept[name], pinned[name]), name)

    def test_released_buffers_are_not_read(self):
        for kind in blocks.MODULES:
            with self.subTest(kind.__name__):
                losses, state = blocks.trained(kind)
                here = blocks.InRing(blocks.make(kind))
                self.assertLess(max(abs(a - b) for a, b in zip(losses, here.train())), 1e-6)
                for name, value in here.weights.state_dict().items():
                    self.assertLess((value - state[name]).abs().max().item(), 1e-6, name)
                self.assertGreater(here.ring.counts["given"], blocks.STEPS)

    def test_the_next_unit_is_fetched(self):
        here = blocks.InRing(blocks.make(blocks.Mlp))
        here.backward(0)
        here.ring.fetched.clear()
        here.backward(1)
        self.assertEqual(here.ring.fetched, [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1])

    def test_passes_without_gradients_do_not_change_how_the_next_step_runs(self):
        here = blocks.InRing(blocks.make(blocks.Mlp))
        here.backward(0)
        for _ in range(2):
            with here.units.passing(False), torch.no_grad():
                here.module.loss(0)
                here.ring.fetched.clear()
                here.module.loss(1)
        self.assertEqual(here.ring.fetched, [2, 3, 4, 5, 6])  # an evaluation has an order of its own
        here.ring.fetched.clear()
        here.backward(1)
        self.assertEqual(here.ring.fetched, [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1])
        module = blocks.make(blocks.Mlp)
        with ht.Loop(module, blocks=True, steps=9, lr=1e-3, recompute="none", **blocks.PLAIN) as loop:
            for _ in range(3):
                loop.step(module.loss)
                kept = loop._module.units.kept_graph_bytes
                with loop.using_weights():
                    module.loss(7)
                    module.loss(8)
            self.assertEqual(kept, 3 * 8 * 24 * 4)

    def test_a_block_may_read_the_question_in_any_thread(self):
        class Asks(nn.Linear):
            def forward(self, x):
                with concurrent.futures.ThreadPoolExecutor(1) as thread:  # as autograd's for a card
                    steps.append(thread.submit(lambda: loop.question.step).result())
                return super().forward(x)

        steps = []
        module = blocks.make(layers(lambda: Asks(8, 8)))
        with ht.Loop(module, blocks=True, steps=2, lr=1e-3, recompute="all", **blocks.PLAIN) as loop:
            loop.run(module.loss)
            self.assertEqual(steps, [0] * 4 + [1] * 4)
            with loop.using_weights():
                self.assertIsNone(loop.question)

    def test_a_pass_leaves_no_activations(self):
        """On a card they would be there until Python looks for unused objects, which a card does not make it do."""
        made = []

        class Block(nn.Linear):
            def forward(self, x):
                out = super().forward(x)
                made.append(weakref.ref(out.untyped_storage()))
                return out

        # With kept graphs, only the first micro-batch computes its two blocks twice.
        for recompute, runs in ("all", 2 * 2 * 2), ("none", 2 * 2 + 2):
            made.clear()
            module = layers(lambda: Block(8, 8))()
            keys = dict(blocks=True, grad_accum_steps=2, recompute=recompute, **blocks.PLAIN)
            gc.disable()
            try:
                with ht.Loop(module, steps=2, lr=1e-3, **keys) as loop:
                    loop.step(module.loss)
                    alive = sum(one() is not None for one in made)
            finally:
                gc.enable()
            self.assertEqual((len(made), alive), (runs, 0))

    def test_micro_batches_are_weighted_by_their_tokens(self):
        def train(**keys):
            module = blocks.make(blocks.Mlp)
            with ht.Loop(module, steps=5, lr=3e-3, grad_accum_steps=3, **blocks.PLAIN, **keys) as loop:
                loop.run(lambda batch: (module.loss(batch), 1 + batch % 3))
            return module.state_dict()

        plain, ours = train(), train(blocks=True)
        for name in plain:
            self.assertLess((plain[name] - ours[name]).abs().max().item(), 1e-6, name)

    def test_16_bits_autocast_and_evaluation(self):
        for dtype in (torch.bfloat16, torch.float16):
            module = blocks.make(blocks.Mlp).to(dtype)

            def loss(batch, module=module, dtype=dtype):
                x = torch.randn(8, 24, generator=torch.Generator().manual_seed(batch)).to(dtype)
                return (module(x).float() - x.float().sum(1, keepdim=True).tanh()).square().mean()

            with ht.Loop(module, blocks=True, steps=60, lr=3e-3, device="cpu", evaluate=lambda: loss(999)) as loop:
                first = loop.step(loss).loss
                self.assertLess(loop.run(loss).final_loss, first)
            self.assertEqual(module.head.weight.dtype, dtype)
        module = blocks.make(blocks.Mlp)
        with ht.Loop(module, blocks=True, steps=30, lr=3e-3, precision="bf16", autocast=True, device="cpu") as loop:
            first = loop.step(module.loss).loss
            self.assertLess(loop.run(module.loss).final_loss, first)

    def test_gradients_under_autocast_are_those_of_plain_torch(self):
        class Cast(blocks.Mlp):
            def loss(self, batch):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return super().loss(batch)

        expected = gradients(blocks.make(Cast))
        here = blocks.InRing(blocks.make(Cast))
        here.backward(1)
        for name, g in zip(here.names, here.ring.grads):
            self.assertLess((expected[name] - g).abs().max().item(), 1e-6, name)

    def test_question_by_question(self):
        module, losses = blocks.make(blocks.Mlp), []
        with ht.Loop(module, blocks=True, steps=blocks.STEPS, lr=3e-3, **blocks.PLAIN) as loop:
            for step in loop:
                loss = module.loss(step.batch)
                (loss * step.loss_scale).backward()
                loop.answer(loss)
                losses.append(loss.item())
        self.assertEqual(losses, blocks.trained(blocks.Mlp)[0])

    def test_inputs_of_blocks_may_be_kept_in_host_memory(self):
        plain, ours = (
            blocks.trained(blocks.Cnn)[0],
            blocks.trained(blocks.Cnn, blocks=True, activations_place="pinned")[0],
        )
        self.assertEqual(plain, ours)

    def test_activations_are_freed_at_once(self):
        here, kept = blocks.InRing(blocks.make(blocks.Mlp)), []
        for layer in here.module.layers:
            layer.register_forward_hook(lambda module, given, out: kept.append(weakref.ref(out)))
        gc.disable()
        self.addCleanup(gc.enable)
        for batch in range(2):
            here.backward(batch)
        self.assertEqual([one() for one in kept], [None] * 6)

    def test_results_in_the_memory_of_weights_are_copied(self):
        class Reads(nn.Linear):
            def forward(self, x):
                return super().forward(x), self.weight

        class Shows(blocks.Mlp):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Reads(24, 24) for _ in range(2))

            def forward(self, x):
                x, weight = self.layers[0](x)
                y, other = self.layers[1](x)
                return self.head(y) + (weight * other).sum()

        expected = gradients(blocks.make(Shows))
        here = blocks.InRing(blocks.make(Shows))
        here.backward(1)
        for name, g in zip(here.names, here.ring.grads):
            if name in expected:
                self.assertLess((expected[name] - g).abs().max().item(), 1e-5, name)

    def test_a_compiled_block(self):
        def compiled():
            module = blocks.Mlp()
            for layer in module.layers:
                layer.forward = torch.compile(layer.forward, backend="eager")
            return module

        self.assertEqual(blocks.trained(compiled, blocks=True)[0], blocks.trained(blocks.Mlp)[0])

        def in_place():
            module = blocks.Mlp()
            module.layers[0].compile(backend="eager")
            return module

        with self.assertRaisesRegex(ht.InputError, "layers.0 was compiled"):
            blocks.trained(in_place, blocks=True)
        with self.assertRaisesRegex(ht.InputError, "OptimizedModule"):
            blocks.trained(lambda: torch.compile(blocks.Mlp(), backend="eager"), blocks=True)

    def test_frozen_parameters_stay_as_they_are(self):
        module = blocks.make(blocks.Mlp)
        module.layers[1].requires_grad_(False)
        module.head.weight.requires_grad_(False)
        before = {name: t.clone() for name, t in module.state_dict().items()}
        with ht.Loop(module, blocks=True, steps=5, lr=3e-3, **blocks.PLAIN) as loop:
            loop.run(module.loss)
        for name, t in module.state_dict().items():
            is_frozen = name.startswith("layers.1.") or name == "head.weight"
            self.assertEqual(torch.equal(t, before[name]), is_frozen, name)


@needs_torch
class Units(unittest.TestCase):
    def names(self, module, which=True):
        from hybrid_train._blocks import find_units

        return [unit.name for unit in find_units(module, which)]

    def test_blocks_are_found(self):
        self.assertEqual(
            self.names(blocks.Mlp()), ["", *(f"body.{i}" for i in range(3)), *(f"layers.{i}" for i in range(3))]
        )
        self.assertEqual(self.names(blocks.Transformer()), ["", "embed", "layers.0", "layers.1", "layers.2"])
        self.assertEqual(self.names(blocks.Transformer(False))[-1], "head")
        self.assertEqual(self.names(blocks.EncoderDecoder())[1:], ["encoder.0", "encoder.1", "decoder.0", "decoder.1"])
        self.assertEqual(self.names(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)))[-1], "2")

    def test_blocks_can_be_named(self):
        module = blocks.Mlp()
        named = self.names(module, ["body", "layers.*"])
        self.assertEqual(named, ["", "body", "layers.0", "layers.1", "layers.2"])
        self.assertEqual(self.names(module, [module.layers[2], module.body])[1:3], ["layers.2", "body"])
        for which, said in (
            (["bodies"], "'bodies', which is no module"),
            ([nn.Linear(2, 2)], "a Linear, which is no module"),
            (["body", "body.0"], "one inside the other"),
        ):
            with self.assertRaisesRegex(ht.InputError, said):
                self.names(module, which)

    def test_wrapped_modules_are_refused_by_name(self):
        with self.assertRaisesRegex(ht.InputError, "DataParallel"):
            self.names(nn.DataParallel(blocks.Mlp()))

    def test_a_module_without_memory_is_planned(self):
        keys = dict(max_gpu_mem="200KiB", cpu_mem="1GiB", device="cpu", weights_place="pinned", predictor="none")
        with torch.device("meta"):
            plan = ht.plan_parameters(blocks.Transformer(), lr=1e-3, steps=9, **keys)
        self.assertEqual(plan["choices"]["weights_place"], "pinned")
        with ht.Loop(blocks.Transformer(), blocks=True, lr=1e-3, steps=9, **keys) as loop:
            made = loop.plan()["phases"]["full"]["classes"]
        for name in ("weights", "grads", "optim"):
            self.assertEqual(plan["phases"]["full"]["classes"][name], made[name])
        with self.assertRaisesRegex(ht.InputError, "blocks train in one process"):
            ht.plan_parameters(blocks.Mlp(), blocks=True, ranks=2, device="cpu")

    def test_several_processes_are_refused(self):
        ranks = dict(RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=1)
        with mock.patch.dict(os.environ, {name: str(value) for name, value in ranks.items()}):
            with self.assertRaisesRegex(ht.InputError, "torchrun started this one as rank 1 of 2; start one process"):
                ht.Loop(blocks.Mlp(), blocks=True, steps=1, lr=1e-3, device="cpu")

    def test_blocks_need_a_module(self):
        with self.assertRaisesRegex(ht.InputError, "blocks is for a torch module"):
            ht.Loop(blocks.Mlp().parameters(), blocks=True, steps=1, lr=1e-3, device="cpu")


@needs_torch
class Refusals(unittest.TestCase):
    def refused(self, block, said, error=None):
        here = blocks.InRing(blocks.make(layers(block)))
        with self.assertRaisesRegex(error or ht.InputError, said):
            here.backward(0)
        self.assertEqual(here.ring.held, {})

    def test_an_input_that_changes_in_place(self):
        self.refused(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)), "layers.0 changes tensor 0")

    def test_a_block_that_remembers(self):
        class Remembers(nn.Linear):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return super().forward(x) * self.calls

        self.refused(lambda: Remembers(8, 8), "layers.1 gave another result")

    def test_tensors_that_a_block_finds_elsewhere(self):
        outside = torch.ones(8, requires_grad=True)

        class Finds(nn.Linear):
            def forward(self, x):
                return super().forward(x) * outside

        self.refused(lambda: Finds(8, 8), "layers.1 uses a tensor with gradients that is none of its arguments")

    def test_objects_with_tensors(self):
        class Box:
            def __init__(self, x):
                self.x = x

        class Boxes(nn.Linear):
            def forward(self, x):
                return Box(super().forward(x))

        self.refused(lambda: Boxes(8, 8), "layers.0 returned a Box with tensors")

        class Opens(blocks.Mlp):
            def forward(self, x):
                return self.layers[0](Box(self.head(x)))

        here = blocks.InRing(blocks.make(Opens))
        with self.assertRaisesRegex(ht.InputError, "layers.0 was called with a Box"):
            here.backward(0)

    def test_sparse_gradients(self):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(50, 4, sparse=True)

            def loss(self, batch):
                return self.embed(torch.tensor([1, 2])).sum()

        here = blocks.InRing(Sparse())
        with self.assertRaisesRegex(ht.InputError, "embed.weight is sparse"):
            here.backward(0)

    def test_weights_that_are_used_outside_of_their_block(self):
        class Reads(blocks.Mlp):
            def forward(self, x):
                return super().forward(x @ self.layers[0].weight)

        here = blocks.InRing(blocks.make(Reads))
        with self.assertRaises(RuntimeError):
            here.backward(0)

    def test_a_module_that_is_called_outside_of_a_step(self):
        module = blocks.make(blocks.Mlp)
        loop = ht.Loop(module, blocks=True, steps=3, lr=1e-3, **blocks.PLAIN)
        with self.assertRaisesRegex(ht.StateError, "using_weights"):
            module.body(torch.randn(2, 24))
        with loop.using_weights():
            self.assertFalse(module(torch.randn(2, 24)).requires_grad)
        loop.run(module.loss)
        x = torch.randn(2, 24)
        with loop.using_weights():  # also after the run
            expected = module(x)
        loop.close()
        module(x).sum().backward()  # it has its weights again
        self.assertTrue(torch.equal(module(x), expected))

    def test_after_an_exception(self):
        def fail(batch):
            raise ZeroDivisionError

        def fail_late(batch):
            loss = module.loss(batch)
            loss.register_hook(lambda g: None)
            x = torch.ones(1, requires_grad=True) * 1
            x.register_hook(lambda g: 1 / 0)
            return loss + module.enter(x.expand(1, 24)).sum()

        module = blocks.make(layers(lambda: nn.Linear(8, 8)))
        loop = ht.Loop(module, blocks=True, steps=9, lr=1e-3, recompute="all", **blocks.PLAIN)
        with self.assertRaises(ZeroDivisionError):
            loop.step(fail)
        self.assertEqual(loop.step(module.loss).step, 1)  # nothing was lost
        with self.assertRaises(ZeroDivisionError):
            loop.step(fail_late)
        with self.assertRaisesRegex(ht.StateError, "a part of its gradients"):
            loop.step(module.loss)
        loop.close()
        module(torch.randn(2, 24))


@needs_torch
class Misuse(unittest.TestCase):
    """Mistakes that would give other gradients than those of the loss."""

    def test_a_tensor_that_leaves_a_block_besides_its_result(self):
        class Block(nn.Linear):
            def forward(self, x):
                y = super().forward(x)
                self.aux = self.of(y)
                return y.relu()

        def step(of):
            Block.of = staticmethod(of)
            module = layers(lambda: Block(8, 8))()
            with ht.Loop(module, blocks=True, steps=3, lr=1e-3, **blocks.PLAIN) as loop:
                loop.step(lambda batch: module.loss(batch) + sum(one.aux for one in module.layers))
                return loop.step(module.loss).step

        with self.assertRaisesRegex(ht.InputError, "layers.0 gives away a tensor"):
            step(lambda y: y.square().mean())
        self.assertEqual(step(lambda y: y.detach().square().mean()), 2)

    def loop(self, module, **keys):
        loop = ht.Loop(module, blocks=True, steps=9, lr=3e-3, **blocks.PLAIN, **keys)
        self.addCleanup(loop.close)
        return loop

    def test_autograd_grad_in_a_loss_function_is_refused(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)

        def penalized(batch):
            x = torch.randn(8, 24, requires_grad=True)
            (slope,) = torch.autograd.grad(module(x).sum(), x)
            return module.loss(batch) + slope.square().mean()

        with self.assertRaisesRegex(ht.StateError, r"torch.autograd.grad .* reached block layers.2"):
            loop.step(penalized)
        self.assertEqual(loop.step(module.loss).step, 1)  # nothing was added

    def test_gradients_are_not_lost_between_backward_and_answer(self):
        def using():
            with loop.using_weights():
                pass

        module = blocks.make(blocks.Mlp)
        loop, losses = self.loop(module), []
        for step in loop:
            using()
            loop.state_dict()  # both are allowed before a pass
            loss = module.loss(step.batch)
            loss.backward()
            for call in (using, loop.save, loop.state_dict, lambda: loop.save_pretrained("x"), lambda: loop.load("x")):
                with self.assertRaisesRegex(ht.StateError, "would lose the gradients"):
                    call()
            loop.answer(loss)
            losses.append(loss.item())
        self.assertEqual(losses, blocks.trained(blocks.Mlp, steps=9)[0])

    def test_a_failed_call_leaves_the_question_open(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        self.assertEqual(loop.question.todo, "gradients")
        with self.assertRaises(ht.FileError):
            loop.load("nowhere")
        with self.assertRaises(ZeroDivisionError), loop.using_weights():
            raise ZeroDivisionError
        loss = module.loss(0)
        loss.backward()
        loop.answer(loss)
        self.assertEqual(loop.last.step, 1)

    def test_a_backward_pass_that_failed_is_not_repeated(self):
        def fail(g):
            raise MemoryError

        for early in (False, True):  # whether gradients were computed before the exception
            with self.subTest(early=early):
                module = blocks.make(layers(lambda: nn.Linear(8, 8)))
                loop = self.loop(module)
                self.assertEqual(loop.question.todo, "gradients")
                x = torch.randn(4, 24, requires_grad=True)
                hooked = module.enter(x)
                hooked.register_hook(fail)
                loss = module.loss(0) if early else module.head(module.layers[0](hooked)).sum()
                if early:
                    loss.register_hook(fail)
                with self.assertRaises(MemoryError):
                    loss.backward()
                if early:
                    loss = module.loss(0)
                    loss.backward()
                    loop.answer(loss)
                    continue
                with self.assertRaisesRegex(ht.StateError, "a part of its gradients"):
                    module.loss(0)
                with self.assertRaisesRegex(ht.StateError, "a part of its gradients"):
                    loop.answer(1.0)

    def test_an_answer_that_was_refused_may_be_given_again(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        for step in loop:
            loss = module.loss(step.batch)
            loss.backward()
            with self.assertRaisesRegex(ht.InputError, "expected a scalar"):
                loop.answer(torch.ones(2))
            with self.assertRaisesRegex(ht.StateError, "a part of its gradients"):
                self.assertIsNone(loop.question)
            loop.answer(loss)
            break
        self.assertEqual(loop.last.step, 1)

    def test_a_graph_of_an_earlier_pass_is_refused(self):
        module, kept = blocks.make(blocks.Mlp), []
        loop = self.loop(module)

        def keeps(batch):
            kept.append(module.layers[2](torch.randn(8, 24)).sum())
            return module.loss(batch)

        loop.step(keeps)
        with self.assertRaisesRegex(ht.StateError, "block layers.2 with a loss of an earlier pass"):
            loop.step(lambda batch: module.loss(batch) + kept[0])

    def test_a_graph_from_before_a_step_is_refused_outside_of_blocks_too(self):
        kept = []

        def keeps(batch):
            kept.append((module.scale * module.scale).sum())
            return module.loss(batch)

        for keys in ({}, {"blocks": True}, {"blocks": True, "grad_accum_steps": 2}):
            with self.subTest(keys):
                module = blocks.make(blocks.Mlp)
                kept.clear()
                with ht.Loop(module, steps=9, lr=3e-3, **blocks.PLAIN, **keys) as loop:
                    loop.step(keeps)
                    with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                        loop.step(lambda batch: module.loss(batch) + kept[0])

    def test_another_stream_is_refused(self):
        def refuse():
            raise ht.StateError("another stream")

        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        loop._module.units.check_stream = refuse
        with self.assertRaisesRegex(ht.StateError, "another stream"):
            loop.step(module.loss)
        with self.assertRaisesRegex(ht.StateError, "another stream"):
            self.assertIsNone(loop.question)
        with self.assertRaisesRegex(ht.StateError, "another stream"):
            next(iter(loop))
        loop._module.units.check_stream = lambda: None
        for step in loop:
            loss = module.loss(step.batch)
            loss.backward()
            loop.answer(loss)
        self.assertEqual(loop.last.step, 9)

    def test_weights_that_were_first_used_in_inference_mode(self):
        module = blocks.make(blocks.Mlp)
        loop = self.loop(module)
        with torch.inference_mode(), loop.using_weights():
            module.loss(99)
        losses = [loop.step(module.loss).loss for _ in range(9)]
        self.assertEqual(losses, blocks.trained(blocks.Mlp, steps=9)[0])

    def test_buffers_that_are_replaced_change_once(self):
        class Counts(nn.Linear):
            def __init__(self):
                super().__init__(8, 8)
                self.register_buffer("calls", torch.zeros(1))
                self.register_buffer("last", None)

            def forward(self, x):
                self.calls = self.calls + 1
                self.last = torch.zeros(1) if self.last is None else self.last + 1
                return super().forward(x)

        here = blocks.InRing(blocks.make(layers(Counts)))
        for batch in range(3):
            here.backward(batch)
        for layer in here.module.layers:
            self.assertEqual((layer.calls.item(), layer.last.item()), (3, 2))
            self.assertFalse(layer.calls.requires_grad)

    def test_gradients_of_shared_parameters_are_copies(self):
        class Adds(nn.Linear):
            def forward(self, x):
                return x + self.bias

        class Shares(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Adds(96, 96) for _ in range(2))
                self.layers[1].bias = self.layers[0].bias

            def loss(self, batch):
                return self.layers[0](torch.arange(96.0) * self.layers[0].bias).sum()

        expected = gradients(blocks.make(Shares))
        here = blocks.InRing(blocks.make(Shares))
        here.backward(1)
        name = "layers.0.bias"
        self.assertTrue(torch.equal(expected[name], here.ring.grads[here.names.index(name)]))

    def test_a_block_is_refused_again(self):
        outside = torch.ones(8, requires_grad=True)

        class Finds(nn.Linear):
            def forward(self, x):
                return super().forward(x) * outside

        here = blocks.InRing(blocks.make(layers(lambda: Finds(8, 8))))
        for _ in range(2):
            with self.assertRaisesRegex(ht.InputError, "layers.1 uses a tensor"):
                here.backward(0)
            here.units.answered()  # as if nothing had been added

    def test_a_failure_of_the_library_is_reported_and_the_weights_come_back(self):
        """As after a read error: the library has released everything, and refuses further calls for units."""
        destroyed, is_broken = [], False

        def add(store, unit, tokens, addresses):
            nonlocal is_broken
            is_broken = True
            raise ht.FileError("disk error")

        def release(store, unit):
            real_release(store, unit)
            if is_broken:
                raise ht.StateError("after a unit could not be used")

        def destroy(handle):
            destroyed.append(handle)
            return real_destroy(handle)

        store, real_release = _units.LibraryStore, _units.LibraryStore.release
        real_destroy = loop_module.lib.hy_loop_destroy
        for is_stepped in (True, False):
            for recompute in ("all", "none"):
                with self.subTest(is_stepped=is_stepped, recompute=recompute):
                    module, is_broken = blocks.make(blocks.Mlp), False
                    loop = self.loop(module, recompute=recompute)
                    for _ in range(2):
                        loop.step(module.loss)
                    before = loop.state_dict()
                    failing = mock.patch.multiple(store, add_gradients=add, release=release)
                    with failing, mock.patch.object(loop_module.lib, "hy_loop_destroy", destroy):
                        with self.assertRaisesRegex(ht.FileError, "disk error"):
                            if is_stepped:
                                loop.step(module.loss)
                            self.assertEqual(loop.question.todo, "gradients")
                            module.loss(2).backward()
                        destroyed.clear()
                        loop.close()
                    self.assertEqual(len(destroyed), 1)
                    for name, value in module.state_dict().items():
                        self.assertTrue(torch.equal(value, before[name]), name)

    def test_another_default_type_changes_nothing(self):
        batches = [torch.randn(8, 24, generator=torch.Generator().manual_seed(i)) for i in range(3)]

        def loss(batch):
            return module(batches[batch]).square().mean()

        found = []
        for dtype in (torch.float32, torch.bfloat16):
            module = blocks.make(blocks.Mlp)
            torch.set_default_dtype(dtype)
            try:
                with ht.Loop(module, blocks=True, steps=3, lr=3e-3, **blocks.PLAIN) as loop:
                    found.append([loop.step(loss).loss for _ in range(3)])
            finally:
                torch.set_default_dtype(torch.float32)
        self.assertEqual(found[0], found[1])

    def test_a_loop_may_be_dropped_in_a_pass(self):
        module = blocks.make(blocks.Mlp)
        loop = ht.Loop(module, blocks=True, steps=9, lr=1e-3, **blocks.PLAIN)
        self.assertEqual(loop.question.todo, "gradients")
        self.assertTrue(any(p.numel() for p in module.parameters()))
        del loop
        gc.collect()
        for name, value in blocks.make(blocks.Mlp).state_dict().items():
            self.assertTrue(torch.equal(module.state_dict()[name], value), name)


@needs_torch
class Files(InFolder):
    def on_meta(self, kind):
        with torch.device("meta"):
            return kind()

    def test_a_module_on_the_meta_device_is_read_and_written(self):
        full = blocks.make(blocks.Transformer)
        with ht.Loop(full, blocks=True, steps=5, lr=3e-3, **blocks.PLAIN) as loop:
            loop.save_pretrained("begin")
            expected = [loop.step(full.loss).loss for _ in range(5)]
            loop.save_pretrained("end")
        module = self.on_meta(blocks.Transformer)
        with ht.Loop(module, steps=5, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.StateError, "position has no values.*loop.load"):
                loop.step(module.loss)
            loop.load("begin")
            self.assertEqual([loop.step(module.loss).loss for _ in range(5)], expected)
            loop.save_pretrained("again")
            self.assertEqual(set(loop.state_dict()), set(full.state_dict()))
        one, other = ((self.folder / name / "model.safetensors").read_bytes() for name in ("end", "again"))
        self.assertEqual(one, other)

    def test_names_must_match(self):
        small = blocks.make(blocks.Transformer)
        with ht.Loop(small, blocks=True, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            loop.save_pretrained("folder")
        for kind, said in (
            (blocks.Mlp, "folder has the tensor position, but the module has no"),
            (lambda: blocks.Transformer(False), "folder has no tensor head.weight"),
        ):
            with ht.Loop(self.on_meta(kind), steps=1, lr=3e-3, **blocks.PLAIN) as loop:
                with self.assertRaisesRegex(ht.InputError, said):
                    loop.load("folder")
        with ht.Loop(self.on_meta(blocks.Mlp), steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.FileError, "neither model.safetensors"):
                loop.load(".")

    def test_large_models_are_several_files(self):
        from hybrid_train import _weights

        was, _weights._SHARD = _weights._SHARD, 4000
        self.addCleanup(setattr, _weights, "_SHARD", was)
        module = blocks.make(blocks.Mlp)
        with ht.Loop(module, blocks=True, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            loop.save_pretrained("many")
            state = loop.state_dict()
            self.assertGreater(len(list((self.folder / "many").glob("model-*-of-*.safetensors"))), 3)
            loop.load("many")
            self.assertTrue(all(torch.equal(state[name], t) for name, t in loop.state_dict().items()))

    def test_other_files_of_the_folder_stay(self):
        module = blocks.make(blocks.Mlp)
        folder = self.folder / "mine"
        folder.mkdir()
        for name in ("model_old.safetensors", "model-ema.safetensors", "model-00001-of-00002.safetensors"):
            (folder / name).write_text("x")
        (folder / "model.safetensors.index.json").write_text("{}")
        with ht.Loop(module, blocks=True, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            loop.save_pretrained("mine")
        expected = ["model-ema.safetensors", "model.safetensors", "model_old.safetensors"]
        self.assertEqual(sorted(one.name for one in folder.iterdir()), expected)

    def test_buffers_without_a_type_in_safetensors_are_refused_by_name(self):
        module = blocks.make(blocks.Mlp)
        module.register_buffer("turns", torch.zeros(3, dtype=torch.complex64))
        with ht.Loop(module, blocks=True, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "turns has type torch.complex64"):
                loop.save_pretrained("mine")
        self.assertFalse((self.folder / "mine").exists())

    def test_buffers_and_random_numbers_continue(self):
        class Drops(blocks.Cnn):
            def loss(self, batch):
                x = torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(batch))
                x = self.stages(nn.functional.dropout(self.stem(x), 0.2))
                return self.head(x.mean((2, 3))).square().mean()

        def train(now, out=None, **keys):
            module, own = blocks.make(Drops), []
            states = dict(save_state=lambda: b"mine", load_state=own.append)
            keys = {**blocks.PLAIN, **keys, **states, "out": out, "resume": bool(out) or None}
            with ht.Loop(module, steps=9, lr=3e-3, **keys) as loop:
                while not loop.is_over and now > 0:
                    loop.step(module.loss)
                    now -= 1
            return module.state_dict(), own

        for keys in ({}, {"blocks": True}, {"blocks": True, **OUTSIDE}):
            with self.subTest(keys):
                expected, _ = train(9, **keys)
                out = f"run{len(keys)}"
                train(4, out, **keys)
                torch.manual_seed(77)
                state, own = train(9, out, **keys)
                self.assertEqual(own, [b"mine"])
                for name, t in expected.items():
                    self.assertTrue(torch.equal(t, state[name]), name)

    def test_a_resumed_run_keeps_its_buffers_when_files_are_read(self):
        class Partly(blocks.Cnn):
            """A checkpoint of a run does not contain its stem, which is frozen."""

            def __init__(self):
                super().__init__()
                self.stem.requires_grad_(False)

        def train(steps_now, module):
            with ht.Loop(module, blocks=True, steps=9, lr=3e-3, out="run", resume=True, **blocks.PLAIN) as loop:
                if (self.folder / "run").exists():
                    loop.load("first")
                for _ in range(steps_now):
                    loop.step(module.loss)
                return loop.state_dict()

        with ht.Loop(blocks.make(Partly), blocks=True, steps=9, lr=3e-3, **blocks.PLAIN) as loop:
            loop.save_pretrained("first")
        _, expected = blocks.trained(Partly, steps=9, blocks=True)
        train(4, blocks.make(Partly))
        train(2, blocks.make(Partly))
        ours = train(3, self.on_meta(Partly))
        for name, t in expected.items():
            self.assertTrue(torch.equal(t, ours[name]), name)

    def test_a_resumed_run_has_the_same_bits(self):
        def train(steps_now, kind):
            module = kind()
            with ht.Loop(module, blocks=True, steps=12, lr=3e-3, out="run", resume=True, **blocks.PLAIN) as loop:
                for _ in range(steps_now):
                    if not loop.is_over:
                        loop.step(module.loss)
                return loop.state_dict()

        train(5, lambda: blocks.make(blocks.Mlp))
        ours = train(99, lambda: self.on_meta(blocks.Mlp))  # the checkpoint has the weights
        _, expected = blocks.trained(blocks.Mlp, steps=12)
        for name, t in expected.items():
            self.assertTrue(torch.equal(t, ours[name]), name)


@needs_transformers
class Transformers(InFolder):
    SIZE = dict(vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2)

    def setUp(self):
        super().setUp()
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.theirs = transformers

    def make(self, config, device="cpu"):
        torch.manual_seed(0)
        with torch.device(device):
            return self.theirs.AutoModelForCausalLM.from_config(config)

    def llama(self, **more):
        return self.theirs.LlamaConfig(**self.SIZE, num_key_value_heads=1, **more)

    @staticmethod
    def loss(model, batch):
        torch.manual_seed(batch)
        ids = torch.randint(97, (3, 12)).cumsum(1) % 97
        return model(input_ids=ids, labels=ids.where(torch.rand(3, 12) > 0.1, -100)).loss

    def losses(self, model, steps=12, **keys):
        with ht.Loop(model.train(), steps=steps, lr=3e-3, **blocks.PLAIN, **keys) as loop:
            unused = () if keys else [p for p in model.parameters() if p.requires_grad]

            def loss(batch):
                return self.loss(model, batch) + 0 * sum(p.sum() for p in unused)

            return [loop.step(loss).loss for _ in range(steps)]

    def test_losses_of_models(self):
        theirs = self.theirs
        for config in (
            self.llama(attention_dropout=0.1),
            theirs.Qwen2Config(**self.SIZE, num_key_value_heads=1, tie_word_embeddings=True),
            theirs.Gemma2Config(**self.SIZE, num_key_value_heads=1, head_dim=8),  # its logits have a soft cap
            theirs.GPT2Config(vocab_size=97, n_embd=16, n_layer=3, n_head=2, n_positions=64),
        ):
            with self.subTest(config.model_type):
                plain = self.losses(self.make(config))
                ours = self.losses(self.make(config), blocks=True)
                self.assertLess(max(abs(a - b) for a, b in zip(plain, ours)), 2e-6)

    def test_logits_of_a_loss_do_not_exist(self):
        model = self.make(self.llama())
        with ht.Loop(model, blocks=True, steps=2, lr=3e-3, **blocks.PLAIN) as loop:
            ids = torch.arange(12)[None]
            with loop.using_weights():
                out = model(input_ids=ids, labels=ids)
                self.assertIsNone(out.logits)
                logits = model(input_ids=ids).logits
                expected = nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
                self.assertLess(abs(out.loss.item() - expected.item()), 2e-6)
                summed = model(input_ids=ids, labels=ids, num_items_in_batch=22).loss
                self.assertLess(abs(summed.item() - expected.item() / 2), 2e-6)
        self.assertEqual(model(input_ids=ids, labels=ids).logits.shape, (1, 12, 97))

    def test_sampling_with_a_cache(self):
        model = self.make(self.llama()).eval()
        ids = torch.arange(5)[None]
        expected = model.generate(ids, max_new_tokens=6, do_sample=False)
        with ht.Loop(model, blocks=True, steps=2, lr=3e-3, **blocks.PLAIN) as loop, loop.using_weights():
            self.assertTrue(torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), expected))

    def test_blocks_that_train_get_no_cache(self):
        for recompute in ("all", "none"):
            model, found = self.make(self.llama()), []
            forward = model.model.layers[1].forward

            def seen(*args, found=found, forward=forward, **kwargs):
                found.append(any(_kept.is_cache(x) for x in (*args, *kwargs.values())))
                return forward(*args, **kwargs)

            model.model.layers[1].forward = seen
            model.config.use_cache = True
            with ht.Loop(model, blocks=True, steps=3, lr=3e-3, recompute=recompute, **blocks.PLAIN) as loop:
                for _ in range(3):
                    loop.step(lambda batch, m=model: self.loss(m, batch))
            self.assertEqual(found[2:], [False] * len(found[2:]))
            self.assertIn(len(found), (4, 6))

    def test_a_model_on_the_meta_device(self):
        for config in (self.llama(), self.llama(tie_word_embeddings=True)):
            first = self.make(config)
            first.save_pretrained("first")
            expected = self.losses(first, steps=4, blocks=True)
            model = self.make(config, "meta")
            with ht.Loop(model, steps=4, lr=3e-3, **blocks.PLAIN) as loop:
                loop.load("first")
                ours = [loop.step(lambda batch, m=model: self.loss(m.train(), batch)).loss for _ in range(4)]
                loop.save_pretrained("last")
            self.assertEqual(ours, expected)
            last = self.theirs.AutoModelForCausalLM.from_pretrained("last")
            for name, t in first.state_dict().items():
                self.assertTrue(torch.equal(t, last.state_dict()[name]), name)

    def test_tensors_that_transformers_renames_are_refused(self):
        config = self.theirs.MixtralConfig(**self.SIZE, num_key_value_heads=1, num_local_experts=4)
        self.make(config).save_pretrained("folder")
        with ht.Loop(self.make(config, "meta"), steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, r"has the tensor model.layers.0.\S*experts.0.w1.weight"):
                loop.load("folder")

    @unittest.skipUnless(has("peft"), "peft is not here")
    def test_adapters_of_peft(self):
        import peft

        def make():
            torch.manual_seed(0)
            lora = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_dropout=0.1)
            return peft.get_peft_model(self.make(self.llama()), lora)

        plain, model = self.losses(make()), make()
        with ht.Loop(model.train(), blocks=True, steps=12, lr=3e-3, **blocks.PLAIN) as loop:
            ours = [loop.step(lambda batch: self.loss(model, batch)).loss for _ in range(12)]
            loop.save_pretrained("adapter")
        self.assertLess(max(abs(a - b) for a, b in zip(plain, ours)), 2e-6)
        again = peft.PeftModel.from_pretrained(self.make(self.llama()), "adapter")
        for name, t in again.state_dict().items():
            self.assertTrue(torch.equal(t, model.state_dict()[name]), name)

    @unittest.skipUnless(has("peft"), "peft is not here")
    def test_a_plan_leaves_adapters_and_random_numbers_as_they_are(self):
        import peft

        lora = peft.LoraConfig(r=2, target_modules=["q_proj"])
        model = peft.get_peft_model(self.make(self.llama(), "meta"), lora)
        before = torch.get_rng_state()
        ht.plan_parameters(model, **blocks.PLAIN)
        self.assertTrue(torch.equal(torch.get_rng_state(), before))
        self.assertTrue(all(p.is_meta for p in model.parameters()))

    @unittest.skipUnless(has("peft"), "peft is not here")
    def test_prompts_of_peft_need_a_base_model_in_memory(self):
        import peft

        self.make(self.llama()).save_pretrained("base")
        prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        model = peft.get_peft_model(self.make(self.llama(), "meta"), prompts)
        with ht.Loop(model, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "PromptTuningConfig.*before get_peft_model"):
                loop.load("base")


@needs_torch
class Chunks(unittest.TestCase):
    def test_loss_and_gradients_are_torchs(self):
        torch.manual_seed(0)
        hidden, weight = torch.randn(3, 7, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
        labels = torch.randint(30, (3, 7))
        labels[0, :4] = -100
        for reduction in ("mean", "sum"):
            for chunks in (None, 1, 2, 100):
                theirs = nn.functional.cross_entropy(
                    (hidden @ weight.t()).flatten(0, 1), labels.flatten(), reduction=reduction
                )
                ours = ht.chunked_cross_entropy(hidden, weight, labels, chunks=chunks, reduction=reduction)
                self.assertLess(abs(theirs.item() - ours.item()) / theirs.item(), 1e-6)
                expected = torch.autograd.grad(3 * theirs, (hidden, weight))
                for a, b in zip(expected, torch.autograd.grad(3 * ours, (hidden, weight))):
                    self.assertLess((a - b).abs().max().item(), 1e-5)
        with torch.no_grad():
            self.assertFalse(ht.chunked_cross_entropy(hidden, weight, labels).requires_grad)

    def test_without_labels_gradients_are_zero(self):
        hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
        loss = ht.chunked_cross_entropy(hidden, weight, torch.full((4,), -100))
        self.assertTrue(loss.isnan())
        for g in torch.autograd.grad(loss, (hidden, weight)):
            self.assertEqual(g.abs().max().item(), 0)

    def test_a_factor_is_not_rounded_to_16_bits(self):
        torch.manual_seed(0)
        hidden, weight = (torch.randn(n, 64).bfloat16().requires_grad_() for n in (32, 100))
        labels, factor = torch.randint(100, (32,)), 1 + 2**-9 + 2**-10  # between two numbers of bf16
        grads = []
        for scale in (1.0, factor):
            loss = ht.chunked_cross_entropy(hidden, weight, labels, reduction="sum")
            grads.append(torch.autograd.grad(loss * scale, (hidden, weight)))
        for plain, scaled in zip(*grads):
            self.assertTrue(torch.equal((plain.float() * factor).bfloat16(), scaled))

    def test_wrong_arguments_are_refused(self):
        hidden, weight, labels = torch.randn(4, 8), torch.randn(30, 8), torch.zeros(4, dtype=torch.long)
        for arguments, said in (
            ((hidden, weight, labels[:2]), r"labels \(2,\)"),
            ((hidden, weight, labels, 0), "chunks is 0"),
            ((hidden, weight, labels, None, -100, "none"), "reduction is 'none'"),
        ):
            with self.assertRaisesRegex(ht.InputError, said):
                ht.chunked_cross_entropy(*arguments)


if __name__ == "__main__":
    unittest.main()
