#!/usr/bin/env python3
"""Trains runs that our program wrote down, in compiled PyTorch, with AdamW or with torch's own Muon.

    torch_time_to_loss.py --check
    torch_time_to_loss.py --optimizer adamw|muon [--device cuda] [--precision bf16|fp32] [--no-compile]

bench/time_to_loss.py starts it. Each line on standard input is a run, and each line it prints is the result:

    {"folder": DUMP, "lr": 1e-3, "steps": 1000, "warmup_steps": 50, "evals": 10}

DUMP is what `gpu_loss --only-dump` leaves: initial weights, token rows in order, settings (torch_gpt2.py says
more). `steps` may be fewer than were written down: the schedule ends there. One process makes many runs, because
a compiled model serves them all. The result has the keys of gpu_loss: val_loss, train_s, tokens_per_second,
held_out (step, compute, seconds, loss). Seconds are of training alone: every run begins with steps that are thrown
away, in which compilation happens, and the clock stands still while the held-out loss is taken. A run whose
loss is not finite has "diverged": true.

Weights and optimizer are fp32, products and attention bf16 under autocast. AdamW is fused. With Muon the matrices
of the blocks have torch.optim.Muon (adjust_lr_fn = match_rms_adamw, so that one learning rate serves both), q, k
and v each a matrix of its own; the token table, which is also the head, positions, norms and biases have AdamW.
"""
import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch

from torch_gpt2 import load_weights, loss_of, rate

WARM_STEPS = 3  # thrown away: compilation, and the first use of each kernel
PARTS = ("q", "k", "v")
SHAPE = ("layers", "heads", "vocab", "norm_eps")  # what loss_of reads of a run's settings


def is_hidden(name):
    """A matrix inside a block."""
    return name.startswith("blocks.") and name.endswith("weight") and ".norm" not in name


def split_qkv(weights):
    """The same parameters with q, k and v apart."""
    out = {}
    for name, values in weights.items():
        if not name.endswith("attn.qkv.weight"):
            out[name] = values
            continue
        for part, rows in zip(PARTS, values.detach().chunk(3)):
            out[name.replace("qkv", part)] = rows.clone().requires_grad_()
    return out


def join_qkv(weights, layers):
    """What loss_of expects; the copy is a few percent of one matmul."""
    out = dict(weights)
    for layer in range(layers):
        prefix = f"blocks.{layer}.attn."
        out[prefix + "qkv.weight"] = torch.cat([out.pop(f"{prefix}{part}.weight") for part in PARTS])
    return out


def make_optimizers(weights, run, kind, is_fused):
    muon = [p for name, p in weights.items() if kind == "muon" and is_hidden(name)]
    others = [p for name, p in weights.items() if not (kind == "muon" and is_hidden(name))]
    groups = [{"params": [p for p in others if p.dim() == 2], "weight_decay": run["weight_decay"]},
              {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0}]
    made = [torch.optim.AdamW(groups, lr=run["lr"], betas=(run["beta1"], run["beta2"]), eps=run["eps"],
                              fused=is_fused)]
    if muon:
        made.append(torch.optim.Muon(muon, lr=run["lr"], weight_decay=run["weight_decay"],
                                     adjust_lr_fn="match_rms_adamw"))
    return made


class Data:
    """The rows of one dump, on the device."""

    def __init__(self, folder, run, device):
        width = int(run["seq"]) + 1
        self.train, self.val = (
            torch.from_numpy(np.fromfile(os.path.join(folder, name), dtype=np.int32).reshape(-1, width))
            .to(device) for name in ("train.i32", "val.i32"))


