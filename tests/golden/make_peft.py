#!/usr/bin/env python3
"""make_peft.py: adapters as PEFT saves them, with what it computes and how it trains them.

    make_peft.py [NAME..]     writes tests/golden/peft/NAME, all of them or those named

A case is an adapter beside a folder of tests/golden/hf (make_hf.py) or tests/golden/families
(make_families.py), saved by PEFT's save_pretrained, and
expected.safetensors: a batch with its logits, the gradient of every tensor of the adapter under the name it
has in the file, and the losses of fifty AdamW steps. All of it is computed by PEFT and transformers in float64
from the numbers as saved, and rounded to fp32 once. The script prints how far PEFT in fp32 is from that. Needs
torch, transformers, peft and safetensors; the tests themselves need none of them.
"""
import os
import shutil
import sys
import zlib

if os.environ.get("PYTHONHASHSEED") != "0":  # PEFT writes target_modules in the order of a set
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, PYTHONHASHSEED="0"))

import torch
from make_curves import BATCHES, SHIFT, STEPS, moved
from make_families import all_float64 as family_float64
from make_golden import FOLDER, all_float64
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

BATCH, SEQ = 2, 9
ADAMW = dict(lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
GRAD_CLIP = 1.0
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

CASES = {
    # name: base, type that the adapter is saved in, LoraConfig
    "gpt2": ("gpt2", torch.float32, dict(r=3, lora_alpha=6, fan_in_fan_out=True,
                                         target_modules=["c_attn", "c_proj", "c_fc"])),
    "gpt2-untied-wte": ("gpt2-untied", torch.float32,
                        dict(r=2, lora_alpha=3, fan_in_fan_out=True, target_modules=["c_attn"],
                             modules_to_save=["wte"])),
    "llama": ("llama", torch.float32, dict(r=4, lora_alpha=8, target_modules=ATTENTION + MLP)),
    "llama-whole": ("llama", torch.float32,
                    dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"],
                         modules_to_save=["lm_head", "embed_tokens"])),
    "mistral": ("mistral", torch.bfloat16, dict(r=4, lora_alpha=5,
                                                target_modules=["q_proj", "v_proj"])),
    "qwen2": ("qwen2", torch.float32, dict(r=5, lora_alpha=4, use_rslora=True,
                                           target_modules=["k_proj", *MLP])),
    "qwen2-tied": ("qwen2", torch.float32,
                   dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"],
                        modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "qwen3": ("qwen3", torch.float32, dict(r=3, lora_alpha=3, target_modules="all-linear")),
    "qwen3-one": ("qwen3-bias", torch.float32,
                  dict(r=1, lora_alpha=0.75, target_modules=["o_proj", "up_proj", "k_proj"])),
    "phi3": ("../families/phi3-window", torch.float32,
             dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
    "neox": ("../families/neox-parallel", torch.float32,
             dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense", "dense_h_to_4h"],
                  modules_to_save=["final_layer_norm", "post_attention_layernorm"])),
    "neox-whole": ("../families/neox-serial", torch.float32,
                   dict(r=2, lora_alpha=3, target_modules=["dense_4h_to_h"],
                        modules_to_save=["query_key_value"])),
    "neox-head": ("../families/neox-old", torch.float32,
                  dict(r=2, lora_alpha=4, target_modules=["dense"],
                       modules_to_save=["lm_head", "embed_in"])),
    "gemma3": ("../families/gemma3-dual", torch.float32,
               dict(r=2, lora_alpha=4, target_modules="all-linear",
                    modules_to_save=["post_attention_layernorm", "q_norm"])),
    "granite4": ("../families/granite4-rope", torch.float32,
                 dict(r=3, lora_alpha=5, use_rslora=True,
                      target_modules=["q_proj", "input_linear", "output_linear"],
                      modules_to_save=["post_attention_layernorm"])),
    "olmo2": ("../families/olmo2-plain", torch.float32,
              dict(r=2, lora_alpha=4, target_modules=["v_proj", "o_proj", "gate_proj"],
                   modules_to_save=["post_attention_layernorm", "k_norm"])),
    "starcoder2": ("../families/starcoder2-yarn", torch.float32,
                   dict(r=2, lora_alpha=5, target_modules=["k_proj", "c_fc", "c_proj"],
                        modules_to_save=["o_proj", "input_layernorm"])),
    "qwen35": ("../families/qwen35-grouped", torch.float32,
               dict(r=2, lora_alpha=3, target_modules="all-linear",
                    modules_to_save=["linear_attn.norm", "q_norm"])),
    "qwen35-some": ("../families/qwen35-odd", torch.float32,
                    dict(r=3, lora_alpha=4, target_modules=["q_proj", "in_proj_qkv", "in_proj_a"],
                         modules_to_save=["out_proj"])),
}


def load_base(base, dtype):
    """The folder's name is relative, so that the adapter's config names no place of one machine."""
    return AutoModelForCausalLM.from_pretrained(base, dtype=dtype, attn_implementation="eager")


def fill(model, dtype):
    """Neither A nor B is what it begins as: with B at zero most mistakes would not show."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if "lora_" in name:
                p.copy_(torch.randn_like(p) * 0.1)
            else:
                p.add_(torch.randn_like(p) * 0.1)
            p.data = p.data.to(dtype)


def save(folder, name):
    base, dtype, lora = CASES[name]
    model = get_peft_model(load_base(base, torch.float32),
                           LoraConfig(task_type="CAUSAL_LM", **lora))
    fill(model, dtype)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.remove(folder / "README.md")


def trained(model):
    """What is trained, under the names that files have; a table that is head too has two."""
    return {n.replace(".modules_to_save.default", "").replace(".default", ""): p
            for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


def load(folder, name, dtype):
    model = PeftModel.from_pretrained(load_base(CASES[name][0], dtype), folder, is_trainable=True)
    model = model.to(dtype).eval()  # no dropout; gradients as in training
    saved = load_file(folder / "adapter_model.safetensors")
    params = trained(model)
    assert sorted(saved) == sorted(params), (sorted(saved), sorted(params))
    for n, p in params.items():
        assert torch.equal(p.detach(), saved[n].to(dtype)), n
    return model, params


def loss_of(model, batch, step):
    tokens, targets = (moved(t.long(), SHIFT * (step % BATCHES), model.config.vocab_size)
                       for t in batch)
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                             ignore_index=-1)
    return loss, logits


def compute(folder, name, batch, dtype):
    model, params = load(folder, name, dtype)
    out = {}
    once = list({id(p): p for p in params.values()}.values())
    vectors = dict(params=[p for p in once if p.dim() == 1], weight_decay=0)
    optimizer = torch.optim.AdamW([dict(params=[p for p in once if p.dim() > 1]), vectors], **ADAMW)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logits = loss_of(model, batch, step)
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach()
            out.update({f"grad.{n}": p.grad.clone() for n, p in params.items()})
        norm = torch.stack([p.grad.norm() for p in once]).norm()
        for p in once:
            p.grad *= min(1.0, GRAD_CLIP / norm.item())
        optimizer.step()
        losses.append(loss.item())
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    return out


def batch_of(name):
    vocab = AutoConfig.from_pretrained(CASES[name][0]).vocab_size
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tokens, targets = (torch.randint(0, vocab, (BATCH, SEQ), dtype=torch.int32, generator=generator)
                       for _ in range(2))
    targets[0, 0] = targets[1, 4] = -1
    return tokens, targets


def make(name):
    folder = FOLDER / "peft" / name
    torch.manual_seed(zlib.crc32(name.encode()))
    save(folder, name)
    batch = batch_of(name)
    cls = type(load_base(CASES[name][0], torch.float32))
    with all_float64(), family_float64(cls):
        exact = compute(folder, name, batch, torch.float64)
    plain = compute(folder, name, batch, torch.float32)
    far = {key: ((plain[key] - exact[key]).norm() / exact[key].norm()).item() for key in exact}
    for key, value in exact.items():
        assert value.abs().max() > 1e-5, f"{name}: {key} is zero"
    worst = max(value for key, value in far.items() if key.startswith("grad."))
    print(f"{name}: loss {exact['losses'][0]:.4f} -> {exact['losses'][-1]:.4f}; fp32 is off by "
          f"{far['logits']:.1e} (logits), {worst:.1e} (gradients), {far['losses']:.1e} (losses)")
    tensors = {key: value.float().contiguous() for key, value in exact.items()}
    tensors["tokens"], tensors["targets"] = batch
    facts = dict(base=CASES[name][0], lr=ADAMW["lr"], beta1=ADAMW["betas"][0],
                 beta2=ADAMW["betas"][1], eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"],
                 grad_clip=GRAD_CLIP)
    save_file(tensors, folder / "expected.safetensors", {k: str(v) for k, v in facts.items()})


def main():
    os.chdir(FOLDER / "hf")
    for name in sys.argv[1:] or CASES:
        make(name)


if __name__ == "__main__":
    main()
