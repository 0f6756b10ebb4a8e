"""Loops over torch parameters: against torch's own optimizer, in every type, and all that can go wrong."""

from __future__ import annotations

import gc
import unittest
import weakref

import hybrid_train as ht
import hybrid_train._in_turn
from support import InFolder, needs_torch

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

PLAIN = dict(predictor="none", schedule="constant", lr_warmup_steps=0, grad_clip=0, device="cpu")


def make(dtype=None, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 1))
    return module.to(dtype or torch.float32)


def batch_of(number, size=16):
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(number))
    return x, (x.sum(1, keepdim=True) / 3).tanh()


def loss_of(module, number, size=16):
    x, y = batch_of(number, size)
    dtype = next(module.parameters()).dtype
    return (module(x.to(dtype)) - y.to(dtype)).square().mean()


def bits(module):
    return b"".join(p.detach().view(torch.uint8).numpy().tobytes() for p in module.parameters())


@needs_torch
class Learning(InFolder):
    def test_a_loop_shows_its_savings_and_has_a_short_repr(self):
        module = make()
        with ht.Loop(module.named_parameters(), steps=3, lr=3e-3, optim_place="pinned", **PLAIN) as loop:
            loop.step(lambda batch: loss_of(module, batch))
            self.assertRegex(repr(loop), r"^hybrid_train.Loop\(adamw, 6 parameters, full, step 1 of 3, .* planned")
            savings = {one.name: one for one in loop.savings()}
        self.assertTrue(any(one.is_on and one.key == "optim_place" for one in savings.values()), savings)
        self.assertEqual(repr(loop), "hybrid_train.Loop(adamw, 6 parameters, closed)")

    def test_losses_are_those_of_torchs_adamw(self):
        module, losses = make(), []
        with ht.Loop(module.named_parameters(), steps=100, lr=3e-3, weight_decay=0.1, **PLAIN) as loop:
            while not loop.is_over:
                losses.append(loop.step(lambda batch: loss_of(module, batch)).loss)
        theirs, expected = make(), []
        groups = [
            {"params": [p for p in theirs.parameters() if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in theirs.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
        for number in range(100):
            optimizer.zero_grad()
            loss = loss_of(theirs, number)
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        self.assertEqual(len(losses), 100)
        self.assertLess(max(abs(a - b) for a, b in zip(losses, expected)), 1e-5)
        self.assertLess(losses[-1], 0.7 * losses[0])
        for a, b in zip(module.parameters(), theirs.parameters()):
            self.assertLess((a - b).abs().max().item(), 1e-4)

    def test_groups_as_torchs_optimizers_take_them(self):
        def train(groups):
            module = make()
            with ht.Loop(groups(module), steps=20, lr=3e-3, weight_decay=0.1, **PLAIN) as loop:
                loop.run(lambda batch: loss_of(module, batch))
            return module

        still = train(lambda m: [{"params": m[0].parameters(), "lr_scale": 0}, {"params": m[3].named_parameters()}])
        begun = make()
        self.assertTrue(torch.equal(still[0].weight, begun[0].weight))
        self.assertFalse(torch.equal(still[3].weight, begun[3].weight))
        decays = train(lambda m: [{"params": m.parameters(), "weight_decay": 0.9}])
        plain = train(lambda m: [{"params": m.parameters(), "weight_decay": 0}])
        self.assertLess(decays[1].weight.norm(), plain[1].weight.norm())
        by_name = train(lambda m: m.named_parameters())
        self.assertEqual(bits(by_name), bits(train(lambda m: m)))
        self.assertEqual(bits(by_name), bits(train(lambda m: m.parameters())))
        self.assertEqual(bits(by_name), bits(train(lambda m: dict(m.named_parameters()))))

    def test_frozen_and_tied_parameters(self):
        module = make()
        module[0].weight.requires_grad_(False)
        with ht.Loop([*module.parameters(), *module.parameters()], steps=5, lr=0.01, **PLAIN) as loop:
            loop.run(lambda batch: loss_of(module, batch))
            self.assertEqual(loop.summary().parameters, sum(p.numel() for p in module.parameters() if p.requires_grad))
        self.assertTrue(torch.equal(module[0].weight, make()[0].weight))
        head = nn.Linear(4, 4, bias=False)
        body = nn.Linear(4, 4, bias=False)
        head.weight = body.weight
        with ht.Loop([("a", body.weight), ("b", head.weight)], steps=3, lr=0.01, **PLAIN) as loop:
            loop.run(lambda batch: head(body(torch.ones(2, 4))).square().mean())
            self.assertEqual(loop.summary().parameters, 16)

    def test_16_bit_parameters(self):
        for dtype in (torch.bfloat16, torch.float16):
            module, scales = make(dtype), set()
            with ht.Loop(module.parameters(), steps=300, lr=5e-3, device="cpu") as loop:
                scales.add(loop.question.loss_scale)
                loop.run(lambda batch: loss_of(module, batch).float())
                self.assertEqual(loop.plan()["phases"]["full"]["classes"]["master"]["dtype"], "fp32")
            losses = [loss_of(module, 10**6 + i).item() for i in range(20)]
            self.assertLess(sum(losses) / 20, 0.05, dtype)
            self.assertEqual(scales == {1.0}, dtype == torch.bfloat16)
            self.assertTrue(all(p.dtype == dtype for p in module.parameters()))

    def test_prediction_evaluation_and_forks(self):
        module, evaluated = make(), []

        def held_out():
            self.assertFalse(torch.is_grad_enabled())
            evaluated.append(loss_of(module, 10**9, 1000))
            return evaluated[-1]

        def loss(batch):
            asked.append((batch, torch.is_grad_enabled()))
            return loss_of(module, batch)

        asked = []
        keys = dict(predictor="outer", regime="fine-tuning", fork_budget=0.5, device="cpu", eval_every=100)
        with ht.Loop(module, steps=300, lr=5e-3, evaluate=held_out, can_rewind=True, **keys) as loop:
            summary = loop.run(loss)
        self.assertGreater(summary.forks, 0)
        self.assertGreater(len(asked), len(set(asked)))  # some were asked for again
        self.assertGreater(sum(not with_gradients for _, with_gradients in asked), 0)
        self.assertAlmostEqual(summary.val_loss, evaluated[-1].item(), 6)
        self.assertLess(summary.val_loss, evaluated[0].item())

    def test_question_by_question(self):
        module, other = make(), make()
        with ht.Loop(module.parameters(), steps=100, lr=5e-3, device="cpu") as loop:
            for step in loop:
                if step.todo == "gradients":
                    module.zero_grad()
                    loss = loss_of(module, step.batch)
                    (loss * step.loss_scale).backward()
                else:
                    with torch.no_grad():
                        loss = loss_of(module, step.batch)
                loop.answer(loss)
        with ht.Loop(other.parameters(), steps=100, lr=5e-3, device="cpu") as loop:
            loop.run(lambda batch: loss_of(other, batch))
        self.assertEqual(bits(module), bits(other))

    def test_micro_batches_weigh_by_their_tokens(self):
        def size(batch):
            return 4 + batch % 3

        def train(**more):
            module = make()
            with ht.Loop(module, steps=20, lr=3e-3, grad_accum_steps=4, **PLAIN, **more) as loop:
                losses = []
                while not loop.is_over:
                    info = loop.step(lambda batch: (loss_of(module, batch, size(batch)), size(batch)))
                    losses.append(info.loss)
                self.assertEqual(info.tokens, sum(map(size, range(80))))
            return module, losses

        def by_hand():
            module, losses = make(), []
            with ht.Loop(module, steps=20, lr=3e-3, grad_accum_steps=4, **PLAIN) as loop:
                for step in loop:
                    module.zero_grad()
                    weight = sum(map(size, step.batches))
                    parts = [loss_of(module, b, size(b)) * size(b) / weight for b in step.batches]
                    sum(parts).backward()
                    loop.answer(sum(parts), weight)
                    losses.append(loop.last.loss)
            return module, losses

        (a, first), (b, second), (c, third) = train(), train(sum_gradients=True), by_hand()
        for x, y in ((a, b), (a, c)):
            for p, q in zip(x.parameters(), y.parameters()):
                self.assertLess((p - q).abs().max().item(), 1e-4)
        self.assertLess(max(abs(x - y) for x, y in zip(first, third)), 1e-5)
        self.assertLess(max(abs(x - y) for x, y in zip(second, third)), 1e-5)

    def test_autocast_follows_the_phases(self):
        module, seen = make(), []

        def loss(batch):
            x, y = batch_of(batch)
            out = module(x)
            seen.append(out.dtype)
            return (out.float() - y).square().mean()

        keys = {**PLAIN, "precision_full": "bf16", "precision_warmup": "fp32", "lr_warmup_steps": 3}
        with ht.Loop(module, steps=8, lr=1e-3, autocast=True, **keys) as loop:
            self.assertEqual(loop.question.torch_dtype, torch.float32)
            loop.run(loss)
        self.assertEqual(seen[0], torch.float32)
        self.assertEqual(seen[-1], torch.bfloat16)

    def test_tensors_without_autograd(self):
        weights, grads = {"w": torch.zeros(3)}, {"w": torch.zeros(3)}

        def loss(batch):
            grads["w"].copy_(2 * (weights["w"] - 1) / 3)
            return (weights["w"] - 1).square().mean()

        with ht.Loop(weights, gradients=grads, steps=200, lr=0.05, device="cpu") as loop:
            loop.run(loss)
        self.assertLess((weights["w"] - 1).abs().max().item(), 0.05)

    def test_optimizer_state_in_pinned_memory_changes_no_bit(self):
        results = []
        for place in ("device", "pinned"):
            module = make()
            with ht.Loop(module, steps=60, lr=5e-3, optim_place=place, device="cpu") as loop:
                loop.run(lambda batch: loss_of(module, batch))
                live = loop.memory().classes["optim"].live
            self.assertGreater(live[place], 0)
            results.append(bits(module))
        self.assertEqual(*results)


@needs_torch
class InTurn(InFolder):
    """Updates that wait until the forward pass comes to a parameter."""

    def setUp(self):
        super().setUp()
        self.used = []
        real = hybrid_train._in_turn.lib

        class Counting:
            def __getattr__(lib, name):
                return getattr(real, name)

            def hy_loop_use(lib, handle, parameter):
                self.used.append(parameter)
                return real.hy_loop_use(handle, parameter)

        hybrid_train._in_turn.lib = Counting()
        self.addCleanup(setattr, hybrid_train._in_turn, "lib", real)

    def module(self):
        torch.manual_seed(0)
        size = 1200  # so that the parameters travel in several parts
        return nn.Sequential(nn.Linear(8, size), *(nn.Linear(size, size) for _ in range(4)), nn.Linear(size, 1))

    def train(self, in_turn, run=None, **more):
        module = self.module()
        keys = {"optim_place": "pinned", "max_gpu_mem": "500MiB", "device": "cpu", "lr_warmup_steps": 2, **more}
        with ht.Loop(module, steps=12, lr=1e-3, in_turn=in_turn and in_turn(module), **keys) as loop:
            if run is None:
                loop.run(lambda batch: loss_of(module, batch))
            else:
                run(loop, module)
        return bits(module)

    def test_it_changes_no_bit(self):
        for more in ({"predictor": "none"}, {"predictor": "outer", "predict_from": 0, "full_steps": 3}, {"grad_accum_steps": 2}):
            expected = self.train(None, **more)
            self.assertEqual(self.used, [])
            self.assertEqual(self.train(lambda m: list(m)[1:], **more), expected)
            self.assertEqual(self.used[:7], [1, 3, 5, 7, 9, 11, -1])
            self.used.clear()

    def test_parameters_of_no_module_that_was_named_are_asked_for_first(self):
        expected = self.train(None)
        self.assertEqual(self.train(lambda m: [m[1], m[2]]), expected)
        self.assertEqual(self.used[:4], [11, 3, 5, -1])

    def test_manual_questions_find_the_right_weights(self):
        def by_hand(loop, module):
            for step in loop:
                module.zero_grad(set_to_none=False)
                loss = loss_of(module, step.batch)
                if step.todo == "gradients":
                    loss.backward()
                loop.answer(loss)

        self.assertEqual(self.train(lambda m: list(m)[1:], by_hand), self.train(None))

    def test_a_loss_function_that_raises_in_between(self):
        def stumbling(loop, module):
            while not loop.is_over:
                with self.assertRaises(KeyError):
                    loop.step(lambda batch: self.half(module, batch))
                loop.step(lambda batch: loss_of(module, batch))

        self.assertEqual(self.train(lambda m: list(m)[1:], stumbling), self.train(None))

    def half(self, module, batch):
        module[:3](batch_of(batch)[0])
        raise KeyError("mine")

    def test_hooks_go_with_the_loop(self):
        module = self.module()
        loop = ht.Loop(module, steps=3, lr=1e-3, in_turn=list(module), **PLAIN)
        self.assertEqual(len(module[0]._forward_pre_hooks), 1)
        loop.close()
        self.assertEqual(len(module[0]._forward_pre_hooks), 0)
        with self.assertRaisesRegex(ht.InputError, "overwrite"):
            (self.folder / "run").mkdir()
            (self.folder / "run" / "metrics.jsonl").write_text("{}\n")
            ht.Loop(module, steps=3, lr=1e-3, in_turn=list(module), out="run", **PLAIN)
        self.assertEqual(len(module[0]._forward_pre_hooks), 0)
        with self.assertRaisesRegex(ht.InputError, "in_turn has a str"):
            ht.Loop(module, steps=3, lr=1e-3, in_turn=["0"], **PLAIN)


@needs_torch
class WrongUse(InFolder):
    def refused(self, words, parameters, **more):
        with self.assertRaisesRegex(ht.InputError, words):
            ht.Loop(parameters, **{"steps": 3, "lr": 0.1, "device": "cpu", **more})

    def test_tensors_that_cannot_be_parameters(self):
        module = make()
        self.refused("'params'", [{"lr_scale": 1}])
        self.refused("lr_scale is a factor", [{"params": module.parameters(), "lr": 1}])
        self.refused("no parameter to train", [])
        self.refused("all are frozen", make().requires_grad_(False))
        self.refused(
            "b has type fp16, but a has fp32",
            [("a", nn.Parameter(torch.ones(2))), ("b", nn.Parameter(torch.ones(2).half()))],
        )
        self.refused("has type torch.float64", nn.Linear(2, 2).double())
        self.refused("not contiguous", [nn.Parameter(torch.ones(2, 4).t())])
        self.refused("is on meta", nn.Linear(2, 2, device="meta").parameters())
        self.refused("not a leaf", [torch.ones(2, requires_grad=True) * 2])
        self.refused("torch.sparse_coo", [torch.eye(2).to_sparse().requires_grad_()])
        both = torch.zeros(4)
        self.refused("share memory", [nn.Parameter(both[:3]), nn.Parameter(both[2:])])
        self.refused("parameter p0 is a str", ["text"])
        self.refused("device is cuda.*blocks=True", module, device="cuda")

    def after_a_step(self, change, words, in_loss=None):
        module = make()
        with ht.Loop(module.named_parameters(), steps=50, lr=0.01, **PLAIN) as loop:
            loop.step(lambda batch: loss_of(module, batch))
            change(module)
            with self.assertRaisesRegex(ht.InputError, words):
                for _ in range(3):
                    loop.step(in_loss or (lambda batch: loss_of(module, batch)))

    def test_weights_that_move(self):
        def moved(module):
            module[0].weight.data = module[0].weight.data.clone()

        self.after_a_step(moved, "memory of parameter 0.weight has moved")
        self.after_a_step(lambda m: m.to(torch.bfloat16), "type of parameter 0.weight is torch.bfloat16")

        def reshaped(module):
            module[3].weight.data = torch.zeros(2, 32)

        self.after_a_step(reshaped, "shape of parameter 3.weight is \\(2, 32\\)")
        module = make()
        with ht.Loop(module, steps=50, lr=0.01, **PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "has moved"):
                for _ in range(40):
                    module[0].bias.data = module[0].bias.data.clone()
                    gc.collect()
                    loop.step(lambda batch: loss_of(module, batch))

    def test_one_weight_of_many_that_moves_is_found_soon(self):
        many = [nn.Parameter(torch.ones(100)) for _ in range(100)]
        with ht.Loop(many, steps=50, lr=0.01, **PLAIN) as loop:
            loop.step(lambda batch: sum(p.square().mean() for p in many))
            many[70].data = many[70].data.clone()
            gc.collect()
            with self.assertRaisesRegex(ht.InputError, "memory of parameter p70 has moved"):
                for _ in range(100 // 16 + 1):
                    loop.step(lambda batch: sum(p.square().mean() for p in many))

    def test_gradients_that_are_missing(self):
        module = make()
        unused = nn.Linear(2, 2)
        with ht.Loop([*module.named_parameters(), ("unused", unused.weight)], steps=5, lr=0.01, **PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "parameter unused has no gradient"):
                loop.step(lambda batch: loss_of(module, batch))
            self.assertEqual(loop.step(lambda b: loss_of(module, b) + 0 * unused.weight.sum()).step, 1)
        with ht.Loop(module, steps=5, lr=0.01, **PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "0.weight has no gradient"):
                for _ in loop:
                    module.zero_grad()
                    loop.answer(1.0)

    def answered(self, words, change):
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        with ht.Loop(module, steps=9, lr=0.01, **PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, words):
                for step in loop:
                    module.zero_grad()
                    loss = loss_of(module, step.batch)
                    loss.backward()
                    if step.step == 2:
                        change(module[0].weight)
                    loop.answer(loss)
            self.assertEqual(loop.last.step, 2)

    def test_gradients_that_cannot_be_read(self):
        def transposed(p):
            p.grad = p.grad.t()

        def expanded(p):
            p.grad = torch.ones(()).expand(8, 8)

        def sparse(p):
            p.grad = torch.eye(8).to_sparse()

        def of_one(p):
            p.grad.data = torch.zeros(1)

        self.answered("gradient of parameter 0.weight is not contiguous", transposed)
        self.answered("gradient of parameter 0.weight is not contiguous", expanded)
        self.answered("gradient of parameter 0.weight is a tensor of layout", sparse)
        self.answered("gradient of parameter 0.weight has shape \\(1,\\)", of_one)

    def test_losses(self):
        module = make()
        with ht.Loop(module, steps=9, lr=0.01, **PLAIN) as loop:
            for wrong, words in (
                (lambda batch: module(batch_of(batch)[0]), "shape \\(16, 1\\)"),
                (lambda batch: 1.0, "returned a float"),
                (lambda batch: loss_of(module, batch).detach(), "does not depend"),
                (lambda batch: None, "returned a NoneType"),
            ):
                with self.assertRaisesRegex(ht.InputError, words):
                    loop.step(wrong)
            with self.assertRaisesRegex(ht.InputError, "shape \\(3,\\)"):
                for _ in loop:
                    module.zero_grad()
                    loss_of(module, 0).backward()
                    loop.answer(torch.zeros(3))
            self.assertEqual(loop.step(lambda batch: loss_of(module, batch)).step, 1)
            self.assertTrue(loop.step(lambda batch: loss_of(module, batch) * float("nan")).was_skipped)
            self.assertEqual(loop.step(lambda batch: loss_of(module, batch)).step, 3)

    def test_a_module_that_is_forgotten_stays_while_the_loop_lives(self):
        module = make()
        weight = weakref.ref(module[0].weight)
        loop = ht.Loop(module.parameters(), steps=9, lr=0.01, **PLAIN)
        del module
        gc.collect()
        self.assertIsNotNone(weight())
        loop.close()
        del loop
        gc.collect()
        self.assertIsNone(weight())

    def test_the_gradients_of_a_step_are_let_go(self):
        module = make()
        with ht.Loop(module, steps=9, lr=0.01, **PLAIN) as loop:
            loop.step(lambda batch: loss_of(module, batch))
            alive = []

            def loss(batch):
                alive.append([p.grad for p in module.parameters()])
                return loss_of(module, batch)

            loop.step(loss)
        self.assertEqual(alive, [[None] * 6])


if __name__ == "__main__":
    unittest.main()
