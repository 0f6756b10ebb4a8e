"""Mistakes that are easy to make with a loop over a module: none is silent, and messages say what to do."""

from __future__ import annotations

import gc
import unittest
import weakref

import hybrid_train as ht
from support import InFolder, needs_torch, needs_transformers

try:
    import blocks
    import torch
    from torch import nn
except ImportError:
    torch = None


def loop_over(module, **keys):
    return ht.Loop(module, **{"steps": 9, "lr": 1e-2, "blocks": True, **blocks.PLAIN, **keys})


@needs_torch
class WhoHasTheWeights(InFolder):
    def test_a_loop_that_is_dropped_gives_the_trained_weights_back(self):
        module, same = blocks.make(blocks.Mlp), blocks.make(blocks.Mlp)
        loop = loop_over(module)
        loop.run(module.loss)
        del loop
        gc.collect()
        with loop_over(same) as loop:
            loop.run(same.loss)
        for name, value in same.state_dict().items():
            self.assertTrue(torch.equal(module.state_dict()[name], value), name)
        self.assertTrue(module.loss(0).requires_grad)

    def test_a_dropped_loop_says_if_its_weights_are_lost(self):
        said, module = [], blocks.make(blocks.Mlp)
        loop = loop_over(module, on_message=lambda level, text: said.append((level, text)))

        def fails():
            raise OSError("no space")

        loop._module.detach = fails
        del loop
        gc.collect()
        self.assertEqual(said[-1][0], "warning")
        self.assertIn("the weights of its module are lost: no space", said[-1][1])

    def test_state_dict_of_a_module_without_its_weights_is_refused(self):
        module = blocks.make(blocks.Mlp)
        with loop_over(module) as loop:
            for read in (module.state_dict, module.layers.state_dict, module.layers[0].state_dict):
                with self.assertRaisesRegex(ht.StateError, r"loop.state_dict\(\) or loop.save_pretrained"):
                    read()
                with loop.using_weights(), self.assertRaisesRegex(ht.StateError, "loop.state_dict"):
                    read()
            self.assertEqual(loop.state_dict()["layers.0.weight"].shape, (24, 24))
            loop.save_pretrained("out")
            with self.assertRaisesRegex(ht.StateError, "loop.state_dict"):
                module.state_dict()
        self.assertEqual(module.state_dict()["layers.0.weight"].shape, (24, 24))

    @needs_transformers
    def test_save_pretrained_of_transformers_is_refused_and_that_of_the_loop_works(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
        model = LlamaForCausalLM(LlamaConfig(**sizes))
        with loop_over(model) as loop:
            with self.assertRaisesRegex(ht.StateError, "loop.save_pretrained"):
                model.save_pretrained("theirs")
            loop.save_pretrained("ours")
        again = LlamaForCausalLM.from_pretrained("ours")
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(again.state_dict()[name], value), name)

    def test_a_second_loop_over_a_module_is_refused(self):
        module = blocks.make(blocks.Mlp)
        with loop_over(module):
            for keys in ({}, {"blocks": None}):
                with self.assertRaisesRegex(ht.StateError, "another loop has the weights of Mlp; close it first"):
                    loop_over(module, **keys)
            with self.assertRaisesRegex(ht.StateError, "another loop has the weights"):
                loop_over(module.layers, blocks=None)
        loop_over(module).close()

    def test_a_module_from_the_meta_device_is_there_again_after_close(self):
        with loop_over(blocks.make(blocks.Mlp)) as loop:
            loop.save_pretrained("folder")
        with torch.device("meta"):
            module = blocks.Mlp()
        shapes = [p.shape for p in module.parameters()]
        for _ in range(2):
            with loop_over(module, blocks=None) as loop:
                loop.load("folder")
                loop.run(module.loss)
            self.assertEqual([p.shape for p in module.parameters()], shapes)
            self.assertTrue(all(p.is_meta and p.requires_grad for p in module.parameters()))
        with self.assertRaisesRegex(RuntimeError, "meta"):
            module.loss(0)
        loop = loop_over(module, blocks=None)
        keep = weakref.ref(module.head.weight)  # torch cannot move it then
        loop.close()
        self.assertEqual((keep().numel(), module.head.bias.is_meta), (0, True))

    def test_a_step_while_weights_are_in_use_is_refused(self):
        module = blocks.make(blocks.Mlp)
        with loop_over(module) as loop:
            with loop.using_weights():
                for call in (lambda: loop.step(module.loss), lambda: loop.run(module.loss), lambda: loop.answer(1.0)):
                    with self.assertRaisesRegex(ht.StateError, "inside `with loop.using_weights"):
                        call()
                self.assertGreater(module.loss(0).item(), 0)
            self.assertEqual(loop.step(module.loss).step, 1)


