"""The synthetic problem of the timing benchmarks: ARD RBF, scaled, with noise."""

from typing import NamedTuple

import numpy as np


class Parameters(NamedTuple):
    """Plain values. A flat gradient has their order: variance, lengthscales, noise."""

    variance: float
    lengthscale: np.ndarray
    noise: float

    def flat(self) -> np.ndarray:
        return np.concatenate([[self.variance], self.lengthscale, [self.noise]])


class Problem(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    parameters: Parameters


def problem(n: int, d: int = 8) -> Problem:
    """`n` normal points in `d` dimensions, a wavy target with a little noise, and hyperparameters of a plausible size."""
    rng = np.random.default_rng(n + d)
    x = rng.normal(size=(n, d))
    y = np.sin(x @ np.linspace(0.2, 1.0, d)) + 0.1 * rng.normal(size=n)
    return Problem(x, y, Parameters(1.5, np.linspace(1.0, 3.0, d), 0.1))


def same(ours: tuple, theirs: tuple, tolerance: float = 1e-6) -> bool:
    """Whether two values and gradients agree, each relative to its own size."""

    def close(a: object, b: object) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        return bool(np.max(np.abs(a - b)) <= tolerance * (1e-12 + np.max(np.abs(b))))

    return all(close(a, b) for a, b in zip(ours, theirs, strict=True))
