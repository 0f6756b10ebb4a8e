"""A run of a module with blocks that is killed again and again: used by test_resume.py and long_blocks.py.

    python killed_blocks.py FOLDER [MOMENT...]

A moment is CALL:N, for example hold:17: the run ends with SIGKILL before the Nth such call of a process. CALL is a
function of the store of units (hold, release, fetch, add_gradients), answer, save (in the middle of a checkpoint), saved
(after one), or time (N milliseconds after the start). Each moment is a process that continues the run; a last one
ends it and says the bits of the module and of its losses.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import traceback

import hybrid_train as ht
import torch
from hybrid_train import _units
from torch import nn

STEPS = 160
KEYS = dict(lr=0.01, resume=True, save_every=3, keep=2, device="cpu", report=False, tensorboard=False, predictor="none")


class Net(nn.Module):
    """BatchNorm, dropout from torch's generator, and a parameter outside of blocks."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1)) for _ in range(4)
        )
        self.head = nn.Linear(12, 1)

    def loss(self, batch):
        (x,) = batch
        y = x * self.scale
        for layer in self.layers:
            y = y + layer(y)
        return (self.head(y)[:, 0] - x.sum(1).tanh()).square().mean(), len(x)


class Moment:
    def __init__(self, text):
        self.call, _, count = text.partition(":")
        self.left = int(count or 0)
        if self.call == "time":
            threading.Timer(self.left / 1000, self.kill).start()
        elif hasattr(_units.LibraryStore, self.call):
            self.replace(_units.LibraryStore, self.call)
        elif self.call == "answer":
            self.replace(ht.Loop, "_give")

    def replace(self, owner, name):
        function = getattr(owner, name)

        def counted(*arguments, **more):
            self.reached(self.call)
            return function(*arguments, **more)

        setattr(owner, name, counted)

    def reached(self, call):
        if call == self.call:
            self.left -= 1
            if self.left == 0:
                self.kill()

    @staticmethod
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)


def train(folder, moment):
    torch.manual_seed(0)
    module = Net()
    points = torch.utils.data.TensorDataset(torch.randn(70, 12))
    loader = torch.utils.data.DataLoader(points, 8, shuffle=True)

    def save_state():
        moment.reached("save")
        return b"mine"

    callbacks = dict(save_state=save_state, on_save=lambda *_: moment.reached("saved"))
    places = dict(weights_place="pinned", grads_place="pinned", optim_place="pinned")
    with ht.Loop(module, blocks=True, steps=STEPS, out=folder, **KEYS, **callbacks, **places) as loop:
        loop.run(module.loss, data=loader)
    bits = b"".join(t.numpy().tobytes() for t in module.state_dict().values())
    losses = ht.read_run(folder).column("loss")
    print(hashlib.sha256(bits).hexdigest(), hashlib.sha256(repr(losses).encode()).hexdigest(), len(losses))


def main(folder, moments):
    torch.set_num_threads(1)
    for text in (*moments, ""):
        sys.stdout.flush()
        child = os.fork()  # no thread has computed in this process yet
        if child == 0:
            try:
                train(folder, Moment(text))
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        expected = (0, -signal.SIGKILL) if text.startswith("time") else (-signal.SIGKILL if text else 0,)
        if status not in expected:
            sys.exit(f"the process with the moment {text!r} ended with {status}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