@needs_torch
class ChangedModules(unittest.TestCase):
    def refused(self, change, undo, message):
        for kind in (True, None):
            module = blocks.make(blocks.Mlp)
            with self.subTest(blocks=kind), loop_over(module, blocks=kind) as loop:
                loop.step(module.loss)
                kept = change(module)
                with self.assertRaisesRegex(ht.InputError, message):
                    loop.step(module.loss)
                with self.assertRaisesRegex(ht.InputError, message):
                    next(iter(loop))
                undo(module, kept)
                self.assertEqual(loop.step(module.loss).step, 2)

    def test_a_replaced_parameter_is_named(self):
        def change(module):
            old = module.layers[1].weight
            module.layers[1].weight = nn.Parameter(torch.zeros(24, 24))
            return old

        def undo(module, old):
            module.layers[1].weight = old

        self.refused(change, undo, "parameter layers.1.weight was replaced after the loop was created")

    def test_an_added_and_a_removed_parameter_are_named(self):
        def add(module):
            module.layers.append(nn.Linear(24, 24))

        def remove(module):
            last = module.layers[-1]
            del module.layers[-1]
            return last

        self.refused(add, lambda module, _: remove(module), "parameter layers.3.weight was added")
        self.refused(remove, lambda module, last: module.layers.append(last), "parameter layers.2.weight was removed")

    def test_a_frozen_parameter_is_named(self):
        def change(module):
            module.head.weight.requires_grad_(False)

        def undo(module, _):
            module.head.weight.requires_grad_(True)

        self.refused(change, undo, "parameter head.weight has requires_grad=False, but True when the loop was created")

    def test_an_unfrozen_parameter_is_named(self):
        for kind in (True, None):
            module = blocks.make(blocks.Mlp)
            module.layers[0].bias.requires_grad_(False)
            with self.subTest(blocks=kind), loop_over(module, blocks=kind) as loop:
                loop.step(module.loss)
                module.layers[0].bias.requires_grad_(True)
                with self.assertRaisesRegex(ht.InputError, "layers.0.bias has requires_grad=True, but False"):
                    loop.step(module.loss)

    def test_frozen_parts_may_come_and_go(self):
        module = blocks.make(blocks.Mlp)
        with loop_over(module) as loop:
            module.other = nn.Linear(2, 2).requires_grad_(False)
            loop.step(module.loss)
            del module.other
            self.assertEqual(loop.step(module.loss).step, 2)


@needs_torch
class Arguments(unittest.TestCase):
    def refused(self, error, message, **keys):
        with self.subTest(**keys), self.assertRaisesRegex(error, message):
            loop_over(blocks.make(blocks.Mlp), **keys)

    def test_keys_of_blocks_are_refused_without_blocks(self):
        for key, value in dict(weights_place="pinned", grads_place="pinned", frozen_dtype="nf4").items():
            self.refused(ht.InputError, f"{key} is {value}.*blocks=True", blocks=None, **{key: value})
        loop_over(blocks.make(blocks.Mlp), blocks=None, weights_place="auto").close()

    def test_a_loop_counts_steps(self):
        for kind in (True, None):
            self.refused(ht.InputError, "epochs is 2, but a loop counts steps", blocks=kind, epochs=2)

    def test_blocks_are_modules_or_names(self):
        self.refused(ht.InputError, "blocks is 3; expected True, or a list", blocks=3)
        self.refused(ht.InputError, "blocks has 'layers.0' twice", blocks=["layers.0", "layers.0"])
        self.refused(ht.InputError, "blocks has 'layers.0' twice", blocks=["layers", "layers.*"])

    def test_the_name_of_a_list_means_its_elements(self):
        expected = blocks.trained(blocks.Mlp, blocks=["layers.*"])[0]
        for said in ("layers", ["layers"]):
            self.assertEqual(blocks.trained(blocks.Mlp, blocks=said)[0], expected)

    def test_a_device_may_be_torchs_and_a_wrong_one_is_refused(self):
        for kind in (True, None):
            loop_over(blocks.make(blocks.Mlp), blocks=kind, device=torch.device("cpu")).close()
            self.refused(ht.InputError, "device is gpu; expected auto, cpu, cuda or cuda:N", blocks=kind, device="gpu")
        self.refused(ht.DeviceError, "device is cuda:99, but torch finds", device="cuda:99")

    def test_an_optimizer_is_a_name(self):
        theirs = torch.optim.AdamW(blocks.make(blocks.Mlp).parameters())
        self.refused(ht.InputError, r"^optimizer is AdamW \(.*\(of type AdamW\); expected[^\n]*$", optimizer=theirs)


@needs_torch
class LossFunctions(InFolder):
    def both(self):
        for kind in (True, None):
            module = blocks.make(blocks.Mlp)
            with self.subTest(blocks=kind), loop_over(module, blocks=kind) as loop:
                yield module, loop

    def test_tokens_are_a_number_of_targets(self):
        for module, loop in self.both():
            for tokens in (0, -1, float("nan"), "8", 2.5, True, None, torch.ones(8, 40)):
                with self.assertRaisesRegex(ht.InputError, r"tokens is .*\(loss, tokens\)"):
                    loop.step(lambda batch, tokens=tokens: (module.loss(batch), tokens))
            for tokens in (8, 8.0, torch.tensor(8), torch.tensor([8.0])):
                loop.step(lambda batch, tokens=tokens: (module.loss(batch), tokens))

    def test_the_loop_calls_backward(self):
        for module, loop in self.both():

            def loss(batch, module=module):
                out = module.loss(batch)
                out.backward()
                return out

            with self.assertRaisesRegex(ht.InputError, r"the loop calls backward\(\) itself"):
                loop.step(loss)

    def test_a_weight_outside_of_its_block_is_named(self):
        module = blocks.make(blocks.Mlp)
        with loop_over(module) as loop:
            with self.assertRaisesRegex(ht.InputError, "parameter layers.0.weight outside of its block layers.0"):
                loop.step(lambda batch: module.loss(batch) + module.layers[0].weight.square().sum())
            loop.step(lambda batch: module.loss(batch) + module.scale.square().sum())  # it is in no block

    def test_a_resumed_loop_shows_the_step_it_continues_at(self):
        for kind in (True, None):
            for expected in (0, 3):
                module = blocks.make(blocks.Mlp)
                with loop_over(module, blocks=kind, out=f"run-{kind}", resume=True) as loop:
                    self.assertIn(f"step {expected} of 9", repr(loop))
                    for _ in range(3):
                        loop.step(module.loss)


if __name__ == "__main__":
    unittest.main()
