#!/usr/bin/env python3
"""make_families.py: small random models of many families as transformers saves them, with what
transformers computes from them; tests/test_families.c compares.

    python3 -m venv oracle
    oracle/bin/pip install torch==2.15.0 transformers==5.23.0 safetensors numpy
    oracle/bin/python tests/golden/make_families.py [NAME..]   # writes families/NAME
    oracle/bin/python tests/golden/make_families.py --counts   # parameters of published models
    oracle/bin/python tests/golden/make_families.py --defaults # of configs with sizes alone

families/NAME is config.json and model.safetensors (weights in bf16) and expected.safetensors:
tokens, targets (B,T) i32, target -1 does not count; logits (B,T,V), loss (1), greedy (40) i32: the
tokens that follow the first `prompt` (metadata) tokens of row 0; for some cases also grad.NAME, by
the names of the file, and losses (20) of AdamW steps on this batch. Cases of is_old have the
config.json of older versions of transformers, as most published folders do. A multimodal folder
has the text model of the case that its metadata names as `text`.

The authority is the model code of transformers with eager attention in float64, as in
make_golden.py, rounded to fp32 once. The script prints the distance of fp32 transformers from it.
"""
import argparse
import contextlib
import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
import transformers.modeling_rope_utils as rope_utils
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from make_golden import ADAMW, FOLDER, Float64Torch, clip_scale, distance, hf_values, mean_loss
from make_golden import word, write_safetensors

STEPS, BATCH, GREEDY = 20, 2, 40
FLAT = 1e-9  # the norm of a gradient that is zero but for rounding
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def pattern(letters):
    return [{"f": FULL, "s": SLIDING, "l": LINEAR}[letter] for letter in letters]


# ---- cases ---------------------------------------------------------------------------------------

SIZES = dict(vocab_size=61, hidden_size=24, intermediate_size=20, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             pad_token_id=None, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
             use_cache=True)
WIDE = dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=22,
            vocab_size=67)


def rope(kind, theta, **rest):
    return dict(rope_type=kind, rope_theta=theta, **rest)


def case(cls, T=26, prompt=8, seed=1, std=0.2, grads=False, is_old=False, norm_mean=1.0, **config):
    config = dict(SIZES, **config)
    return dict(cls=cls, T=T, prompt=prompt, seed=seed, std=std, grads=grads, is_old=is_old,
                norm_mean=norm_mean, config={k: v for k, v in config.items() if v != "absent"})


def gemma(cls, **rest):
    return case(cls, norm_mean=0.1, **rest)


def qwen35(**rest):
    # The first output of the delta rule is v times q k, which may be near 0, and a norm follows.
    return case("Qwen3_5ForCausalLM", norm_mean=0.1, rms_norm_eps=5e-2, **rest)


def linear(key_heads, heads, key_dim, value_dim, taps):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=heads,
                linear_key_head_dim=key_dim, linear_value_head_dim=value_dim,
                linear_conv_kernel_dim=taps)


SHORT, LONG = [1.0, 1.15, 1.4], [1.3, 2.5, 7.0]
YARN = dict(factor=4.0, original_max_position_embeddings=16)

