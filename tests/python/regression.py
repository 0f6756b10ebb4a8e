"""Linear regression over NumPy arrays, by micro-batch number: the same numbers whenever a number is asked for."""

from __future__ import annotations

import numpy as np

FEATURES = 10
TRUTH = np.linspace(-1, 1, FEATURES, dtype=np.float32)


class Regression:
    """y = x w + b + noise. The best loss is that of the noise."""

    noise = 0.1

    def __init__(self):
        self.weights = {"w": np.zeros(FEATURES, np.float32), "b": np.zeros(1, np.float32)}
        self.grads = {name: np.zeros_like(w) for name, w in self.weights.items()}

    def batch(self, number, size=32):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((size, FEATURES), dtype=np.float32)
        y = x @ TRUTH + 0.5 + self.noise * rng.standard_normal(size, dtype=np.float32)
        return x, y

    def loss(self, number, size=32):
        """Fills the gradients."""
        x, y = self.batch(number, size)
        error = x @ self.weights["w"] + self.weights["b"] - y
        self.grads["w"][...] = 2 * (x.T @ error) / size
        self.grads["b"][...] = 2 * error.mean()
        return float((error**2).mean())

    def held_out(self):
        x, y = self.batch(10**9, 5000)
        return float(((x @ self.weights["w"] + self.weights["b"] - y) ** 2).mean())
