#!/usr/bin/env python3
"""Makes the golden files that tests/test_golden.c compares the model with.

How to run it (nothing else in the project needs Python):

    python3 -m venv oracle
    oracle/bin/pip install torch==2.5.1 transformers==4.51.3 safetensors numpy
    oracle/bin/python tests/golden/make_golden.py            # writes *.safetensors beside this file
    oracle/bin/python tests/golden/make_golden.py --check    # reads them again and recomputes them
    oracle/bin/python tests/golden/make_golden.py --mistakes # how far small mistakes would be seen
    oracle/bin/python tests/golden/make_golden.py --counts   # parameter counts of the presets

The authority is the model code of transformers with eager attention. It is run in float64, and what
is stored is rounded to fp32 once, so the reference's own error is that one rounding. Before a file
is written, three things must agree: transformers in float64, transformers as it comes in fp32, and
a second forward pass and AdamW written here from our tensor names and layout alone. Files come out
the same byte for byte on one machine.
"""
import argparse
import contextlib
import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers
import transformers.modeling_rope_utils as rope_utils
from safetensors import safe_open
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

FOLDER = pathlib.Path(__file__).resolve().parent
STEPS = 10
ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0)

# ---- cases ---------------------------------------------------------------------------------------

GPT2_SHAPE = dict(norm="layernorm", positions="learned", activation="gelu", qkv_bias=True,
                  proj_bias=True, qk_norm=False, tied_head=True, norm_eps=1e-5, rope_theta=10000.0,
                  rope_scaling="none", rope_factor=1.0, rope_low_freq=1.0, rope_high_freq=4.0,
                  rope_original_context=0, sliding_window=0)
LLAMA_SHAPE = dict(GPT2_SHAPE, norm="rmsnorm", positions="rope", activation="swiglu",
                   qkv_bias=False, proj_bias=False, tied_head=False)


def shape_of(base, layers, width, heads, kv_heads, head_size, mlp_width, vocab, context, **rest):
    return dict(base, layers=layers, width=width, heads=heads, kv_heads=kv_heads,
                head_size=head_size, mlp_width=mlp_width, vocab=vocab, context=context, **rest)


# family: which transformers class; T: tokens per sequence; std: of the matrices, above the usual
# 0.02; ignored: flat positions whose target is -1; kept: tensors stored after the last step.
CASES = {
    "gpt2": dict(
        # With this std the gradient norm crosses the clipping limit of 1 and comes back.
        family="gpt2", T=27, std=0.04, ignored=[0, 13, 26, 40],
        shape=shape_of(GPT2_SHAPE, 2, 48, 3, 3, 16, 136, 97, 40),
        kept=["embed.positions.weight", "blocks.0.attn.out.weight", "blocks.1.mlp.up.bias"]),
    "llama": dict(
        family="llama", T=29, std=0.08, ignored=[5, 28, 57],
        shape=shape_of(LLAMA_SHAPE, 2, 48, 6, 2, 8, 80, 97, 40),
        kept=["embed.tokens.weight", "blocks.0.norm1.weight", "head.weight"]),
    "llama3-rope": dict(
        # Wavelengths 6.3, 20, 63 and 199 against the limits 32/4 and 32/1: kept, blended, divided.
        family="llama", T=31, std=0.08, ignored=[1, 30, 33],
        shape=shape_of(LLAMA_SHAPE, 2, 48, 6, 2, 8, 80, 97, 40, tied_head=True, rope_theta=100.0,
                       rope_scaling="llama3", rope_factor=8.0, rope_low_freq=1.0,
                       rope_high_freq=4.0, rope_original_context=32),
        kept=["embed.tokens.weight", "blocks.0.attn.qkv.weight", "blocks.1.norm2.weight"]),
    "qwen2": dict(
        family="qwen2", T=25, std=0.08, ignored=[0, 24, 31],
        shape=shape_of(LLAMA_SHAPE, 3, 40, 4, 2, 10, 72, 101, 33, qkv_bias=True, tied_head=True,
                       norm_eps=1e-6, rope_theta=1000.0),
        kept=["blocks.0.attn.qkv.bias", "blocks.1.attn.qkv.bias", "blocks.2.mlp.gate_up.weight"]),
    "qwen3": dict(
        family="qwen3", T=26, std=0.08, ignored=[7, 25, 51],
        shape=shape_of(LLAMA_SHAPE, 2, 44, 4, 2, 16, 76, 97, 40, qk_norm=True, tied_head=True,
                       norm_eps=1e-6, rope_theta=1000.0),
        kept=["blocks.0.attn.q_norm.weight", "blocks.0.attn.k_norm.weight",
              "blocks.1.attn.out.weight"]),
    "mistral": dict(
        # The last 13 targets are ignored: with five loss chunks, one chunk counts nothing.
        family="mistral", T=30, std=0.08, ignored=[3] + list(range(47, 60)),
        shape=shape_of(LLAMA_SHAPE, 2, 48, 4, 2, 12, 80, 97, 40, sliding_window=7),
        kept=["blocks.0.mlp.down.weight", "blocks.1.attn.qkv.weight", "final_norm.weight"]),
}
BATCH = 2