CASES = {
    # ---- families that are read since long
    "llama-llama3": case("LlamaForCausalLM", num_hidden_layers=2, grads=True, head_dim=8,
                         attention_bias=True, mlp_bias=True,
                         rope_parameters=rope("llama3", 200.0, factor=8.0, low_freq_factor=1.0,
                                              high_freq_factor=4.0,
                                              original_max_position_embeddings=16)),
    "llama-linear": case("LlamaForCausalLM", num_hidden_layers=2, tie_word_embeddings=True,
                         rope_parameters=rope("linear", 500.0, factor=2.5)),
    "llama-yarn": case("LlamaForCausalLM", is_old=True, head_dim=8,
                       rope_parameters=rope("yarn", 700.0, beta_fast=4.0, **YARN)),
    "qwen3-windows": case("Qwen3ForCausalLM", head_dim=8, num_hidden_layers=4,
                          use_sliding_window=True, sliding_window=7, layer_types=pattern("sfss"),
                          rope_parameters=rope("default", 300.0)),
    # ---- Gemma
    "gemma2-caps": gemma("Gemma2ForCausalLM", grads=True, head_dim=8, tie_word_embeddings=True,
                         attn_logit_softcapping=1.5, final_logit_softcapping=2.5,
                         query_pre_attn_scalar=5, sliding_window=9,
                         rope_parameters=rope("default", 400.0)),
    "gemma2-bias": gemma("Gemma2ForCausalLM", grads=True, **WIDE, head_dim=8, num_hidden_layers=2,
                         attention_bias=True, hidden_activation="gelu", sliding_window=6,
                         layer_types=pattern("fs"), query_pre_attn_scalar=11,
                         attn_logit_softcapping=None, final_logit_softcapping=None,
                         rope_parameters=rope("linear", 300.0, factor=2.5)),
    "gemma2-old": gemma("Gemma2ForCausalLM", is_old=True, head_dim=6, num_key_value_heads=4,
                        tie_word_embeddings=True, attn_logit_softcapping=0.9,
                        final_logit_softcapping=None, query_pre_attn_scalar=6, sliding_window=5,
                        rope_parameters=rope("default", 10000.0)),
    "gemma3-dual": gemma("Gemma3ForCausalLM", grads=True, head_dim=8, num_hidden_layers=4,
                         tie_word_embeddings=True, query_pre_attn_scalar=5, sliding_window=7,
                         layer_types=pattern("sfss"),
                         rope_parameters={FULL: rope("linear", 5000.0, factor=4.0),
                                          SLIDING: rope("default", 100.0)}),
    "gemma3-old": gemma("Gemma3ForCausalLM", is_old=True, head_dim=6, num_hidden_layers=4,
                        tie_word_embeddings=True, query_pre_attn_scalar=6, sliding_window=9,
                        layer_types=pattern("ssfs"), final_logit_softcapping=2.0,
                        rope_parameters={FULL: rope("linear", 1000000.0, factor=8.0),
                                         SLIDING: rope("default", 10000.0)}),
    "gemma3-bias": gemma("Gemma3ForCausalLM", **WIDE, head_dim=12, attention_bias=True,
                         hidden_activation="gelu", query_pre_attn_scalar=7, sliding_window=5,
                         layer_types=pattern("fsf"),
                         rope_parameters={FULL: rope("yarn", 600.0, **YARN),
                                          SLIDING: rope("default", 60.0)}),
    # ---- OLMo
    "olmo2-plain": case("Olmo2ForCausalLM", grads=True, rope_parameters=rope("default", 500.0)),
    "olmo2-yarn": case("Olmo2ForCausalLM", num_hidden_layers=2, **WIDE, attention_bias=True,
                       hidden_act="gelu",
                       rope_parameters=rope("yarn", 150.0, factor=3.0, truncate=False,
                                            original_max_position_embeddings=16)),
    "olmo2-dynamic": case("Olmo2ForCausalLM", T=72, num_hidden_layers=2, tie_word_embeddings=True,
                          max_position_embeddings=48, num_key_value_heads=4,
                          rope_parameters=rope("dynamic", 300.0, factor=3.0)),
    "olmo3-yarn": case("Olmo3ForCausalLM", grads=True, num_hidden_layers=5, sliding_window=7,
                       rope_parameters={FULL: rope("yarn", 900.0, attention_factor=1.2, **YARN),
                                        SLIDING: rope("default", 900.0)}),
    "olmo3-old": case("Olmo3ForCausalLM", is_old=True, **WIDE, sliding_window=8,
                      attention_bias=True, layer_types=pattern("sfs"),
                      rope_parameters={FULL: rope("yarn", 500000.0, factor=8.0, beta_fast=32.0,
                                                  beta_slow=1.0,
                                                  original_max_position_embeddings=12),
                                       SLIDING: rope("default", 500000.0)}),
    "olmo3-bases": case("Olmo3ForCausalLM", num_key_value_heads=4, tie_word_embeddings=True,
                        sliding_window=5, layer_types=pattern("fsf"),
                        rope_parameters={FULL: rope("default", 1000.0),
                                         SLIDING: rope("default", 50.0)}),
    # ---- GPT-NeoX
    "neox-parallel": case("GPTNeoXForCausalLM", grads=True, num_key_value_heads="absent",
                          num_attention_heads=2, hidden_act="gelu",
                          rope_parameters=rope("default", 400.0, partial_rotary_factor=0.5)),
    "neox-serial": case("GPTNeoXForCausalLM", grads=True, num_key_value_heads="absent",
                        num_hidden_layers=2, hidden_act="relu2", use_parallel_residual=False,
                        attention_bias=False, tie_word_embeddings=True,
                        rope_parameters=rope("linear", 300.0, factor=2.0,
                                             partial_rotary_factor=1.0)),
    "neox-old": case("GPTNeoXForCausalLM", num_hidden_layers=2, is_old=True,
                     num_key_value_heads="absent", hidden_size=32, num_attention_heads=2,
                     hidden_act="gelu_new", vocab_size=71,
                     rope_parameters=rope("default", 10000.0, partial_rotary_factor=0.25)),
    # ---- Phi-3 and Phi-4-mini
    "phi3-window": case("Phi3ForCausalLM", num_hidden_layers=2, sliding_window=7,
                        original_max_position_embeddings=64, num_key_value_heads=4,
                        rope_parameters=rope("default", 500.0, partial_rotary_factor=1.0)),
    "phi3-short": case("Phi3ForCausalLM", is_old=True, T=32, hidden_size=32,
                       tie_word_embeddings=True, max_position_embeddings=96,
                       original_max_position_embeddings=48,
                       rope_parameters=rope("longrope", 1000.0, partial_rotary_factor=0.75,
                                            short_factor=SHORT, long_factor=LONG)),
    "phi3-long": case("Phi3ForCausalLM", grads=True, T=28, prompt=24, hidden_size=32,
                      tie_word_embeddings=True, max_position_embeddings=64,
                      original_max_position_embeddings=16, intermediate_size=18,
                      rope_parameters=rope("longrope", 1000.0, partial_rotary_factor=0.75,
                                           short_factor=SHORT, long_factor=LONG)),
    # ---- SmolLM3
    "smollm3-nope": case("SmolLM3ForCausalLM", grads=True, num_hidden_layers=5,
                         no_rope_layer_interval=2, tie_word_embeddings=True,
                         rope_parameters=rope("default", 300.0)),
    "smollm3-window": case("SmolLM3ForCausalLM", num_key_value_heads=4, num_hidden_layers=4,
                           no_rope_layers=[1, 0, 0, 1], use_sliding_window=True, sliding_window=6,
                           attention_bias=True, mlp_bias=True,
                           rope_parameters=rope("yarn", 300.0, factor=2.5,
                                                original_max_position_embeddings=16)),
    "smollm3-old": case("SmolLM3ForCausalLM", is_old=True, num_hidden_layers=4, mlp_bias=True,
                        tie_word_embeddings=True, no_rope_layer_interval=3,
                        rope_parameters=rope("default", 5000000.0)),
    # ---- Granite
    "granite-factors": case("GraniteForCausalLM", grads=True,
                            embedding_multiplier=3.5, residual_multiplier=0.4,
                            attention_multiplier=0.23, logits_scaling=1.75,
                            rope_parameters=rope("default", 300.0)),
    "granite-bias": case("GraniteForCausalLM", num_hidden_layers=2, **WIDE, attention_bias=True,
                         mlp_bias=True, hidden_act="relu2", embedding_multiplier=2.0,
                         residual_multiplier=1.0,
                         attention_multiplier=0.4, logits_scaling=0.8,
                         rope_parameters=rope("linear", 300.0, factor=3.0)),
    "granite-old": case("GraniteForCausalLM", is_old=True, num_hidden_layers=2,
                        embedding_multiplier=12.0,
                        residual_multiplier=0.22, attention_multiplier=0.0625, logits_scaling=8.0,
                        rope_parameters=rope("default", 10000000.0)),
    "granite4-rope": case("GraniteMoeHybridForCausalLM", grads=True, num_local_experts=0,
                          num_experts_per_tok=0, shared_intermediate_size=28,
                          intermediate_size=36, layer_types=pattern("fff"), mamba_n_heads=4,
                          position_embedding_type="rope", tie_word_embeddings=True,
                          embedding_multiplier=1.4, residual_multiplier=0.8,
                          attention_multiplier=0.3, logits_scaling=1.5,
                          rope_parameters=rope("default", 300.0)),
    "granite4-nope": case("GraniteMoeHybridForCausalLM", num_hidden_layers=2, num_local_experts=0,
                          num_experts_per_tok=0, shared_intermediate_size=26,
                          layer_types=pattern("ff"), mamba_n_heads=4,
                          position_embedding_type="nope", residual_multiplier=0.7,
                          attention_multiplier=0.45),
    "granite4-old": case("GraniteMoeHybridForCausalLM", is_old=True, num_local_experts=0,
                         num_experts_per_tok=0, shared_intermediate_size=30,
                         intermediate_size=30, num_hidden_layers=2, layer_types=pattern("ff"),
                         mamba_n_heads=4, position_embedding_type="rope", attention_bias=True,
                         embedding_multiplier=2.0, attention_multiplier=0.35, logits_scaling=3.0,
                         rope_parameters=rope("default", 10000.0)),
    # ---- Ministral 3
    "ministral3-query": case("Ministral3ForCausalLM", grads=True, T=40, head_dim=8,
                             rope_parameters=rope("yarn", 800.0, mscale=1.0, mscale_all_dim=1.0,
                                                  beta_fast=32.0, beta_slow=1.0,
                                                  llama_4_scaling_beta=0.3, **YARN)),
    "ministral3-mscale": case("Ministral3ForCausalLM", num_hidden_layers=2, **WIDE, head_dim=8,
                              tie_word_embeddings=True, sliding_window=9,
                              rope_parameters=rope("yarn", 120.0, mscale=1.0, mscale_all_dim=0.5,
                                                   beta_fast=6.0, beta_slow=0.5, truncate=False,
                                                   llama_4_scaling_beta=0.1, **YARN)),
    "ministral3-factor": case("Ministral3ForCausalLM", head_dim=12, num_key_value_heads=1,
                              num_hidden_layers=2,
                              rope_parameters=rope("yarn", 60.0, attention_factor=1.1,
                                                   factor=2.0, llama_4_scaling_beta=0.2,
                                                   original_max_position_embeddings=13)),
    # ---- StarCoder2
    "starcoder2-window": case("Starcoder2ForCausalLM", grads=True, num_hidden_layers=2,
                              hidden_act="gelu_pytorch_tanh", sliding_window=7,
                              tie_word_embeddings=True, rope_parameters=rope("default", 400.0)),
    "starcoder2-old": case("Starcoder2ForCausalLM", is_old=True, **WIDE, num_hidden_layers=2,
                           hidden_act="gelu", head_dim=8, use_bias=False,
                           rope_parameters=rope("linear", 300.0, factor=2.0)),
    "starcoder2-yarn": case("Starcoder2ForCausalLM", grads=True, T=40, hidden_size=26, head_dim=6,
                            num_attention_heads=5, num_key_value_heads=5, intermediate_size=33,
                            hidden_act="relu2", sliding_window=11, norm_epsilon=1e-3,
                            rope_parameters=rope("yarn", 700.0, **YARN)),
    # ---- Qwen3.5
    "qwen35-grouped": qwen35(grads=True, head_dim=8, full_attention_interval=3,
                             tie_word_embeddings=True, **linear(2, 6, 6, 10, 4),
                             rope_parameters=rope("default", 300.0, partial_rotary_factor=0.25)),
    "qwen35-odd": qwen35(grads=True, **WIDE, head_dim=12, attention_bias=True,
                         layer_types=pattern("flf"), **linear(3, 3, 7, 5, 3),
                         rope_parameters=rope("default", 500.0, partial_rotary_factor=0.5)),
    "qwen35-square": qwen35(num_hidden_layers=2, full_attention_interval=2, head_dim=8,
                            **linear(2, 6, 8, 8, 4),
                            rope_parameters=rope("default", 300.0, partial_rotary_factor=0.5)),
    "qwen35-long": qwen35(grads=True, T=72, num_hidden_layers=2, max_position_embeddings=112,
                          head_dim=8, full_attention_interval=2, **linear(1, 4, 9, 3, 2),
                          rope_parameters=rope("linear", 400.0, factor=2.5)),
}
# Folders with a text model and a vision model: the text model of another case.
MULTIMODAL = {"gemma3-multimodal": "gemma3-dual", "ministral3-multimodal": "ministral3-query",
              "qwen35-multimodal": "qwen35-grouped"}


