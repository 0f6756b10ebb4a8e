"""Linear regression in NumPy, with the library's phases and optimizer. The solution is known.

python regression.py [none]      "none": without prediction, for comparison
"""

import sys

import numpy as np

import hybrid_train

FEATURES, BATCH, NOISE = 20, 64, 0.1
truth = np.linspace(-2, 2, FEATURES, dtype=np.float32)

weights = {"w": np.zeros(FEATURES, np.float32), "b": np.zeros(1, np.float32)}
grads = {name: np.zeros_like(w) for name, w in weights.items()}


def samples(number, count):
    """The samples of a micro-batch; the same number always gives the same samples."""
    random = np.random.default_rng(number)
    x = random.standard_normal((count, FEATURES), dtype=np.float32)
    return x, x @ truth + 0.5 + NOISE * random.standard_normal(count, dtype=np.float32)


def error_of(x, y):
    return x @ weights["w"] + weights["b"] - y


def loss(number):
    """The loss of a micro-batch. It also writes the gradients into the arrays of the loop."""
    x, y = samples(number, BATCH)
    error = error_of(x, y)
    grads["w"][...] = 2 / BATCH * (x.T @ error)
    grads["b"][...] = 2 * error.mean()
    return float((error**2).mean())


def held_out():
    error = error_of(*samples(2**62, 20000))
    return float((error**2).mean()), error.size


def main():
    predictor = sys.argv[1] if len(sys.argv) > 1 else "outer"
    with hybrid_train.Loop(
        weights, gradients=grads, steps=400, lr=0.1, predictor=predictor, evaluate=held_out, weight_decay=0
    ) as loop:
        summary = loop.run(loss)
    print(f"{summary.steps} steps, {summary.moves} jumps, {summary.rejected_moves} of them rejected")
    print(f"held-out loss {summary.val_loss:.5f}, the best possible {NOISE**2:.5f}")
    print(f"weights are off by {np.abs(weights['w'] - truth).max():.4f} at most")


if __name__ == "__main__":
    main()