def hf_config(family, s):
    """The transformers class and configuration of one of our shapes."""
    if family == "gpt2":
        return GPT2LMHeadModel, GPT2Config(
            vocab_size=s["vocab"], n_positions=s["context"], n_embd=s["width"], n_layer=s["layers"],
            n_head=s["heads"], n_inner=s["mlp_width"], activation_function="gelu_new",
            layer_norm_epsilon=s["norm_eps"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=s["tied_head"], use_cache=False)
    common = dict(
        vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["mlp_width"],
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], max_position_embeddings=s["context"], hidden_act="silu",
        rms_norm_eps=s["norm_eps"], rope_theta=s["rope_theta"], attention_dropout=0.0,
        tie_word_embeddings=s["tied_head"], use_cache=False)
    if family == "llama":
        if s["rope_scaling"] == "llama3":
            common["rope_scaling"] = dict(
                rope_type="llama3", factor=s["rope_factor"], low_freq_factor=s["rope_low_freq"],
                high_freq_factor=s["rope_high_freq"],
                original_max_position_embeddings=s["rope_original_context"])
        return LlamaForCausalLM, LlamaConfig(head_dim=s["head_size"], **common)
    if family == "qwen2":
        assert s["head_size"] * s["heads"] == s["width"]
        return Qwen2ForCausalLM, Qwen2Config(sliding_window=None, **common)
    if family == "qwen3":
        return Qwen3ForCausalLM, Qwen3Config(head_dim=s["head_size"], sliding_window=None,
                                             attention_bias=False, **common)
    if family == "mistral":
        return MistralForCausalLM, MistralConfig(
            head_dim=s["head_size"], sliding_window=s["sliding_window"] or None, **common)
    raise ValueError(family)


# ---- the authority: transformers -----------------------------------------------------------------


class Float64Torch:
    """Stands in for the name `torch` inside a model file, whose norms, softmax and rotary angles
    would otherwise be cast to fp32 even in a float64 model."""
    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def all_float64():
    modules = [modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3, rope_utils]
    rotary = [modeling_llama.LlamaRotaryEmbedding, modeling_mistral.MistralRotaryEmbedding,
              modeling_qwen2.Qwen2RotaryEmbedding, modeling_qwen3.Qwen3RotaryEmbedding]
    forwards = [cls.forward for cls in rotary]

    def forward64(self, x, position_ids):  # as theirs, without the calls of .float()
        angles = position_ids[:, :, None].double() * self.inv_freq[None, None, :].double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    try:
        for module in modules:
            module.torch = Float64Torch()
        for cls in rotary:
            cls.forward = forward64
        yield
    finally:
        for module in modules:
            module.torch = torch
        for cls, forward in zip(rotary, forwards):
            cls.forward = forward