# ---- float64 -------------------------------------------------------------------------------------


class NoFp32(TorchDispatchMode):
    """Fails where an op of a float64 model gives a number in fp32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            assert not isinstance(t, torch.Tensor) or t.dtype != torch.float32, f"{func}: fp32"
        return out


@contextlib.contextmanager
def all_float64(cls):
    """Lifts the casts to fp32 in norms, softmax and rotary angles."""
    modules = [sys.modules[cls.__module__], rope_utils]
    cast = torch.Tensor.float
    try:
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = torch.Tensor.double
        for module in modules:
            module.torch = Float64Torch()
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.Tensor.float = cast
        for module in modules:
            module.torch = torch


# ---- folders -------------------------------------------------------------------------------------


def old_config(config, layer_types):
    """config.json as transformers 4 wrote it."""
    config = dict(config)
    parameters = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    kind = config["model_type"]
    if FULL in parameters:
        local, parameters = parameters[SLIDING], parameters[FULL]
        if kind == "gemma3_text":
            config["rope_local_base_freq"] = local["rope_theta"]
    parameters = dict(parameters)
    theta, share = parameters.pop("rope_theta"), parameters.pop("partial_rotary_factor", None)
    if kind == "gemma3_text":
        config.pop("layer_types")
        config["sliding_window_pattern"] = layer_types.index(FULL) + 1
    if kind == "gemma2":
        config.pop("layer_types")
    if kind == "gpt_neox":
        config["rotary_emb_base"], config["rotary_pct"] = theta, share
    else:
        config["rope_theta"] = theta
        if share is not None:
            config["partial_rotary_factor"] = share
    if kind == "granitemoehybrid":
        config["layer_types"] = ["attention"] * len(layer_types)
    if kind == "phi3":  # both at the top and not here
        parameters.pop("original_max_position_embeddings", None)
        parameters["type"] = parameters.pop("rope_type")
    config["rope_scaling"] = None if parameters.get("rope_type") == "default" else parameters
    return config


def save_folder(name, c, seed):
    """Random numbers that bf16 holds, saved by transformers."""
    cls = getattr(transformers, c["cls"])
    model = cls(cls.config_class(**c["config"]))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            value = hf_values(key, p, c["std"], generator)
            if "norm" in key and not key.endswith(("bias", "linear_attn.norm.weight")):
                value += c["norm_mean"] - 1.0
            p.copy_(value)
    folder = FOLDER / "families" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if c["is_old"]:
        path = folder / "config.json"
        config = old_config(json.loads(path.read_text()), c["config"].get("layer_types"))
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return folder


def name_in_file(cls, name):
    """GPT-NeoX: its class renames the head."""
    return name.replace("lm_head.", "embed_out.") if "NeoX" in cls.__name__ else name


def load_folder(folder, cls, dtype):
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = cls(config).to(dtype)
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():  # a tied head is listed once
            p.copy_(tensors.pop(name_in_file(cls, name)).to(dtype))
    assert not tensors, tensors.keys()
    return model.eval()  # no dropout is set; eval() so that nothing depends on it


# ---- what transformers computes ------------------------------------------------------------------


def batch_of(c, seed):
    V, T = c["config"]["vocab_size"], c["T"]
    stream = np.random.default_rng(seed).integers(0, V, size=(BATCH, T + 1), dtype=np.int32)
    stream[0, 0], stream[0, 1] = 0, V - 1
    tokens, targets = stream[:, :-1].copy(), stream[:, 1:].copy()
    targets.reshape(-1)[[5, T - 1, T + 3, T + 4]] = -1
    return torch.from_numpy(tokens), torch.from_numpy(targets)


def optimizer_of(model):
    named = list(model.parameters())
    return torch.optim.AdamW(
        [dict(params=[p for p in named if p.ndim >= 2], weight_decay=ADAMW["weight_decay"]),
         dict(params=[p for p in named if p.ndim < 2], weight_decay=0.0)],
        lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])


def run_steps(model, tokens, targets, steps):
    """Logits, loss and gradients, and the losses of AdamW steps; 1 step changes nothing that is
    kept."""
    optimizer, result = optimizer_of(model), dict(losses=[])
    for step in range(steps):
        logits = model(input_ids=tokens.long(), use_cache=False).logits
        loss = mean_loss(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        if step == 0:
            result.update(logits=logits.detach().clone(), loss=[loss.item()],
                          grad={name: g.detach().clone() for name, g in grads.items()})
        result["losses"].append(loss.item())
        norm = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
        for g in grads.values():
            g.mul_(clip_scale(norm))
        optimizer.step()
    return result


def greedy_of(model, prompt):
    """The tokens, and the smallest lead of the best logit over the next."""
    with torch.no_grad():
        ids = prompt[None].long()  # a mask, or token 0 would be taken for padding
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=GREEDY,
                             do_sample=False, eos_token_id=None, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    best = [step[0].double().topk(2).values for step in out.logits]
    lead = min((b[0] - b[1]).item() / b[0].abs().item() for b in best)
    return out.sequences[0, len(prompt):], lead


def compute(folder, c, dtype, tokens, targets):
    cls = getattr(transformers, c["cls"])
    with all_float64(cls) if dtype == torch.float64 else contextlib.nullcontext():
        greedy, lead = greedy_of(load_folder(folder, cls, dtype), tokens[0, :c["prompt"]])
        with NoFp32() if dtype == torch.float64 else contextlib.nullcontext():
            result = run_steps(load_folder(folder, cls, dtype), tokens, targets,
                               STEPS if c["grads"] else 1)
    result["grad"] = {name_in_file(cls, n): g for n, g in result["grad"].items()}
    return dict(result, greedy=greedy, lead=lead)


def distances(plain, exact, has_grads):
    """Of fp32 from float64: logits over the largest, the worst gradient, the worst loss."""
    largest = exact["logits"].abs().max()
    far = dict(logits=((plain["logits"] - exact["logits"]).abs().max() / largest).item())
    if has_grads:
        far["grads"] = max(distance(plain["grad"][n], g) for n, g in exact["grad"].items()
                           if g.norm() > FLAT)
        far["losses"] = max(abs(a - b) / b for a, b in zip(plain["losses"], exact["losses"]))
    return far


def make(name, c):
    """Other random numbers until the greedy tokens are clear and of several kinds, and gradients
    do not suffer from rounding."""
    for seed in range(c["seed"], c["seed"] + 50):
        folder = save_folder(name, c, seed)
        tokens, targets = batch_of(c, seed)
        exact = compute(folder, c, torch.float64, tokens, targets)
        if exact["lead"] < 2e-3 or len(set(exact["greedy"].tolist())) < 6:
            continue
        plain = compute(folder, c, torch.float32, tokens, targets)
        far = distances(plain, exact, c["grads"])
        if torch.equal(plain["greedy"], exact["greedy"]) and max(far.values()) < 4e-6:
            break
    else:
        sys.exit(f"{name}: no seed gives a clear case")
    write_expected(folder, c, tokens, targets, exact)
    flat = [n for n, g in exact["grad"].items() if g.norm() <= FLAT and c["grads"]]
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:22s} seed {seed:2d} {size:7d} bytes, loss {exact['losses'][0]:.3f}, largest "
          f"logit {exact['logits'].abs().max():.1f}, fp32: "
          + ", ".join(f"{k} {v:.1e}" for k, v in far.items())
          + (f"; no gradient: {' '.join(flat)}" if flat else ""), flush=True)


def write_expected(folder, c, tokens, targets, exact, **metadata):
    tensors = dict(tokens=tokens.numpy(), targets=targets.numpy(),
                   greedy=exact["greedy"].numpy().astype(np.int32))
    numbers = dict(logits=exact["logits"], loss=exact["loss"])
    if c["grads"]:
        numbers["losses"] = exact["losses"]
        numbers.update({f"grad.{n}": g for n, g in exact["grad"].items() if g.norm() > FLAT})
    for key, value in numbers.items():
        tensors[key] = torch.as_tensor(value, dtype=torch.float64).float().numpy()
    metadata.update({key: word(value) for key, value in ADAMW.items()}, prompt=str(c["prompt"]),
                    made_with=f"torch {torch.__version__}, transformers {transformers.__version__}")
    write_safetensors(folder / "expected.safetensors", tensors, metadata)


# ---- multimodal folders --------------------------------------------------------------------------


def multimodal_config(name, text):
    """A vision model as small as possible beside the text model."""
    vision = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                  image_size=8, patch_size=4, num_channels=1)
    if name.startswith("gemma3"):
        return transformers.Gemma3ForConditionalGeneration, transformers.Gemma3Config(
            text_config=text, vision_config=dict(vision, model_type="siglip_vision_model"),
            mm_tokens_per_image=4, boi_token_index=57, eoi_token_index=58, image_token_index=59)
    if name.startswith("qwen35"):
        small = dict(hidden_size=8, intermediate_size=8, depth=1, num_heads=2, in_channels=1,
                     patch_size=2, temporal_patch_size=1, out_hidden_size=text.hidden_size,
                     num_position_embeddings=4)
        return transformers.Qwen3_5ForConditionalGeneration, transformers.Qwen3_5Config(
            text_config=text, vision_config=small, image_token_id=57, video_token_id=58,
            vision_start_token_id=59, vision_end_token_id=60,
            tie_word_embeddings=text.tie_word_embeddings)
    return transformers.Mistral3ForConditionalGeneration, transformers.Mistral3Config(
        text_config=text, vision_config=dict(vision, head_dim=4, model_type="pixtral"),
        image_token_index=59, tie_word_embeddings=text.tie_word_embeddings)


def make_multimodal(name, source):
    """The text model of `source` inside; checked with transformers in fp32."""
    c, text = CASES[source], FOLDER / "families" / source
    folder = FOLDER / "families" / name
    config = AutoConfig.from_pretrained(text)
    config._name_or_path = ""  # a path of this machine
    cls, whole = multimodal_config(name, config)
    torch.manual_seed(3)
    model = cls(whole)
    inside = model.model.language_model
    tensors = load_file(text / "model.safetensors")
    inner = {k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")}
    inside.load_state_dict({k: t.float() for k, t in inner.items()})
    if "lm_head.weight" in tensors:
        model.lm_head.load_state_dict(dict(weight=tensors["lm_head.weight"].float()))
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    golden = load_file(text / "expected.safetensors")
    again = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = again(input_ids=golden["tokens"].long()).logits
    far = ((logits - golden["logits"]).abs().max() / golden["logits"].abs().max()).item()
    assert far < 1e-5, f"{name}: {far}"
    exact = dict(logits=golden["logits"], loss=golden["loss"], greedy=golden["greedy"])
    write_expected(folder, dict(c, grads=False), golden["tokens"], golden["targets"], exact,
                   text=source)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:22s}         {size:7d} bytes, as {source}, fp32: logits {far:.1e}", flush=True)


# ---- published models ----------------------------------------------------------------------------


def published(kind, cls, layers, width, mlp, heads, kv_heads, vocab, **rest):
    return dict(model_type=kind, architectures=[cls], num_hidden_layers=layers, hidden_size=width,
                intermediate_size=mlp, num_attention_heads=heads, num_key_value_heads=kv_heads,
                vocab_size=vocab, torch_dtype="bfloat16", **rest)


def gemma2(layers, width, mlp, heads, kv_heads, head_dim, scalar):
    return published("gemma2", "Gemma2ForCausalLM", layers, width, mlp, heads, kv_heads, 256000,
                     head_dim=head_dim, query_pre_attn_scalar=scalar, attn_logit_softcapping=50.0,
                     final_logit_softcapping=30.0, sliding_window=4096, rope_theta=10000.0,
                     max_position_embeddings=8192, rms_norm_eps=1e-6, attention_bias=False,
                     hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
                     cache_implementation="hybrid")


def gemma3_small(layers, width, mlp):
    return published("gemma3_text", "Gemma3ForCausalLM", layers, width, mlp, 4, 1, 262144,
                     head_dim=256, query_pre_attn_scalar=256, attn_logit_softcapping=None,
                     final_logit_softcapping=None, sliding_window=512, sliding_window_pattern=6,
                     rope_theta=1000000, rope_local_base_freq=10000, rope_scaling=None,
                     max_position_embeddings=32768, rms_norm_eps=1e-6, attention_bias=False,
                     hidden_activation="gelu_pytorch_tanh")


def gemma3_large(**text):
    """As published: what is not said has the class's default, 8 heads or 262,208 tokens too."""
    text.update(model_type="gemma3_text", sliding_window=1024,
                rope_scaling=dict(factor=8.0, rope_type="linear"))
    vision = dict(model_type="siglip_vision_model", hidden_size=1152, intermediate_size=4304,
                  num_hidden_layers=27, num_attention_heads=16, image_size=896, patch_size=14,
                  vision_use_head=False)
    return dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3",
                boi_token_index=255999, eoi_token_index=256000, image_token_index=262144,
                mm_tokens_per_image=256, text_config=text, vision_config=vision,
                torch_dtype="bfloat16")


