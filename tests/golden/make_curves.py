#!/usr/bin/env python3
"""Makes curves.safetensors: the losses of fifty AdamW steps of some golden models, by PyTorch.

    oracle/bin/python tests/golden/make_curves.py            # the environment of make_golden.py
    oracle/bin/python tests/golden/make_curves.py --check    # recomputes what is there

Parameters, batch and AdamW are those of the golden file. Step k trains on the file's batch with 5 (k
mod 4) added to every token and target, modulo the vocabulary (targets of -1 stay), so that the loss
falls slowly over four batches. Forward pass and AdamW are those of make_golden.py, which it compares
with transformers; all of it in float64, rounded to fp32 once. A tensor NAME (50) per model.
"""
import math
import sys

import numpy as np
import torch
from make_golden import (ADAMW, FOLDER, clip_scale, forward, mean_loss, shape_from,
                         write_safetensors)
from safetensors import safe_open

STEPS = 50
BATCHES = 4
SHIFT = 5
MODELS = ("gpt2", "llama", "qwen2", "qwen3")


def moved(values, shift, vocab):
    return torch.where(values >= 0, (values + shift) % vocab, values)


def curve(name):
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as f:
        t = {key: f.get_tensor(key) for key in f.keys()}
        s = shape_from(f.metadata())
    p = {key[6:]: value.double().requires_grad_() for key, value in t.items()
         if key.startswith("param.")}
    m = {n: torch.zeros_like(x) for n, x in p.items()}
    v = {n: torch.zeros_like(x) for n, x in p.items()}
    losses = []
    for step in range(STEPS):
        shift = SHIFT * (step % BATCHES)
        logits = forward(s, p, moved(t["tokens"], shift, s["vocab"]))
        loss = mean_loss(logits, moved(t["targets"], shift, s["vocab"]))
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        size = math.sqrt(sum(g.square().sum().item() for g in grads.values()))
        losses.append(loss.item())
        with torch.no_grad():
            for n, x in p.items():
                g = grads[n] * clip_scale(size)
                m[n] = ADAMW["beta1"] * m[n] + (1 - ADAMW["beta1"]) * g
                v[n] = ADAMW["beta2"] * v[n] + (1 - ADAMW["beta2"]) * g * g
                mean = m[n] / (1 - ADAMW["beta1"] ** (step + 1))
                root = (v[n] / (1 - ADAMW["beta2"] ** (step + 1))).sqrt()
                decay = ADAMW["weight_decay"] if x.ndim >= 2 else 0.0
                x -= ADAMW["lr"] * (mean / (root + ADAMW["eps"]) + decay * x)
    return losses


def main():
    torch.set_num_threads(1)
    path = FOLDER / "curves.safetensors"
    curves = {name: np.array(curve(name), dtype=np.float64) for name in MODELS}
    for name, losses in curves.items():
        print(f"{name}: {losses[0]:.4f} -> {losses[-1]:.4f}")
    if "--check" not in sys.argv[1:]:
        write_safetensors(path, {n: x.astype(np.float32) for n, x in curves.items()},
                          dict(steps=str(STEPS), batches=str(BATCHES), shift=str(SHIFT),
                               made_with=f"torch {torch.__version__}"))
        return
    with safe_open(path, framework="np") as f:
        for name, losses in curves.items():
            far = np.abs(f.get_tensor(name) / losses - 1).max()
            print(f"{name}: off by {far:.1e}")
            if far > 1e-6:
                sys.exit(f"{name}: the file differs from what PyTorch makes here")


if __name__ == "__main__":
    main()