def hf_values(name, p, std, generator):
    """Random fp32 values for one parameter: nothing at its usual 0 or 1, so that no gradient and no
    mistake in a norm weight or bias hides."""
    noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    if "norm" in name or ".ln_" in name:
        value = 0.1 * noise if name.endswith("bias") else 1.0 + 0.2 * noise
    else:
        value = (0.1 if p.ndim == 1 else std) * noise
    return value.float()


def hf_model(case, dtype, seed):
    cls, config = hf_config(case["family"], case["shape"])
    config._attn_implementation = "eager"
    model = cls(config).to(dtype).train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():  # a tied head is listed once
            p.copy_(hf_values(name, p, case["std"], generator))
    return model


def to_ours(family, s, hf):
    """Tensors by transformers' names -> tensors by our names; weights become (out, in)."""
    out = {}
    if family == "gpt2":
        out["embed.tokens.weight"] = hf["transformer.wte.weight"]
        out["embed.positions.weight"] = hf["transformer.wpe.weight"]
        pieces = {"norm1": ("ln_1", False), "attn.qkv": ("attn.c_attn", True),
                  "attn.out": ("attn.c_proj", True), "norm2": ("ln_2", False),
                  "mlp.up": ("mlp.c_fc", True), "mlp.down": ("mlp.c_proj", True)}
        for l in range(s["layers"]):
            for ours, (theirs, is_conv) in pieces.items():  # Conv1D keeps (in, out)
                w = hf[f"transformer.h.{l}.{theirs}.weight"]
                out[f"blocks.{l}.{ours}.weight"] = w.T if is_conv else w
                out[f"blocks.{l}.{ours}.bias"] = hf[f"transformer.h.{l}.{theirs}.bias"]
        out["final_norm.weight"] = hf["transformer.ln_f.weight"]
        out["final_norm.bias"] = hf["transformer.ln_f.bias"]
    else:
        out["embed.tokens.weight"] = hf["model.embed_tokens.weight"]
        for l in range(s["layers"]):
            theirs, ours = f"model.layers.{l}", f"blocks.{l}"
            attn, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
            out[f"{ours}.norm1.weight"] = hf[f"{theirs}.input_layernorm.weight"]
            for part in ("weight", "bias") if s["qkv_bias"] else ("weight",):
                out[f"{ours}.attn.qkv.{part}"] = torch.cat(
                    [hf[f"{attn}.{x}_proj.{part}"] for x in "qkv"])
            if s["qk_norm"]:
                out[f"{ours}.attn.q_norm.weight"] = hf[f"{attn}.q_norm.weight"]
                out[f"{ours}.attn.k_norm.weight"] = hf[f"{attn}.k_norm.weight"]
            out[f"{ours}.attn.out.weight"] = hf[f"{attn}.o_proj.weight"]
            out[f"{ours}.norm2.weight"] = hf[f"{theirs}.post_attention_layernorm.weight"]
            out[f"{ours}.mlp.gate_up.weight"] = torch.cat(
                [hf[f"{mlp}.gate_proj.weight"], hf[f"{mlp}.up_proj.weight"]])
            out[f"{ours}.mlp.down.weight"] = hf[f"{mlp}.down_proj.weight"]
        out["final_norm.weight"] = hf["model.norm.weight"]
        if not s["tied_head"]:
            out["head.weight"] = hf["lm_head.weight"]
    assert sum(t.numel() for t in out.values()) == sum(t.numel() for t in hf.values())
    return {name: t.detach().clone().contiguous() for name, t in out.items()}


def mean_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long(),
                           ignore_index=-1)


def clip_scale(norm):
    return min(1.0, ADAMW["grad_clip"] / norm)


