#!/usr/bin/env python3
"""Trains the GPT-2 run that our program wrote down, in plain PyTorch, and compares held-out losses.

    torch_gpt2.py FOLDER [--ours ours.json] [--device cuda] [--precision bf16|fp32|tf32]

FOLDER is what `gpu_loss --dump FOLDER` leaves: initial weights, the token rows of training and of the
held-out data in the order they are used, and the settings. Weights and optimizer are fp32, products and
attention bf16 under autocast, no compilation. ours.json is what gpu_loss printed.
"""
import argparse
import json
import math
import os
import struct
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

ALLOWED = 0.005  # relative difference of the two held-out losses


def load_weights(path, device):
    """A safetensors file of fp32 tensors, by name."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = np.fromfile(file, dtype=np.uint8)
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        values = torch.from_numpy(data[first:last].view(np.float32)).reshape(entry["shape"])
        weights[name] = values.to(device).requires_grad_()
    return weights


def block(w, prefix, x, run):
    B, T, C = x.shape
    h = F.layer_norm(x, (C,), w[prefix + "norm1.weight"], w[prefix + "norm1.bias"], run["norm_eps"])
    qkv = F.linear(h, w[prefix + "attn.qkv.weight"], w[prefix + "attn.qkv.bias"])
    q, k, v = (part.view(B, T, int(run["heads"]), -1).transpose(1, 2) for part in qkv.split(C, dim=2))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2).reshape(B, T, C)
    x = x + F.linear(out, w[prefix + "attn.out.weight"], w[prefix + "attn.out.bias"])
    h = F.layer_norm(x, (C,), w[prefix + "norm2.weight"], w[prefix + "norm2.bias"], run["norm_eps"])
    h = F.linear(h, w[prefix + "mlp.up.weight"], w[prefix + "mlp.up.bias"])
    h = F.gelu(h, approximate="tanh")
    return x + F.linear(h, w[prefix + "mlp.down.weight"], w[prefix + "mlp.down.bias"])


def loss_of(w, run, rows):
    """Sum of the losses of all targets in some rows of token ids."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    positions = w["embed.positions.weight"][: inputs.shape[1]]
    x = F.embedding(inputs, w["embed.tokens.weight"]) + positions
    for layer in range(int(run["layers"])):
        x = block(w, f"blocks.{layer}.", x, run)
    x = F.layer_norm(x, x.shape[-1:], w["final_norm.weight"], w["final_norm.bias"], run["norm_eps"])
    logits = F.linear(x, w["embed.tokens.weight"])
    if int(run["vocab"]) < logits.shape[-1]:  # padding rows of the table are not tokens
        logits[..., int(run["vocab"]):] = -math.inf
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def part_of(run, begin, step):
    """How far a step is from `begin` to the end, from 0 to 1."""
    span = run["steps"] - begin
    return min(1.0, max(0.0, (step - begin) / span)) if span > 0 else 1.0


def rate(run, step):
    """The learning rate of a step, counted from 0; as in src/optim/schedule.c."""
    warmup, kind, left = run["warmup_steps"], run["schedule"], 1.0
    if step < warmup:
        return run["lr"] * (step + 1) / warmup
    if kind == "linear":
        left = 1 - part_of(run, warmup, step)
    elif kind == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * part_of(run, warmup, step)))
    elif kind == "wsd" and run["cooldown"] > 0:
        falls_from = max(warmup, run["steps"] * (1 - run["cooldown"]))
        part = part_of(run, falls_from, step)
        left = 1 - (part if run["cooldown_shape"] == "linear" else math.sqrt(part))
    elif kind == "inverse_sqrt":
        raise ValueError("the PyTorch arms do not support the schedule inverse_sqrt")
    return run["lr"] * (run["min_lr_ratio"] + (1 - run["min_lr_ratio"]) * left)


class Run:
    def __init__(self, folder, device, precision):
        self.run = json.load(open(os.path.join(folder, "run.json")))
        self.device = device
        width = int(self.run["seq"]) + 1
        self.train_rows, self.val_rows = (
            torch.from_numpy(np.fromfile(os.path.join(folder, name), dtype=np.int32)
                             .reshape(-1, width).astype(np.int64))
            for name in ("train.i32", "val.i32"))
        self.weights = load_weights(os.path.join(folder, "weights.safetensors"), device)
        decayed = [p for p in self.weights.values() if p.dim() == 2]
        others = [p for p in self.weights.values() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.run["weight_decay"]},
             {"params": others, "weight_decay": 0.0}],
            lr=self.run["lr"], betas=(self.run["beta1"], self.run["beta2"]), eps=self.run["eps"],
            fused=device != "cpu")
        self.is_low = precision == "bf16"
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def loss(self, rows):
        rows = rows.to(self.device, non_blocking=True)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.is_low):
            return loss_of(self.weights, self.run, rows)

    def step(self, number):
        run = self.run
        size, parts = int(run["micro_batch"]), int(run["micro_batches"])
        first, total = number * size * parts, 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = rate(run, number)
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(parts):
            rows = self.train_rows[first + part * size: first + (part + 1) * size]
            loss = self.loss(rows) / (size * parts * run["seq"])
            loss.backward()
            total = total + loss.detach()
        if run["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), run["grad_clip"])
        self.optimizer.step()
        return total

    @torch.no_grad()
    def held_out(self):
        total, size = 0.0, int(self.run["micro_batch"])
        for first in range(0, len(self.val_rows), size):
            total += self.loss(self.val_rows[first:first + size]).double().item()
        return total / (len(self.val_rows) * self.run["seq"])


def train(work, points):
    """Held-out loss at the end and means of the training loss over equal parts of the run."""
    steps = int(work.run["steps"])
    every, losses, curve = max(1, steps // points), [], []
    for number in range(steps):
        losses.append(work.step(number))
        if (number + 1) % every == 0:
            curve.append([number + 1, torch.stack(losses).double().mean().item()])
            losses = []
            print(f"  step {number + 1} of {steps}: loss {curve[-1][1]:.4f}", file=sys.stderr)
    return work.held_out(), curve


def compare(theirs, path):
    ours = json.load(open(path))
    difference = ours["val_loss"] / theirs["val_loss"] - 1
    print(f"{'step':>6} {'ours':>9} {'PyTorch':>9}   mean training loss up to there")
    for (step, mine), (_, other) in zip(ours["curve"], theirs["curve"]):
        print(f"{step:6} {mine:9.4f} {other:9.4f}")
    print(f"{ours['model']}, {ours['precision']}, {ours['steps']} steps of {ours['tokens_per_step']:,} "
          f"tokens: held-out loss {ours['val_loss']:.4f}, PyTorch {theirs['val_loss']:.4f}, "
          f"difference {100 * difference:+.3f} % (allowed {100 * ALLOWED:.1f} %): "
          f"{'PASS' if abs(difference) <= ALLOWED else 'FAIL'}")
    print(f"  seconds: ours {ours['run_s']:.1f}, PyTorch (eager) {theirs['run_s']:.1f}")
    return abs(difference) <= ALLOWED


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--ours", help="what gpu_loss printed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32", "tf32"])
    parser.add_argument("--points", type=int, default=10)
    options = parser.parse_args()
    work = Run(options.folder, options.device, options.precision)
    begin = time.perf_counter()
    val_loss, curve = train(work, options.points)
    theirs = {"val_loss": val_loss, "curve": curve, "run_s": time.perf_counter() - begin}
    if options.ours is None:
        print(json.dumps(theirs))
        return
    sys.exit(0 if compare(theirs, options.ours) else 1)


if __name__ == "__main__":
    main()