def phi3(layers, width, mlp, heads, kv_heads, vocab, **rest):
    return published("phi3", "Phi3ForCausalLM", layers, width, mlp, heads, kv_heads, vocab,
                     rms_norm_eps=1e-5, attention_bias=False, hidden_act="silu", resid_pdrop=0.0,
                     embd_pdrop=0.0, **rest)


def phi4_mini():
    long_factor = [
        1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817,
        2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023,
        4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,
        10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
        22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64,
        32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77]
    return phi3(32, 3072, 8192, 24, 8, 200064, tie_word_embeddings=True, rope_theta=10000.0,
                rope_scaling=dict(type="longrope", long_factor=long_factor,
                                  short_factor=[1.0] * 48),
                partial_rotary_factor=0.75, max_position_embeddings=131072,
                original_max_position_embeddings=4096, sliding_window=262144, mlp_bias=False,
                lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)


def olmo(kind, layers, width, mlp, heads, kv_heads, vocab, context, **rest):
    return published(kind.lower(), f"{kind}ForCausalLM", layers, width, mlp, heads, kv_heads,
                     vocab, tie_word_embeddings=False, rope_theta=500000, rms_norm_eps=1e-6,
                     max_position_embeddings=context, attention_bias=False, hidden_act="silu",
                     **rest)