def run_hf(case, dtype, seed, tokens, targets):
    """Logits, loss, gradients and ten AdamW steps as PyTorch makes them."""
    family, s = case["family"], case["shape"]
    model = hf_model(case, dtype, seed)
    named = dict(model.named_parameters())
    matrices = [p for p in named.values() if p.ndim >= 2]
    vectors = [p for p in named.values() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=ADAMW["weight_decay"]),
         dict(params=vectors, weight_decay=0.0)],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    result = dict(param=to_ours(family, s, named), losses=[], norms=[])
    for step in range(STEPS):
        logits = model(input_ids=tokens.long(), use_cache=False).logits
        assert logits.dtype == dtype
        loss = mean_loss(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        grads = {name: p.grad for name, p in named.items()}
        norm = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
        if step == 0:
            result.update(logits=logits.detach().clone(), loss=loss.item(),
                          grad=to_ours(family, s, grads))
        result["losses"].append(loss.item())
        result["norms"].append(norm)
        for g in grads.values():
            g.mul_(clip_scale(norm))
        optimizer.step()
    result["final"] = to_ours(family, s, named)
    return result


# ---- the check: the same from our names and layout, written apart --------------------------------


def rope_frequencies(s):
    """Radians per position of each of the D/2 pairs."""
    D = s["head_size"]
    freqs = []
    for i in range(D // 2):
        f = s["rope_theta"] ** (-2.0 * i / D)
        if s["rope_scaling"] == "llama3":
            wavelength = 2.0 * math.pi / f
            turns = s["rope_original_context"] / wavelength
            if turns < s["rope_low_freq"]:
                f /= s["rope_factor"]
            elif turns <= s["rope_high_freq"]:
                blend = (turns - s["rope_low_freq"]) / (s["rope_high_freq"] - s["rope_low_freq"])
                f = (1.0 - blend) * f / s["rope_factor"] + blend * f
        freqs.append(f)
    return torch.tensor(freqs, dtype=torch.float64)


def rotate(s, x):  # (B,T,heads,D): pairs (i, i + D/2) turn by position * frequency
    half = s["head_size"] // 2
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * rope_frequencies(s)
    c, n = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * n, b * c + a * n], dim=-1)


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def norm(s, p, name, x):
    if s["norm"] == "rmsnorm":
        return rms(x, p[f"{name}.weight"], s["norm_eps"])
    x = x - x.mean(-1, keepdim=True)
    return rms(x, p[f"{name}.weight"], s["norm_eps"]) + p[f"{name}.bias"]


