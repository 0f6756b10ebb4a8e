"""A loop that may be one of several ranks: used by test_ranks.py.

    python ranked.py STEPS [--fail-at N]

Says each step's loss on a line of its own; then who it was, which numbers it was asked for, and the bits of the weights.
Ranks begin with different weights.
"""

from __future__ import annotations

import hashlib
import sys

import hybrid_train as ht
from regression import Regression


def main(steps, fail_at):
    task, asked = Regression(), []
    who = ht.find_rank()
    task.weights["w"][...] = who.rank

    def loss(batch):
        asked.append(batch)
        if len(asked) == fail_at and who.rank == 1:
            raise ValueError("rank 1 has had enough")
        return task.loss(batch, 16 + batch % 4), 16 + batch % 4

    with ht.Loop(
        task.weights,
        gradients=task.grads,
        steps=steps,
        lr=0.02,
        grad_accum_steps=4,
        evaluate=task.held_out,
        eval_every=5,
        predictor="none",
        transport="sockets",
        device="cpu",
        threads=1,
    ) as loop:
        ranks = loop.ranks()
        assert (ranks is None) == (who.count == 1)
        assert ranks is None or (ranks.rank, ranks.count) == (who.rank, who.count)
        while not loop.is_over:
            print(repr(loop.step(loss).loss), flush=True)
    bits = task.weights["w"].tobytes() + task.weights["b"].tobytes()
    print(who.rank, who.count, sum(asked), hashlib.sha256(bits).hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else -1)