def olmo3(layers, width, mlp, heads, kv_heads):
    yarn = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8192,
                beta_fast=32.0, beta_slow=1.0, attention_factor=1.2079441541679836)
    return olmo("Olmo3", layers, width, mlp, heads, kv_heads, 100278, 65536, rope_scaling=yarn,
                sliding_window=4096, layer_types=pattern("sssf" * (layers // 4)))


def smollm3():
    return published("smollm3", "SmolLM3ForCausalLM", 36, 2048, 11008, 16, 4, 128256,
                     tie_word_embeddings=True, rope_theta=5000000.0, rope_scaling=None,
                     max_position_embeddings=65536, rms_norm_eps=1e-6, attention_bias=False,
                     mlp_bias=False, hidden_act="silu", no_rope_layer_interval=4,
                     no_rope_layers=[1, 1, 1, 0] * 9, sliding_window=None,
                     use_sliding_window=False, max_window_layers=28, pretraining_tp=1)


def granite(layers, width, mlp, heads, kv_heads, vocab, residual, attention, logits, **rest):
    kind = rest.pop("kind", ("granite", "GraniteForCausalLM"))
    return published(*kind, layers, width, mlp, heads, kv_heads, vocab, tie_word_embeddings=True,
                     embedding_multiplier=12.0, residual_multiplier=residual,
                     attention_multiplier=attention, logits_scaling=logits, rope_theta=1e7,
                     rope_scaling=None, max_position_embeddings=131072, rms_norm_eps=1e-5,
                     attention_bias=False, hidden_act="silu", **rest)


def granite4(layers, width, mlp, heads, kv_heads, *factors):
    return granite(layers, width, mlp, heads, kv_heads, 100352, *factors,
                   kind=("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
                   shared_intermediate_size=mlp, num_local_experts=0, num_experts_per_tok=0,
                   layer_types=["attention"] * layers, position_embedding_type="rope",
                   mamba_n_heads=16, mamba_d_head="auto", normalization_function="rmsnorm")


def ministral3(layers, width, mlp, tied, theta):
    yarn = dict(type="yarn", rope_type="yarn", rope_theta=theta, factor=16.0, beta_fast=32.0,
                original_max_position_embeddings=16384, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
    text = published("ministral3", "Ministral3ForCausalLM", layers, width, mlp, 32, 8, 131072,
                     head_dim=128, rope_parameters=yarn, max_position_embeddings=262144,
                     rms_norm_eps=1e-5, sliding_window=None, hidden_act="silu",
                     tie_word_embeddings=tied)
    vision = dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096, head_dim=64,
                  num_hidden_layers=24, num_attention_heads=16, image_size=1540, patch_size=14)
    return dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
                text_config=text, vision_config=vision, spatial_merge_size=2,
                image_token_index=10, dtype="bfloat16", tie_word_embeddings=tied)


def pythia(layers, width, heads, vocab=50304):
    config = published("gpt_neox", "GPTNeoXForCausalLM", layers, width, 4 * width, heads, None,
                       vocab, rotary_pct=0.25, rotary_emb_base=10000, layer_norm_eps=1e-5,
                       max_position_embeddings=2048, hidden_act="gelu", tie_word_embeddings=False,
                       use_parallel_residual=True)
    del config["num_key_value_heads"]
    return config


def starcoder2(layers, width, heads, kv_heads, theta):
    return published("starcoder2", "Starcoder2ForCausalLM", layers, width, 4 * width, heads,
                     kv_heads, 49152, rope_theta=theta, sliding_window=4096, use_bias=True,
                     max_position_embeddings=16384, norm_epsilon=1e-5, mlp_type="default",
                     hidden_act="gelu_pytorch_tanh", initializer_range=0.018042)


def qwen35_published(layers, width, mlp, heads, kv_heads, value_heads, tied):
    rotation = rope("default", 1e7, partial_rotary_factor=0.25, mrope_section=[11, 11, 10],
                    mrope_interleaved=True)
    text = published("qwen3_5_text", "Qwen3_5ForCausalLM", layers, width, mlp, heads, kv_heads,
                     248320, head_dim=256, rope_parameters=rotation, attn_output_gate=True,
                     full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128,
                     linear_value_head_dim=128, linear_num_key_heads=16,
                     linear_num_value_heads=value_heads, mamba_ssm_dtype="float32",
                     max_position_embeddings=262144, mlp_only_layers=[], mtp_num_hidden_layers=1,
                     mtp_use_dedicated_embeddings=False, rms_norm_eps=1e-6, hidden_act="silu")
    return dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5",
                text_config=dict(text, tie_word_embeddings=tied), vision_config=dict(depth=12),
                image_token_id=248056, dtype="bfloat16", tie_word_embeddings=tied)


# config.json with the fields that matter, and the number of parameters that others report for the
# published files; None: not found.
PUBLISHED = {
    "llama-3.2-1b": (published("llama", "LlamaForCausalLM", 16, 2048, 8192, 32, 8, 128256,
                               head_dim=64, tie_word_embeddings=True, rope_theta=500000.0,
                               rope_scaling=dict(rope_type="llama3", factor=32.0,
                                                 low_freq_factor=1.0, high_freq_factor=4.0,
                                                 original_max_position_embeddings=8192),
                               max_position_embeddings=131072, rms_norm_eps=1e-5), 1235814400),
    "gemma-2-2b": (gemma2(26, 2304, 9216, 8, 4, 256, 256), 2614341888),
    "gemma-2-9b": (gemma2(42, 3584, 14336, 16, 8, 256, 256), 9241705984),
    "gemma-2-27b": (gemma2(46, 4608, 36864, 32, 16, 128, 144), 27227128320),
    "gemma-3-270m": (gemma3_small(18, 640, 2048), 268098176),
    "gemma-3-1b": (gemma3_small(26, 1152, 6912), 999885952),
    "gemma-3-4b": (gemma3_large(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34),
                   3880263168),
    "gemma-3-12b": (gemma3_large(hidden_size=3840, intermediate_size=15360, num_hidden_layers=48,
                                 num_attention_heads=16, num_key_value_heads=8), 11766034176),
    "gemma-3-27b": (gemma3_large(hidden_size=5376, intermediate_size=21504, num_hidden_layers=62,
                                 num_attention_heads=32, num_key_value_heads=16, head_dim=128,
                                 query_pre_attn_scalar=168), 27009346304),
    "phi-3-mini-4k": (phi3(32, 3072, 8192, 32, 32, 32064, tie_word_embeddings=False,
                           rope_theta=10000.0, rope_scaling=None, sliding_window=2047,
                           max_position_embeddings=4096, original_max_position_embeddings=4096),
                      3821079552),
    "phi-4": (phi3(40, 5120, 17920, 40, 10, 100352, tie_word_embeddings=False, rope_theta=250000,
                   rope_scaling=None, sliding_window=None, max_position_embeddings=16384,
                   original_max_position_embeddings=16384), 14659507200),
    "phi-4-mini": (phi4_mini(), 3836021760),
    "olmo-2-1b": (olmo("Olmo2", 16, 2048, 8192, 16, 16, 100352, 4096), 1484916736),
    "olmo-2-7b": (olmo("Olmo2", 32, 4096, 11008, 32, 32, 100352, 4096), 7298617344),
    "olmo-2-13b": (olmo("Olmo2", 40, 5120, 13824, 40, 40, 100352, 4096), 13716198400),
    "olmo-3-7b": (olmo3(32, 4096, 11008, 32, 32), 7298011136),
    "olmo-3-32b": (olmo3(64, 5120, 27648, 40, 8), 32233522176),
    "smollm3-3b": (smollm3(), 3075098624),
    "granite-3.3-2b": (granite(40, 2048, 8192, 32, 8, 49159, 0.22, 0.015625, 8.0), 2533539840),
    "granite-3.3-8b": (granite(40, 4096, 12800, 32, 8, 49159, 0.22, 0.0078125, 16.0), 8170864640),
    "granite-4.0-350m": (granite4(28, 1024, 2048, 16, 4, 0.263, 0.015625, 4.0), 352379904),
    "granite-4.0-1b": (granite4(40, 2048, 4096, 16, 4, 0.22, 0.0078125, 8.0), 1631750144),
    "granite-4.0-micro": (granite4(40, 2560, 8192, 40, 8, 0.22, 0.015625, 10.0), 3402836480),
    "ministral-3-3b": (ministral3(26, 3072, 9216, True, 1e6), 3429006336),
    "ministral-3-8b": (ministral3(34, 4096, 14336, False, 1e6), None),
    "ministral-3-14b": (ministral3(40, 5120, 16384, False, 1e9), None),
    "pythia-70m": (pythia(6, 512, 8), 70426624),
    "pythia-160m": (pythia(12, 768, 12), 162322944),
    "pythia-410m": (pythia(24, 1024, 16), 405334016),
    "pythia-1b": (pythia(16, 2048, 8), 1011781632),
    "pythia-1.4b": (pythia(24, 2048, 16), 1414647808),
    "pythia-2.8b": (pythia(32, 2560, 32), 2775208960),
    "pythia-6.9b": (pythia(32, 4096, 32, 50432), 6857302016),
    "pythia-12b": (pythia(36, 5120, 40, 50688), 11846072320),
    "starcoder2-3b": (starcoder2(30, 3072, 24, 2, 999999.4420358813), None),
    "starcoder2-7b": (starcoder2(32, 4608, 36, 4, 1000000), None),
    "qwen3.5-0.8b": (qwen35_published(24, 1024, 3584, 8, 2, 16, True), None),
    "qwen3.5-2b": (qwen35_published(24, 2048, 6144, 8, 2, 16, True), None),
    "qwen3.5-4b": (qwen35_published(32, 2560, 9216, 16, 4, 32, True), None),
    "qwen3.5-9b": (qwen35_published(32, 4096, 12288, 16, 4, 32, False), None),
    "qwen3.5-27b": (qwen35_published(64, 5120, 17408, 24, 4, 48, False), None),
}


def count_parameters(folder, config):
    """Of the text model, read from config.json as transformers reads it."""
    (folder / "config.json").write_text(json.dumps(config))
    text = AutoConfig.from_pretrained(folder).get_text_config()
    text.pad_token_id = None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text)
    model.tie_weights()
    return text, sum(p.numel() for p in model.parameters())


def print_counts():
    """Prints the table, and writes published.txt for tests/test_families.c: in each line a name,
    the number of parameters and config.json."""
    lines = []
    print("| model | layers | width | heads | kv_heads | head_size | mlp_width | vocab |"
          " tied_head | parameters | reported |\n" + "|---" * 11 + "|")
    for name, (config, reported) in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as folder:
            text, count = count_parameters(pathlib.Path(folder), config)
        if reported not in (None, count):
            sys.exit(f"{name}: transformers counts {count}, others report {reported}")
        heads = text.num_attention_heads
        row = [name, text.num_hidden_layers, text.hidden_size, heads,
               getattr(text, "num_key_value_heads", heads),
               getattr(text, "head_dim", None) or text.hidden_size // heads,
               text.intermediate_size, text.vocab_size, word(text.tie_word_embeddings),
               f"{count:,}", "equal" if reported else "not found"]
        print("| " + " | ".join(map(str, row)) + " |")
        lines.append(f"{name} {count} {json.dumps(config)}\n")
    (FOLDER / "published.txt").write_text("".join(lines))


def write_defaults():
    """Writes defaults.txt for tests/test_families.c: in each line a config.json with sizes alone,
    and after a tab the same with the defaults of transformers."""
    lines = []
    for cls in sorted({c["cls"] for c in CASES.values()}):
        kind = getattr(transformers, cls).config_class.model_type
        sparse = dict(model_type=kind, architectures=[cls], vocab_size=100, hidden_size=256,
                      intermediate_size=96, num_hidden_layers=7, num_attention_heads=32,
                      num_key_value_heads=8, max_position_embeddings=64)
        if kind == "granitemoehybrid":
            sparse.update(layer_types=["attention"] * 7, num_local_experts=0, mamba_n_heads=16)
        whole = AutoConfig.for_model(**sparse).to_dict()
        for key in ("time_step_limit", "transformers_version", "_name_or_path", "dtype"):
            whole.pop(key, None)
        lines.append(f"{json.dumps(sparse)}\t{json.dumps(dict(whole, architectures=[cls]))}\n")
    (FOLDER / "defaults.txt").write_text("".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--counts", action="store_true", help="parameters of published models")
    parser.add_argument("--defaults", action="store_true", help="configs with sizes alone")
    parser.add_argument("cases", nargs="*", help="default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.counts:
        return print_counts()
    if args.defaults:
        return write_defaults()
    for name, c in CASES.items():
        if not args.cases or name in args.cases:
            make(name, c)
    for name, source in MULTIMODAL.items():
        if not args.cases or name in args.cases:
            make_multimodal(name, source)


if __name__ == "__main__":
    main()
