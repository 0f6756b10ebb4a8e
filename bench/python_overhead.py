#!/usr/bin/env python3
"""python_overhead.py: what a step of hybrid_train.Loop costs in Python, in a run in which torch computes.

    python3 bench/python_overhead.py [STEPS]

A module of 150 parameters on one core of the CPU, whose step takes about 5 ms. Three loops over copies of it
take turns, step by step, so that all find the caches as torch leaves them:

    Loop        hybrid_train.Loop.step
    bare        the library's functions through ctypes, with arguments that were prepared once: no gradient is looked
                at or told (the library reads them where the first ones were)
    reading     the same, but every .grad is read and its address told, as any loop in Python has to

Times are of the calling thread (it sleeps while the library updates), so that other programs do not count.

Needs torch and the package of python/ (`make python`).
"""
import ctypes
import statistics
import sys
import time

import torch

import hybrid_train
from hybrid_train import _abi
from hybrid_train._library import lib, sized

ROWS, INPUTS, WIDTH, BLOCKS = 16, 16, 64, 36
ROUNDS = 9


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


class Model(torch.nn.Module):
    """A residual network: 36 blocks of 4 parameters, a layer before and a norm and a layer behind them: 150."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(INPUTS, WIDTH), torch.nn.Linear(WIDTH, 1)
        self.blocks = torch.nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.last(self.norm(self.blocks(self.first(x)))).square().mean()


class Run:
    def __init__(self, steps, x):
        torch.manual_seed(0)
        self.module, self.x = Model(), x
        self.parameters = list(self.module.parameters())
        # No jumps, so that all steps are alike.
        self.loop = hybrid_train.Loop(
            self.parameters, steps=steps, lr=1e-9, weight_decay=0, predictor="none", threads=1, device="cpu"
        )

    def loss(self, batch=0):
        return self.module(self.x)


class WithLoop(Run):
    def step(self):
        self.loop.step(self.loss)


class Bare(Run):
    def __init__(self, steps, x):
        super().__init__(steps, x)
        self.handle, self.question = self.loop._handle, sized(_abi.hy_loop_step())
        self.kept = [torch.ones_like(p) for p in self.parameters]
        self.tell(self.kept)

    def tell(self, grads):
        pointers = (ctypes.c_void_p * len(grads))(*[g.data_ptr() for g in grads])
        assert lib.hy_loop_set_gradients(self.handle, pointers) == _abi.HY_OK

    def backward(self):
        lib.hy_loop_next_sized(self.handle, *self.question)
        for p in self.parameters:
            p.grad = None
        loss = self.loss()
        loss.backward()
        return loss

    def step(self):
        assert lib.hy_loop_answer(self.handle, self.backward().item(), 1) == _abi.HY_OK


class Reading(Bare):
    def step(self):
        loss = self.backward()
        self.tell([p.grad for p in self.parameters])
        assert lib.hy_loop_answer(self.handle, loss.item(), 1) == _abi.HY_OK


def cpu_seconds(call):
    began = time.thread_time()
    call()
    return time.thread_time() - began


def turns(steps, x):
    """Medians. Where tensors happen to lie makes a difference of tens of microseconds: so there are several of each."""
    kinds = [WithLoop, Bare, Reading]
    times = {kind: [] for kind in kinds}
    for r in range(ROUNDS):
        kinds = kinds[1:] + kinds[:1]  # the order changes, so that none is always first
        runs = [kind(steps, x) for kind in kinds]
        for i in range(steps):
            for k in range(len(runs)):
                run = runs[(k + i) % len(runs)]
                seconds = cpu_seconds(run.step)
                if i >= steps // 10:
                    times[type(run)].append(seconds)
        for run in runs:
            run.loop.close()
    return [statistics.median(times[kind]) * 1e6 for kind in (WithLoop, Bare, Reading)]


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # on ARM it takes longer for products this small
    torch.manual_seed(1)
    x = torch.randn(ROWS, INPUTS)
    ours, bare, reading = turns(steps, x)
    print(f"150 parameters, torch {torch.__version__}, {ROUNDS} x {steps} steps; microseconds of the calling thread, medians")
    print(f"a step by hand, bare {bare:.0f}; reading every .grad {reading:.0f}; Loop.step {ours:.0f}")
    print(f"Loop.step above bare {ours - bare:.0f}, {100 * (ours - bare) / bare:.1f} % of the step: {reading - bare:.0f} to "
          f"read .grad, {ours - reading:.0f} for the rest")


if __name__ == "__main__":
    main()