class Peer:
    """A model that is compiled once and trained again and again."""

    def __init__(self, options):
        self.options = options
        self.is_cuda = options.device != "cpu"
        self.folder = self.data = self.weights = self.initial = self.shape = None
        # A compiled function is compiled again when a value it read has changed, and after eight times it runs
        # uncompiled, at half the speed. So it reads nothing that differs from run to run, and that limit is an error.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.loss = self.raw_loss if options.no_compile else torch.compile(self.raw_loss, dynamic=False)

    def raw_loss(self, weights, rows):
        if self.options.optimizer == "muon":
            weights = join_qkv(weights, int(self.shape["layers"]))
        with torch.autocast(self.options.device.split(":")[0], dtype=torch.bfloat16,
                            enabled=self.options.precision == "bf16"):
            return loss_of(weights, self.shape, rows.long())

    def open(self, folder):
        """Settings, rows and initial weights of a dump; parameters stay the same objects."""
        if folder == self.folder:
            return
        self.base = json.load(open(os.path.join(folder, "run.json")))
        shape = {name: self.base[name] for name in SHAPE}
        if self.shape not in (None, shape):
            raise ValueError(f"{folder} is another model than the one before")
        self.shape = shape
        self.data = Data(folder, self.base, self.options.device)
        loaded = load_weights(os.path.join(folder, "weights.safetensors"), self.options.device)
        if self.options.optimizer == "muon":
            loaded = split_qkv(loaded)
        self.initial = {name: values.detach() for name, values in loaded.items()}
        if self.weights is None:
            self.weights = {name: p.clone().requires_grad_() for name, p in self.initial.items()}
        self.folder = folder

    def reset(self):
        """Initial weights, no gradients, new optimizers."""
        with torch.no_grad():
            for name, p in self.weights.items():
                p.copy_(self.initial[name])
                p.grad = None
        self.optimizers = make_optimizers(self.weights, self.run, self.options.optimizer, self.is_cuda)

    def step(self, number):
        run = self.run
        size, parts = int(run["micro_batch"]), int(run["micro_batches"])
        total, lr = 0.0, rate(run, number)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = lr
        for first in range(number * size * parts, (number + 1) * size * parts, size):
            loss = self.loss(self.weights, self.data.train[first:first + size]) / (size * parts * run["seq"])
            loss.backward()
            total = total + loss.detach()
        if run["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), run["grad_clip"])
        for optimizer in self.optimizers:
            optimizer.step()
        return total

    @torch.no_grad()
    def held_out(self):
        total, size, rows = 0.0, int(self.run["micro_batch"]), self.data.val
        for first in range(0, len(rows), size):
            total += self.loss(self.weights, rows[first:first + size]).double().item()
        return total / (len(rows) * self.run["seq"])

    def now(self):
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def warm_up(self):
        begin = self.now()
        self.reset()
        for number in range(min(WARM_STEPS, int(self.run["steps"]))):
            self.step(number)
        self.held_out()
        self.reset()
        return self.now() - begin

    def train(self, every):
        """Held-out losses on the way: step, compute, seconds, loss; ends where one is not finite."""
        seconds, steps, points, begin = 0.0, int(self.run["steps"]), [], self.now()
        for number in range(1, steps + 1):
            self.step(number - 1)
            if number % every and number != steps:
                continue
            seconds += self.now() - begin
            points.append([number, number, seconds, self.held_out()])
            print(f"  step {number} of {steps}: held-out loss {points[-1][3]:.4f}", file=sys.stderr)
            if not math.isfinite(points[-1][3]):
                break
            begin = self.now()
        return points

    def make(self, job):
        self.open(job["folder"])
        self.run = {**self.base, "lr": job["lr"], "steps": job["steps"], "warmup_steps": job["warmup_steps"]}
        rows = int(self.run["micro_batch"] * self.run["micro_batches"])
        if job["steps"] * rows > len(self.data.train):
            raise ValueError(f"{job['folder']} has rows for {len(self.data.train) // rows} steps alone")
        warm = self.warm_up()
        points = self.train(max(1, job["steps"] // job["evals"]))
        step, _, seconds, loss = points[-1]
        tokens = rows * int(self.run["seq"])
        is_diverged = not math.isfinite(loss)
        return {"device": device_name(self.options.device), "torch": torch.__version__,
                "diverged": is_diverged, "val_loss": None if is_diverged else loss, "steps": step,
                "spent": step, "tokens_per_step": tokens, "tokens_per_second": step * tokens / seconds,
                "warm_up_s": warm, "train_s": seconds, "held_out": [] if is_diverged else points}


def device_name(device):
    return torch.cuda.get_device_name() if device != "cpu" else "CPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what is here, as JSON, and end")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    if options.check:
        print(json.dumps({"torch": torch.__version__, "has_cuda": torch.cuda.is_available(),
                          "has_muon": hasattr(torch.optim, "Muon")}))
        return
    peer = Peer(options)
    for line in sys.stdin:
        print(json.dumps(peer.make(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
