"""The optimizer for loops of others: against torch's AdamW, its state, and all that can go wrong."""

from __future__ import annotations

import copy
import io
import pickle
import unittest
import warnings
from unittest import mock

import hybrid_train as ht
from support import InFolder, has, needs_torch

if has("torch"):
    import torch
    from test_torch import bits, loss_of, make


def train(module, optimizer, first, end, scheduler=None):
    losses = []
    for number in range(first, end):
        optimizer.zero_grad()
        loss = loss_of(module, number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if scheduler is not None:
            scheduler.step()
    return losses


def make_wide(dtype, seed=0):
    """A module with matrices that are large enough for state in 8 bits."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.Tanh(), torch.nn.Linear(512, 16)).to(dtype)


def adamw(module, **keys):
    return torch.optim.AdamW(module.parameters(), foreach=False, fused=False, **keys)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@needs_torch
class AgainstTorch(InFolder):
    def assert_near(self, ours, theirs, most=1e-5):
        self.assertEqual(len(ours), len(theirs))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs)), most)

    def test_losses_are_those_of_torchs_adamw_under_a_scheduler(self):
        results = []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module = make()
            optimizer = kind(module.parameters(), lr=3e-3)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
            results.append(train(module, optimizer, 0, 50, scheduler))
        self.assert_near(*results)

    def test_each_group_has_its_own_rate_and_decay_also_one_added_later(self):
        results = []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module = make()
            first, rest = list(module.parameters())[:2], list(module.parameters())[2:]
            optimizer = kind([{"params": first, "lr": 1e-2, "weight_decay": 0.3}], lr=1e-3, weight_decay=0.0)
            losses = train(module, optimizer, 0, 10)
            optimizer.add_param_group({"params": rest, "lr": 2e-3})
            optimizer.param_groups[0]["lr"] = 5e-3
            optimizer.param_groups[1]["weight_decay"] = 0.1
            results.append(losses + train(module, optimizer, 10, 30))
        self.assert_near(*results)

    def test_a_parameter_without_a_gradient_is_skipped(self):
        results, steps = [], []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module = make()
            optimizer = kind(module.parameters(), lr=3e-3, weight_decay=0.2)
            losses = train(module, optimizer, 0, 5)
            kept = module[0].weight.detach().clone()
            module[0].requires_grad_(False)
            losses += train(module, optimizer, 5, 10)
            self.assertTrue(torch.equal(kept, module[0].weight))
            module[0].requires_grad_(True)
            results.append(losses + train(module, optimizer, 10, 20))
            steps.append([int(one["step"]) for one in optimizer.state_dict()["state"].values()])
        self.assert_near(*results)
        self.assertEqual(*steps)

    def test_a_parameter_may_be_unfrozen_during_training(self):
        results = []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module = make()
            module[0].requires_grad_(False)
            optimizer = kind(module.parameters(), lr=3e-3)
            losses = train(module, optimizer, 0, 5)
            module[0].requires_grad_(True)
            results.append(losses + train(module, optimizer, 5, 20))
        self.assert_near(*results)

    def test_closures_hooks_and_kept_gradients_work_as_in_torch(self):
        results, called = [], []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module, losses = make(), []
            optimizer = kind(module.parameters(), lr=3e-3)
            optimizer.register_step_post_hook(lambda *_: called.append(1))

            def closure():
                optimizer.zero_grad(set_to_none=False)
                loss = loss_of(module, len(losses))
                loss.backward()
                return loss

            for _ in range(10):
                losses.append(optimizer.step(closure).item())
            results.append(losses)
        self.assert_near(*results)
        self.assertEqual(len(called), 20)

    def test_weights_that_the_caller_changes_are_trained_on(self):
        for dtype in (torch.float32, torch.bfloat16):
            module = make(dtype)
            optimizer = ht.Optimizer(module.parameters(), lr=1e-5)
            train(module, optimizer, 0, 3)
            with torch.no_grad():
                module[0].weight.fill_(2.0)
            train(module, optimizer, 3, 4)
            self.assertLess((module[0].weight - 2.0).abs().max().item(), 0.01)

    def test_gradscaler_works(self):
        results = []
        for kind in (ht.Optimizer, torch.optim.AdamW):
            module, losses = make(), []
            optimizer, scaler = kind(module.parameters(), lr=3e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
            for number in range(10):
                optimizer.zero_grad()
                loss = loss_of(module, number)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
            results.append(losses)
        self.assert_near(*results)

    def test_the_other_optimizers_learn(self):
        for name, lr in (("lion", 1e-3), ("sgd", 0.05), ("muon", 1e-2), ("adafactor", 1e-2)):
            module = make()
            losses = train(module, ht.Optimizer(module.parameters(), lr=lr, optimizer=name), 0, 60)
            self.assertLess(sum(losses[-5:]), sum(losses[:5]), name)


@needs_torch
class State(InFolder):
    PLACES = (
        {},
        {"optim_place": "pinned"},
        {"optim_dtype": "8bit"},
        {"optim_dtype": "8bit", "optim_place": "pinned"},
        {"optimizer": "muon"},
        {"optimizer": "adafactor"},
        {"optimizer": "sgd", "momentum": 0.9},
    )

    def test_a_saved_and_loaded_state_gives_the_same_bits(self):
        for dtype in (torch.float32, torch.bfloat16):
            for keys in self.PLACES:
                with self.subTest(dtype=dtype, keys=keys):
                    whole, first = make_wide(dtype), make_wide(dtype)
                    train(whole, ht.Optimizer(whole.parameters(), lr=3e-3, **keys), 0, 20)
                    optimizer = ht.Optimizer(first.parameters(), lr=3e-3, **keys)
                    train(first, optimizer, 0, 10)
                    types = {one.dtype for one in optimizer.state_dict()["state"][0].values()}
                    self.assertEqual(torch.uint8 in types, "optim_dtype" in keys)
                    saved = through_a_file({"module": first.state_dict(), "optimizer": optimizer.state_dict()})
                    second = make_wide(dtype, seed=1)
                    second.load_state_dict(saved["module"])
                    again = ht.Optimizer(second.parameters(), lr=1.0, **keys)
                    again.load_state_dict(saved["optimizer"])
                    self.assertEqual(again.param_groups[0]["lr"], 3e-3)
                    self.assertEqual(again.state_dict()["steps"], 10)  # also before the first step
                    train(second, again, 10, 20)
                    self.assertEqual(bits(second), bits(whole))

    def test_places_change_no_bit(self):
        modules = [make() for _ in range(3)]
        for module, place in zip(modules, ("device", "pinned", "disk")):
            train(module, ht.Optimizer(module.parameters(), lr=3e-3, optim_place=place, offload_folder="."), 0, 10)
        self.assertEqual(bits(modules[0]), bits(modules[1]))
        self.assertEqual(bits(modules[0]), bits(modules[2]))

    def test_a_limit_of_memory_moves_the_state_and_changes_no_bit(self):
        """The parameter is divided into parts, which pass through the limit one after the other."""
        results = []
        for keys in ({}, {"max_gpu_mem": "130MiB"}):
            torch.manual_seed(0)
            module = torch.nn.Linear(5000, 4000, bias=False)
            optimizer = ht.Optimizer(module.parameters(), lr=1e-3, **keys)
            for number in range(4):
                optimizer.zero_grad()
                module(torch.full((1, 5000), 0.01 * (number + 1))).square().sum().backward()
                optimizer.step()
                if number == 1:
                    place = optimizer.loop.plan()["phases"]["full"]["classes"]["optim"]["place"]
                    self.assertEqual(place, "pinned" if keys else "device")
                    state = optimizer.state_dict()
                    optimizer = ht.Optimizer(module.parameters(), lr=1e-3, **keys)
                    optimizer.load_state_dict(state)
            results.append(bits(module))
        self.assertEqual(*results)

    def test_states_go_to_torch_and_come_from_torch(self):
        ours, theirs = make(), make()
        mine, other = ht.Optimizer(ours.parameters(), lr=3e-3), adamw(theirs, lr=3e-3)
        train(ours, mine, 0, 10)
        train(theirs, other, 0, 10)
        there, here = make(), make()
        there.load_state_dict(ours.state_dict())
        here.load_state_dict(theirs.state_dict())
        to_torch, from_torch = adamw(there, lr=1.0), ht.Optimizer(here.parameters(), lr=1.0)
        to_torch.load_state_dict(through_a_file(mine.state_dict()))
        from_torch.load_state_dict(through_a_file(other.state_dict()))
        expected = train(theirs, other, 10, 30)
        for losses in (train(there, to_torch, 10, 30), train(here, from_torch, 10, 30)):
            self.assertLess(max(abs(a - b) for a, b in zip(losses, expected)), 1e-5)

    def test_torchs_sgd_before_its_first_momentum(self):
        module = make()
        theirs = torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)
        train(module, theirs, 0, 1)
        state = theirs.state_dict()
        for one in state["state"].values():
            one["momentum_buffer"] = None
        ours = ht.Optimizer(module.parameters(), lr=1e-2, optimizer="sgd")
        ours.load_state_dict(state)
        train(module, ours, 1, 3)

    def test_a_refused_state_changes_nothing(self):
        module, other = make(), torch.nn.Linear(3, 3)
        optimizer = ht.Optimizer(module.parameters(), lr=3e-3)
        train(module, optimizer, 0, 3)
        before = optimizer.state_dict()
        wrong = copy.deepcopy(before)
        wrong["state"][2]["exp_avg"] = torch.zeros(5)
        foreign = torch.optim.AdamW(module.parameters(), lr=1.0, betas=(0.5, 0.9)).state_dict()
        for state, said in (
            (wrong, r"exp_avg of parameter p2 has shape \(5,\); expected \(32,\)"),
            (foreign, r"group 0 has betas=\(0\.5, 0\.9\)"),
        ):
            with self.assertRaisesRegex(ht.InputError, said):
                optimizer.load_state_dict(state)
            self.assertEqual(optimizer.param_groups[0]["lr"], 3e-3)
        with self.assertRaises(ValueError):
            optimizer.load_state_dict(torch.optim.AdamW(other.parameters()).state_dict())
        after = optimizer.state_dict()
        self.assertTrue(torch.equal(after["state"][2]["exp_avg"], before["state"][2]["exp_avg"]))
        train(module, optimizer, 3, 4)

    def test_a_state_of_another_type_is_refused_by_name(self):
        module = make_wide(torch.float32)
        small = ht.Optimizer(module.parameters(), lr=3e-3, optim_dtype="8bit")
        train(module, small, 0, 2)
        wide = ht.Optimizer(module.parameters(), lr=3e-3)
        wide.load_state_dict(small.state_dict())
        with self.assertRaisesRegex(ht.InputError, 'create it with optim_dtype="8bit"'):
            train(module, wide, 2, 3)


@needs_torch
class Jumps(InFolder):
    def test_a_closure_lets_prediction_guard_itself(self):
        module, calls, losses = make(), [], []
        optimizer = ht.Optimizer(
            module.parameters(), lr=3e-3, predictor="outer", steps=80, confidence_threshold=0, predict_from=0
        )
        for number in range(100):  # more than announced

            def closure():
                calls.append(number)
                optimizer.zero_grad()
                loss = loss_of(module, number)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        self.assertGreater(len(calls), 100)
        self.assertLess(sum(losses[-5:]), sum(losses[:5]) / 2)
        summary = optimizer.loop.summary()
        self.assertGreater(summary.moves, 0)

    def test_an_exception_while_a_jump_is_judged_does_not_end_training(self):
        module, fails = make(), [0]
        optimizer = ht.Optimizer(
            module.parameters(), lr=3e-3, predictor="outer", steps=80, confidence_threshold=0, predict_from=0
        )

        def closure():
            if optimizer.loop is not None and optimizer.loop.question.todo == "loss" and fails[0] < 3:
                fails[0] += 1
                raise ZeroDivisionError
            optimizer.zero_grad()
            loss = loss_of(module, 1)
            loss.backward()
            return loss

        for _ in range(100):
            try:
                optimizer.step(closure)
            except ZeroDivisionError:
                with self.assertRaisesRegex(ht.StateError, "interrupted step"):
                    optimizer.state_dict()
        self.assertEqual(fails, [3])
        self.assertGreater(optimizer.loop.summary().moves, 0)

    def test_prediction_without_a_loss_or_steps_is_refused(self):
        module = make()
        with self.assertRaisesRegex(ht.InputError, "steps="):
            ht.Optimizer(module.parameters(), predictor="outer")
        with self.assertRaisesRegex(ht.InputError, r"step\(closure\)"):
            train(module, ht.Optimizer(module.parameters(), predictor="outer", steps=10), 0, 1)


@needs_torch
class Refusals(InFolder):
    def test_what_is_not_possible_is_refused_by_name(self):
        module = make()
        for keys, said in (
            ({"out": "run"}, "an Optimizer has no out"),
            ({"schedule": "cosine"}, "an Optimizer has no schedule"),
            ({"optimizer": "adamm"}, "adamm"),
            ({"wrong_key": 1}, "wrong_key"),
            ({"lr": -1.0}, r"group 0 has lr=-1\.0"),
        ):
            with self.assertRaisesRegex(ht.InputError, said):
                ht.Optimizer(module.parameters(), **keys)
        with self.assertRaisesRegex(ht.InputError, r"group 1 has betas=\(0\.5, 0\.6\)"):
            params = list(module.parameters())
            ht.Optimizer([{"params": params[:2]}, {"params": params[2:], "betas": (0.5, 0.6)}])
        optimizer = ht.Optimizer(module.parameters(), lr=1e-3)
        for copied in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                copied(optimizer)
        half = make(torch.float16)
        with self.assertRaisesRegex(ht.InputError, "has type fp16"):
            train(half, ht.Optimizer(half.parameters()), 0, 1)
        ranks = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
        with mock.patch.dict("os.environ", {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}):
            with self.assertRaisesRegex(ht.InputError, "rank 1 of 4"):
                ht.Optimizer(module.parameters())

    def test_values_of_a_group_that_all_groups_share(self):
        for name, key, value in (
            ("lion", "betas", (0.5, 0.6)),
            ("muon", "betas", (0.5, 0.6)),
            ("adafactor", "betas", (0.5, 0.6)),
            ("sgd", "momentum", 0.5),
            ("muon", "momentum", 0.5),
        ):
            groups = [{"params": make().parameters(), key: value}]
            with self.assertRaisesRegex(ht.InputError, f"group 0 has {key}="):
                ht.Optimizer(groups, lr=1e-3, optimizer=name)
        ht.Optimizer([{"params": make().parameters(), "momentum": 0.9}], lr=1e-3, optimizer="sgd")

    def test_a_scheduler_that_changes_betas_is_refused(self):
        module = make()
        optimizer = ht.Optimizer(module.named_parameters(), lr=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10)
        with self.assertRaisesRegex(ht.InputError, "cycle_momentum=False"):
            train(module, optimizer, 0, 1, scheduler)

    def test_a_gradient_that_is_not_finite_changes_nothing_and_many_are_an_error(self):
        module = make()
        optimizer = ht.Optimizer(module.parameters(), lr=1e-3)
        train(module, optimizer, 0, 2)
        before, state = bits(module), optimizer.state_dict()
        with self.assertRaises(ht.NumericError):
            for _ in range(21):
                module[0].weight.grad.fill_(float("nan"))
                optimizer.step()
                self.assertEqual(bits(module), before)
        for call in (optimizer.state_dict, optimizer.step):
            with self.assertRaisesRegex(ht.StateError, "has ended.*not finite.*load_state_dict"):
                call()
        optimizer.load_state_dict(state)
        train(module, optimizer, 2, 3)

    def test_steps_without_any_gradient_do_nothing(self):
        module = make()
        optimizer = ht.Optimizer(module.parameters(), lr=1e-3)
        optimizer.step()
        self.assertIsNone(optimizer.loop)
        self.assertEqual(optimizer.state_dict()["state"], {})
        train(module, optimizer, 0, 1)
        optimizer.zero_grad()
        before = bits(module)
        optimizer.step()
        self.assertEqual(bits(module), before)
        self.assertEqual(repr(optimizer), "hybrid_train.Optimizer(adamw, 6 parameters, lr 0.001)")


if __name__ == "__main__":
    unittest.main()
