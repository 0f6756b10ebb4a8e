"""What a step of Loop costs in Python, beyond the passes and the calls of the library.

    python overhead.py [PARAMETERS] [STEPS]

Many small tensors, so that Python is most of what there is to see. Two measurements, medians in microseconds:

alone: `Loop.step` with passes and library left out: what this package's own code takes, over and over.
in a run: `Loop.step` against a loop written by hand that calls the library's two functions and nothing else (its
gradients lie in one place and are never looked at), the two in turns. This is more: after a pass and an update the
caches are cold, and torch makes an object for each `.grad` that is read and takes it apart again.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time

import torch

import hybrid_train
import hybrid_train.loop
from hybrid_train import _abi
from hybrid_train._library import lib


def make(count):
    torch.manual_seed(0)
    return [torch.nn.Parameter(0.1 * torch.randn(16, 16)) for _ in range(count)]


def loss_of(parameters, x):
    for p in parameters:
        x = x + p
    return x.square().mean()


def loop_over(parameters, steps):
    keys = dict(predictor="none", weight_decay=0, threads=1, device="cpu")
    return hybrid_train.Loop(parameters, steps=steps, lr=1e-9, **keys)  # nothing moves: all steps are alike


class ByHand:
    def __init__(self, count, steps):
        self.parameters = make(count)
        self.loop = loop_over(self.parameters, steps)
        self.gradient = torch.ones(16, 16)
        self.handle, self.question = self.loop._handle, ctypes.byref(self.loop._c_step)
        pointers = (ctypes.c_void_p * count)(*[self.gradient.data_ptr()] * count)
        lib.hy_loop_set_gradients(self.handle, pointers)

    def step(self, x):
        lib.hy_loop_next(self.handle, self.question)
        for p in self.parameters:
            p.grad = None
        loss = loss_of(self.parameters, x)
        loss.backward()
        assert lib.hy_loop_answer(self.handle, loss.item(), 1) == _abi.HY_OK


class WithLoop:
    def __init__(self, count, steps):
        self.parameters = make(count)
        self.loop = loop_over(self.parameters, steps)

    def step(self, x):
        self.loop.step(lambda batch: loss_of(self.parameters, x))


def seconds(call, *arguments):
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def in_a_run(count, steps):
    x = torch.randn(16, 16)
    ours, hand = WithLoop(count, steps), ByHand(count, steps)
    times = [(seconds(ours.step, x), seconds(hand.step, x)) for _ in range(steps)]
    step, by_hand = (statistics.median(column) * 1e6 for column in zip(*times))
    ours.loop.close()
    hand.loop.close()
    return step, by_hand


class Nothing:
    """A library that does nothing, at once."""

    def __init__(self, loop):
        self.c = loop._c_step
        self.hy_loop_next = self.hy_loop_set_gradients = lambda *_: 0

    def hy_loop_answer(self, *_):
        self.c.step += 1
        return 0

    def hy_loop_last(self, _, out):
        out._obj.reason = out._obj.obstacle = b""
        return True


def alone(count, steps):
    one = torch.tensor(1.0)
    parameters = make(count)
    for p in parameters:
        p.grad = torch.ones_like(p)
    loop = loop_over(parameters, 10)
    assert not loop.is_over
    loop._backward = lambda loss_function: (one, 1)
    loop._parameters.clear_gradients = lambda: None
    hybrid_train.loop.lib = Nothing(loop)
    try:
        return statistics.median(seconds(loop.step, None) for _ in range(steps)) * 1e6
    finally:
        hybrid_train.loop.lib = lib
        loop.close()


def adamw(count, steps):
    """What torch's own optimizer takes for its part, for comparison."""
    x, parameters, times = torch.randn(16, 16), make(count), []
    optimizer = torch.optim.AdamW(parameters, lr=1e-9, foreach=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(parameters, x).backward()
        times.append(seconds(optimizer.step))
    return statistics.median(times) * 1e6


def main():
    count, steps = (int(a) for a in (sys.argv[1:] + ["150", "1000"][len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    step, by_hand = in_a_run(count, steps)
    print(f"{count} parameters: Loop.step {step:.0f}, by hand {by_hand:.0f}")
    print(f"in Python: {alone(count, steps):.0f} alone, {step - by_hand:.0f} in a run")
    print(f"torch.optim.AdamW.step: {adamw(count, steps):.0f}")


if __name__ == "__main__":
    main()