def linear(p, name, x):
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def attention(s, p, name, x):
    B, T, _ = x.shape
    H, K, D = s["heads"], s["kv_heads"], s["head_size"]
    qkv = linear(p, f"{name}.qkv", x).reshape(B, T, H + 2 * K, D)
    q, k, v = qkv[:, :, :H], qkv[:, :, H:H + K], qkv[:, :, H + K:]
    if s["qk_norm"]:
        q = rms(q, p[f"{name}.q_norm.weight"], s["norm_eps"])
        k = rms(k, p[f"{name}.k_norm.weight"], s["norm_eps"])
    if s["positions"] == "rope":
        q, k = rotate(s, q), rotate(s, k)
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    sees = (j <= i) & (j > i - (s["sliding_window"] or T))
    heads = []
    for h in range(H):  # head h reads key/value head h / (H/K)
        scores = torch.einsum("btd,bsd->bts", q[:, :, h], k[:, :, h * K // H]) / math.sqrt(D)
        heads.append(scores.masked_fill(~sees, -math.inf).softmax(-1) @ v[:, :, h * K // H])
    return linear(p, f"{name}.out", torch.cat(heads, dim=-1))


def mlp(s, p, name, x):
    if s["activation"] == "gelu":
        u = linear(p, f"{name}.up", x)
        inner = math.sqrt(2.0 / math.pi) * (u + 0.044715 * u ** 3)
        return linear(p, f"{name}.down", 0.5 * u * (1.0 + inner.tanh()))
    gate, up = linear(p, f"{name}.gate_up", x).split(s["mlp_width"], dim=-1)
    return linear(p, f"{name}.down", gate * gate.sigmoid() * up)


def forward(s, p, tokens):
    x = p["embed.tokens.weight"][tokens.long()]
    if s["positions"] == "learned":
        x = x + p["embed.positions.weight"][:tokens.shape[1]]
    for l in range(s["layers"]):
        x = x + attention(s, p, f"blocks.{l}.attn", norm(s, p, f"blocks.{l}.norm1", x))
        x = x + mlp(s, p, f"blocks.{l}.mlp", norm(s, p, f"blocks.{l}.norm2", x))
    head = p["embed.tokens.weight" if s["tied_head"] else "head.weight"]
    return norm(s, p, "final_norm", x) @ head.T


def run_ours(s, params, tokens, targets):
    """What run_hf gives, in float64, by the code above and AdamW written out."""
    p = {name: t.double().clone().requires_grad_() for name, t in params.items()}
    m = {name: torch.zeros_like(t) for name, t in p.items()}
    v = {name: torch.zeros_like(t) for name, t in p.items()}
    result = dict(losses=[], norms=[])
    for step in range(1, STEPS + 1):
        logits = forward(s, p, tokens)
        loss = mean_loss(logits, targets)
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        size = math.sqrt(sum(g.square().sum().item() for g in grads.values()))
        if step == 1:
            result.update(logits=logits.detach(), loss=loss.item(), grad=grads)
        result["losses"].append(loss.item())
        result["norms"].append(size)
        with torch.no_grad():
            for name, t in p.items():
                g = grads[name] * clip_scale(size)
                m[name] = ADAMW["beta1"] * m[name] + (1 - ADAMW["beta1"]) * g
                v[name] = ADAMW["beta2"] * v[name] + (1 - ADAMW["beta2"]) * g * g
                mean = m[name] / (1 - ADAMW["beta1"] ** step)
                root = (v[name] / (1 - ADAMW["beta2"] ** step)).sqrt()
                decay = ADAMW["weight_decay"] if t.ndim >= 2 else 0.0
                t -= ADAMW["lr"] * (mean / (root + ADAMW["eps"]) + decay * t)
    result["final"] = {name: t.detach() for name, t in p.items()}
    return result


# ---- comparing and writing -----------------------------------------------------------------------


def distance(a, b):
    """Norm of the difference over the norm of b."""
    a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    return ((a - b).norm() / b.norm()).item()


def worst(a, b, kept):
    """The largest distance of each kind between two runs."""
    far = {key: distance(a[key], b[key]) for key in ("logits", "loss")}
    far["grad"] = max(distance(a["grad"][n], b["grad"][n]) for n in b["grad"])
    for key in ("losses", "norms"):
        far[key] = max(abs(x - y) / abs(y) for x, y in zip(a[key], b[key]))
    far["final"] = max(distance(a["final"][n], b["final"][n]) for n in kept)
    return far


def demand(case_name, what, far, limits):
    print(f"  {what:37s}" + "  ".join(f"{key} {value:.1e}" for key, value in far.items()))
    for key, value in far.items():
        if not value <= limits[key]:
            sys.exit(f"{case_name}: {what}: {key} differs by {value:.3e}, "
                     f"expected at most {limits[key]:.0e}")


def word(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_safetensors(path, tensors, metadata):
    """Header length (u64), JSON header padded with blanks to 8, data; in the order given."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = dict(dtype={"float32": "F32", "int32": "I32"}[str(array.dtype)],
                            shape=list(array.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def batch_of(case, seed):
    rng = np.random.default_rng(seed)
    V, T = case["shape"]["vocab"], case["T"]
    stream = rng.integers(0, V, size=(BATCH, T + 1), dtype=np.int32)
    stream[0, 0], stream[0, 1] = 0, V - 1  # both ends of the vocabulary are used
    tokens, targets = stream[:, :-1].copy(), stream[:, 1:].copy()
    targets.reshape(-1)[case["ignored"]] = -1
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def make(name, case, seed):
    print(name)
    tokens, targets = batch_of(case, seed)
    with all_float64():
        exact = run_hf(case, torch.float64, seed, tokens, targets)
    plain = run_hf(case, torch.float32, seed, tokens, targets)
    ours = run_ours(case["shape"], exact["param"], tokens, targets)
    demand(name, "ours against transformers, f64:", worst(ours, exact, case["kept"]),
           dict.fromkeys(("logits", "loss", "grad", "losses", "norms", "final"), 1e-9))
    demand(name, "transformers, fp32 against f64:", worst(plain, exact, case["kept"]),
           dict(logits=2e-6, loss=1e-6, grad=5e-6, losses=5e-6, norms=5e-5, final=1e-4))
    flat = [n for n, g in exact["grad"].items() if g.abs().max() < 1e-5]
    if flat:
        sys.exit(f"{name}: gradients too small to test anything: {flat}")

    tensors = dict(tokens=tokens.numpy(), targets=targets.numpy())
    numbers = dict(logits=exact["logits"], loss=[exact["loss"]], losses=exact["losses"],
                   norms=exact["norms"])
    numbers.update({f"param.{n}": t for n, t in exact["param"].items()})
    numbers.update({f"grad.{n}": t for n, t in exact["grad"].items()})
    numbers.update({f"final.{n}": exact["final"][n] for n in case["kept"]})
    for key, value in numbers.items():
        tensors[key] = torch.as_tensor(value, dtype=torch.float64).float().numpy()
    for n, t in exact["param"].items():
        assert torch.equal(t, torch.from_numpy(tensors[f"param.{n}"]).double()), n

    metadata = {key: word(value) for key, value in case["shape"].items()}
    metadata.update({key: word(value) for key, value in ADAMW.items()})
    metadata.update(family=case["family"], steps=str(STEPS),
                    parameters=str(sum(t.numel() for t in exact["param"].values())),
                    made_with=f"torch {torch.__version__}, transformers {transformers.__version__}")
    path = FOLDER / f"{name}.safetensors"
    write_safetensors(path, tensors, metadata)
    print(f"  loss {exact['losses'][0]:.4f} -> {exact['losses'][-1]:.4f}, norms "
          f"{exact['norms'][0]:.3f} -> {exact['norms'][-1]:.3f}, "
          f"{metadata['parameters']} parameters, {path.stat().st_size} bytes")


def shape_from(metadata):
    """Our shape out of a file's metadata."""
    def parse(text):
        if text in ("true", "false"):
            return text == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
        return text
    return {key: parse(metadata[key]) for key in CASES["gpt2"]["shape"]}


def compare(name, **mistake):
    """A file as the safetensors library reads it, against the forward pass of this script; with a
    mistake in the shape, how far that goes off."""
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as f:
        t = {key: f.get_tensor(key) for key in f.keys()}
        s = dict(shape_from(f.metadata()), **mistake)
    params = {key[6:]: value for key, value in t.items() if key.startswith("param.")}
    kept = [key[6:] for key in t if key.startswith("final.")]
    stored = dict(logits=t["logits"], loss=t["loss"].item(), losses=t["losses"].tolist(),
                  norms=t["norms"].tolist(), final={n: t[f"final.{n}"] for n in kept},
                  grad={n: t[f"grad.{n}"] for n in params})
    far = worst(run_ours(s, params, t["tokens"], t["targets"]), stored, kept)
    demand(name, f"{name} {mistake or ''}", far, dict.fromkeys(far, math.inf if mistake else 1e-7))


def show_mistakes(name):
    s = CASES[name]["shape"]
    compare(name, norm_eps=round(1.1 * s["norm_eps"], 9))
    if s["positions"] == "rope":
        compare(name, rope_theta=round(1.001 * s["rope_theta"], 4))
    if s["rope_scaling"] != "none":
        compare(name, rope_factor=s["rope_factor"] + 0.01)
        compare(name, rope_scaling="none")
    if s["sliding_window"]:
        compare(name, sliding_window=s["sliding_window"] - 1)
        compare(name, sliding_window=s["sliding_window"] + 1)


# ---- presets: exact parameter counts -------------------------------------------------------------


def gpt2_preset(layers, width, heads):
    return "gpt2", shape_of(GPT2_SHAPE, layers, width, heads, heads, 64, 4 * width, 50257, 1024)


def preset(family, layers, width, heads, kv_heads, head_size, mlp_width, vocab, **rest):
    return family, shape_of(LLAMA_SHAPE, layers, width, heads, kv_heads, head_size, mlp_width,
                            vocab, 4096, **rest)


QWEN2 = dict(qkv_bias=True, norm_eps=1e-6)
PRESETS = {
    "gpt2-124m": gpt2_preset(12, 768, 12),
    "gpt2-350m": gpt2_preset(24, 1024, 16),
    "gpt2-774m": gpt2_preset(36, 1280, 20),
    "gpt2-1558m": gpt2_preset(48, 1600, 25),
    "llama-3.2-1b": preset("llama", 16, 2048, 32, 8, 64, 8192, 128256, tied_head=True),
    "qwen2.5-0.5b": preset("qwen2", 24, 896, 14, 2, 64, 4864, 151936, tied_head=True, **QWEN2),
    "qwen2.5-1.5b": preset("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, tied_head=True, **QWEN2),
    "qwen2.5-3b": preset("qwen2", 36, 2048, 16, 2, 128, 11008, 151936, tied_head=True, **QWEN2),
    "qwen2.5-7b": preset("qwen2", 28, 3584, 28, 4, 128, 18944, 152064, **QWEN2),
    "qwen2.5-32b": preset("qwen2", 64, 5120, 40, 8, 128, 27648, 152064, **QWEN2),
    "llama-2-7b": preset("llama", 32, 4096, 32, 32, 128, 11008, 32000),
    "llama-3.1-8b": preset("llama", 32, 4096, 32, 8, 128, 14336, 128256),
    "qwen3-8b": preset("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, tied_head=False, qk_norm=True),
    "qwen3-0.6b": preset("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied_head=True, qk_norm=True),
    "mistral-7b": preset("mistral", 32, 4096, 32, 8, 128, 14336, 32000, sliding_window=4096),
}


def count_parameters(s):
    """The count by our names, as arithmetic."""
    C, V, F_, D = s["width"], s["vocab"], s["mlp_width"], s["head_size"]
    H, K = s["heads"], s["kv_heads"]
    vector = 2 * C if s["norm"] == "layernorm" else C
    rows = (H + 2 * K) * D
    block = 2 * vector + rows * C + C * H * D
    block += (3 if s["activation"] == "swiglu" else 2) * C * F_
    block += rows if s["qkv_bias"] else 0
    block += C + F_ + C if s["proj_bias"] else 0
    block += 2 * D if s["qk_norm"] else 0
    total = V * C + s["layers"] * block + vector
    total += s["context"] * C if s["positions"] == "learned" else 0
    return total + (0 if s["tied_head"] else V * C)


def print_counts():
    keys = ["layers", "width", "heads", "kv_heads", "head_size", "mlp_width", "vocab", "tied_head"]
    print("| preset | " + " | ".join(keys) + " | parameters |\n" + "|---" * (len(keys) + 2) + "|")
    for name, (family, s) in PRESETS.items():
        cls, config = hf_config(family, s)
        with torch.device("meta"):
            model = cls(config)
        model.tie_weights()
        count = sum(p.numel() for p in model.parameters())
        if count != count_parameters(s):
            sys.exit(f"{name}: transformers counts {count}, our names {count_parameters(s)}")
        print(f"| {name} | " + " | ".join(word(s[key]) for key in keys) + f" | {count:,} |")


def main():
    parser = argparse.ArgumentParser(description="golden files for tests/test_golden.c")
    parser.add_argument("--check", action="store_true", help="recompute the files that are there")
    parser.add_argument("--mistakes", action="store_true", help="effect of small mistakes")
    parser.add_argument("--counts", action="store_true", help="parameter counts of the presets")
    parser.add_argument("cases", nargs="*", help=f"default all: {' '.join(CASES)}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.counts:
        return print_counts()
    for seed, (name, case) in enumerate(CASES.items(), start=1):
        if args.cases and name not in args.cases:
            continue
        if args.check:
            compare(name)
        elif args.mistakes:
            show_mistakes(name)
        else:
            make(name, case, seed)


if __name__ == "__main__":
    main()
