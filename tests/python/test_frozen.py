"""Frozen parameters of modules with blocks: the library keeps them, plain or quantised, at every place."""

from __future__ import annotations

import copy
import unittest

import hybrid_train as ht
from support import InFolder, has, needs_torch, needs_transformers

try:
    import blocks
    import torch
    from torch import nn
except ImportError:
    torch = None

PLACES = [dict(zip(("weights_place", "grads_place", "optim_place"), [one] * 3)) for one in ("device", "pinned", "disk")]


def with_frozen(*which):
    """A class of modules with these layers frozen."""

    class Net(blocks.Regressor):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(24, 64)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(5))
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 1)
            for i in which:
                self.layers[i].requires_grad_(False)

        def forward(self, x):
            x = self.enter(x)
            for layer in self.layers:
                x = x + layer(x)
            return self.head(self.norm(x))

    return Net


def lora():
    """Frozen matrices with trained ones beside them, a frozen embedding and a frozen head."""
    net = with_frozen(0, 1, 2, 3, 4)()
    for layer in (net.enter, net.norm, net.head):
        layer.requires_grad_(False)
    for i in (1, 3):
        net.layers[i][0] = Beside(net.layers[i][0])
    return net


if torch:

    class Beside(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.a, self.b = base, nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))


@needs_torch
class Learning(InFolder):
    def kinds(self):
        # below everything that is trained, above all blocks that are, and between them
        return with_frozen(0, 1), with_frozen(3, 4), with_frozen(1, 3), lora

    def test_losses_are_those_of_plain_torch_and_equal_at_all_places(self):
        for i, kind in enumerate(self.kinds()):
            with self.subTest(i):
                losses, state = blocks.trained(kind)
                ours = [blocks.trained(kind, blocks=True, offload_folder=".", **keys) for keys in PLACES]
                self.assertLess(max(abs(a - b) for a, b in zip(losses, ours[0][0])), 1e-6)
                for there, kept in ours:
                    self.assertEqual(there, ours[0][0])
                    for name in state:
                        self.assertLess((state[name] - kept[name]).abs().max().item(), 1e-5, name)
                        self.assertTrue(torch.equal(kept[name], ours[0][1][name]), name)

    def test_released_buffers_are_not_read(self):
        for i, kind in enumerate(self.kinds()):
            with self.subTest(i):
                losses, state = blocks.trained(kind)
                here = blocks.InRing(blocks.make(kind))
                self.assertLess(max(abs(a - b) for a, b in zip(losses, here.train())), 1e-6)
                for name, value in here.weights.state_dict().items():
                    self.assertLess((value - state[name]).abs().max().item(), 1e-5, name)

    def test_frozen_blocks_below_the_trained_ones_have_no_backward_pass(self):
        def without_embedding():
            net = with_frozen(0, 1)()
            net.enter.requires_grad_(False)
            return net

        here = blocks.InRing(blocks.make(without_embedding))
        here.backward(0)
        held = here.ring.counts["hold"]
        # Unit 0, a pass over five blocks (the other layers are small), and three blocks again.
        self.assertEqual((held, here.ring.counts["given"]), (1 + 6 + 3, 1 + 3))

    def test_quantised_weights_are_those_that_are_read(self):
        for dtype in ("nf4", "int8", "nf4_single"):
            losses = []
            for keys in PLACES:
                module = blocks.make(lora)
                first = copy.deepcopy(module)
                loop = ht.Loop(
                    module,
                    blocks=True,
                    steps=8,
                    lr=3e-3,
                    frozen_dtype=dtype,
                    offload_folder=".",
                    **keys,
                    **blocks.PLAIN,
                )
                with loop:
                    read = loop.state_dict()
                    losses.append([loop.step(module.loss).loss for _ in range(8)])
            self.assertFalse(torch.equal(read["layers.0.0.weight"], first.state_dict()["layers.0.0.weight"]))
            self.assertTrue(torch.equal(read["norm.weight"], first.state_dict()["norm.weight"]))
            self.assertTrue(torch.equal(module.state_dict()["layers.0.0.weight"], read["layers.0.0.weight"]))
            first.load_state_dict(read)
            with ht.Loop(first, steps=8, lr=3e-3, **blocks.PLAIN) as loop:
                expected = [loop.step(first.loss).loss for _ in range(8)]
            self.assertLess(max(abs(a - b) for a, b in zip(expected, losses[0])), 1e-5)
            self.assertEqual(losses[0], losses[1])
            self.assertEqual(losses[0], losses[2])

    def test_a_frozen_block_must_not_use_other_tensors_with_gradients(self):
        outside = torch.ones(64, requires_grad=True)

        class Block(nn.Linear):
            def forward(self, x):
                return super().forward(x) * outside

        class Net(with_frozen()):
            def __init__(self):
                super().__init__()
                self.enter.requires_grad_(False)
                self.layers[0] = Block(64, 64).requires_grad_(False)

        module = blocks.make(Net)
        with ht.Loop(module, blocks=True, steps=1, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaisesRegex(ht.InputError, "block layers.0 uses a tensor with gradients"):
                loop.step(module.loss)

    def test_types_may_differ_and_others_stay_torchs(self):
        module = blocks.make(lora)
        for i in (0, 2, 4):
            module.layers[i].bfloat16()
        module.layers[4].register_parameter("codes", nn.Parameter(torch.zeros(3, dtype=torch.uint8), False))

        def loss(batch):
            torch.manual_seed(batch)
            x = module.enter(torch.randn(8, 24))
            for layer in module.layers:
                x = x + layer(x.to(list(layer.parameters())[-1].dtype)).float()
            return module.head(module.norm(x)).square().mean()

        with ht.Loop(module, blocks=True, steps=6, lr=3e-3, **blocks.PLAIN) as loop:
            with self.assertRaises(RuntimeError):
                loss(0)  # outside of a pass
            ours = [loop.step(loss).loss for _ in range(6)]
            self.assertEqual(loop.state_dict()["layers.2.0.weight"].dtype, torch.bfloat16)
        self.assertLess(ours[-1], ours[0])

    def test_a_resumed_run_has_the_same_bits(self):
        def train(steps_now):
            module, losses = blocks.make(lora), []
            keys = dict(blocks=True, frozen_dtype="nf4", out="run", resume=True, **blocks.PLAIN)
            with ht.Loop(module, steps=10, lr=3e-3, **keys) as loop:
                while not loop.is_over and len(losses) < steps_now:
                    losses.append(loop.step(module.loss).loss)
            return losses

        ours = train(4) + train(99)
        expected = ht.Loop(
            module := blocks.make(lora), steps=10, lr=3e-3, blocks=True, frozen_dtype="nf4", **blocks.PLAIN
        )
        with expected as loop:
            self.assertEqual(ours, [loop.step(module.loss).loss for _ in range(10)])


@needs_transformers
@unittest.skipUnless(has("peft"), "peft is not here")
class Adapters(InFolder):
    SIZE = dict(vocab_size=96, hidden_size=64, num_hidden_layers=3, num_attention_heads=2)

    def setUp(self):
        super().setUp()
        import peft
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.peft, self.theirs = peft, transformers
        usual = dict(self.SIZE, intermediate_size=128, num_key_value_heads=1)
        self.configs = (
            transformers.LlamaConfig(**usual),
            transformers.LlamaConfig(**usual, tie_word_embeddings=True),
            # a family that the library itself does not know
            transformers.OPTConfig(**self.SIZE, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=64),
        )

    def model(self, config, device, **more):
        torch.manual_seed(0)
        with torch.device(device):
            base = self.theirs.AutoModelForCausalLM.from_config(config)
        named = dict(r=4, target_modules=["q_proj", "v_proj", "fc1", "up_proj"])
        return self.peft.get_peft_model(base, self.peft.LoraConfig(**{**named, **more})).train()

    def loss(self, model):
        def loss(batch):
            torch.manual_seed(batch)
            ids = torch.randint(96, (3, 12)).cumsum(1) % 96
            return model(input_ids=ids, labels=ids).loss

        return loss

    def train(self, model, loop, steps=6):
        return [loop.step(self.loss(model)).loss for _ in range(steps)]

    def from_meta(self, config, first, folder="base", **keys):
        """A model on the meta device with the weights of a folder, and the adapter of `first`."""
        model = self.model(config, "meta")
        own = {n: p for n, p in first.named_parameters() if p.requires_grad}
        loop = ht.Loop(model, steps=6, lr=3e-3, **blocks.PLAIN, **keys)
        with torch.no_grad():
            numbers = {n: i for i, n in enumerate(loop._parameters.names)}
            for name, p in own.items():
                loop._module.weights._put(numbers[name], p.detach())
        loop.load(folder)
        return model, loop

    def test_losses_are_those_of_plain_torch(self):
        for config in self.configs:
            with self.subTest(config.model_type):
                self.model(config, "cpu").unload().save_pretrained("base")
                first = self.model(config, "cpu")
                model, loop = self.from_meta(config, first, weights_place="pinned")
                with loop:
                    ours = self.train(model, loop)
                    loop.save_pretrained("adapter")
                with ht.Loop(first, steps=6, lr=3e-3, **blocks.PLAIN) as plain:
                    expected = self.train(first, plain)
                self.assertLess(max(abs(a - b) for a, b in zip(ours, expected)), 1e-5)
                base = self.theirs.AutoModelForCausalLM.from_pretrained("base")
                again = self.peft.PeftModel.from_pretrained(base, "adapter").state_dict()
                for name, t in first.state_dict().items():
                    self.assertLess((again[name] - t).abs().max().item(), 1e-4, name)
                self.assertEqual(
                    {one.name for one in self.folder.glob("adapter/*.safetensors")}, {"adapter_model.safetensors"}
                )

    def test_a_base_in_nf4_is_that_of_its_decoded_values(self):
        for config in self.configs[::2]:
            with self.subTest(config.model_type):
                self.model(config, "cpu").unload().save_pretrained("base")
                first = self.model(config, "cpu")
                model, loop = self.from_meta(config, first, frozen_dtype="nf4")
                with loop:
                    read = loop.state_dict()
                    ours = self.train(model, loop)
                changed = [n for n, t in first.state_dict().items() if not torch.equal(t, read[n])]
                self.assertTrue(changed and all(".layers." in n and n.endswith("weight") for n in changed), changed)
                first.load_state_dict(read)
                with ht.Loop(first, steps=6, lr=3e-3, **blocks.PLAIN) as plain:
                    expected = self.train(first, plain)
                self.assertLess(max(abs(a - b) for a, b in zip(ours, expected)), 1e-5)

    def test_adapters_begin_as_peft_begins_them(self):
        self.model(self.configs[0], "cpu").unload().save_pretrained("base")
        model = self.model(self.configs[0], "meta", modules_to_save=["lm_head"])
        with ht.Loop(model, steps=6, lr=3e-3, **blocks.PLAIN) as loop:
            loop.load("base")
            state = loop.state_dict()
            a = state["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"]
            self.assertTrue(0 < a.abs().max().item() <= 1 / 8 and a.std() > 0.05)
            self.assertTrue(all(not t.any() for name, t in state.items() if "lora_B" in name))
            saved, original = (
                state[f"base_model.model.lm_head.{n}.weight"] for n in ("modules_to_save.default", "original_module")
            )
            self.assertTrue(torch.equal(saved, original))
            losses = [loop.step(lambda _: self.loss(model)(0)).loss for _ in range(6)]  # one batch again and again
            loop.save_pretrained("adapter")
        self.assertLess(losses[-1], losses[0] - 0.1)
        base = self.theirs.AutoModelForCausalLM.from_pretrained("base")
        again = self.peft.PeftModel.from_pretrained(base, "adapter").state_dict()
        self.assertFalse(torch.equal(again["base_model.model.lm_head.modules_to_save.default.weight"], saved))

    def test_adapters_that_need_the_weights_of_their_base_are_refused(self):
        for more, message in ((dict(init_lora_weights="eva"), "init_lora_weights='eva'"), (dict(use_dora=True), "DoRA")):
            with self.assertRaisesRegex(ht.InputError, message):
                ht.Loop(self.model(self.configs[0], "meta", **more), steps=1, lr=3e-3, **blocks.PLAIN)

    def test_16_bit_base_and_adapters_in_fp32(self):
        config = self.configs[0]
        self.model(config, "cpu").unload().to(torch.bfloat16).save_pretrained("base")
        config.dtype = torch.bfloat16
        model = self.model(config, "meta")
        dtypes = {p.requires_grad: p.dtype for p in model.parameters()}
        self.assertEqual(dtypes, {True: torch.float32, False: torch.bfloat16})
        with ht.Loop(model, steps=6, lr=3e-3, frozen_dtype="nf4", **blocks.PLAIN) as loop:
            loop.load("base")
            read = loop.state_dict()
            ours = self.train(model, loop)
        first = self.model(config, "cpu")
        first.load_state_dict(read)
        with ht.Loop(first, steps=6, lr=3e-3, **blocks.PLAIN) as plain:
            expected = self.train(first, plain)
        # bf16 has 8 bits, and the loss in chunks rounds in another order
        self.assertLess(max(abs(a - b) for a, b in zip(ours, expected)), 2e-3)

    def test_a_resumed_run_reads_its_base_from_the_folder(self):
        self.model(self.configs[0], "cpu").unload().save_pretrained("base")

        def train(steps_now, **keys):
            model = self.model(self.configs[0], "meta")
            with ht.Loop(model, steps=6, lr=3e-3, frozen_dtype="nf4", **keys, **blocks.PLAIN) as loop:
                with self.assertRaisesRegex(ht.StateError, "has no values"):
                    loop.step(self.loss(model))
                loop.load("base")
                return self.train(model, loop, steps_now)

        ours = train(2, out="run") + train(4, out="run", resume=True)
        self.assertEqual(ours, train(6))


if __name__ == "__main__":
    unittest.main()
