"""A run that can be killed: used by test_resume.py.

    python resumable.py KIND FOLDER STEPS [--stop-at N]

Says each step on a line of its own, and at the end the bits of the weights and what the caller's own part of the
checkpoint counted.
"""

from __future__ import annotations

import hashlib
import json
import sys

import hybrid_train as ht

KEYS = dict(lr=0.02, out=None, resume=True, save_every=7, keep=2, device="cpu", report=False, tensorboard=False)


def make(kind):
    if kind == "numpy":
        from regression import Regression

        task = Regression()
        return task.weights, task.grads, task.loss, lambda: task.weights["w"].tobytes() + task.weights["b"].tobytes()
    import torch
    from test_torch import bits, loss_of
    from test_torch import make as module_of

    torch.set_num_threads(1)
    module = module_of(torch.bfloat16 if kind == "bf16" else None)
    return module, None, lambda batch: loss_of(module, batch), lambda: bits(module)


def main(kind, folder, steps, stop_at):
    parameters, gradients, loss, bits = make(kind)
    state = {"asked": 0}

    def counted(batch):
        if loop.question_is_training():
            state["asked"] += 1
        return loss(batch)

    class Counting(ht.Loop):
        def question_is_training(self):
            return self._c_step.todo == 0

    loop = Counting(
        parameters,
        gradients=gradients,
        steps=steps,
        can_rewind=False,
        save_state=lambda: json.dumps(state).encode(),
        load_state=lambda data: state.update(json.loads(data)),
        **{**KEYS, "out": folder},
    )
    with loop:
        while not loop.is_over:
            info = loop.step(counted)
            print(info.step, flush=True)
            if info.step == stop_at:
                loop.stop()
                return
    print(hashlib.sha256(bits()).hexdigest(), state["asked"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[5]) if len(sys.argv) > 5 else -1)
