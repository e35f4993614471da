"""Plain NumPy: the data, kernels and brute-force answers that the documents' formulas are checked against."""

from collections.abc import Callable, Sequence

import numpy as np

_rng = np.random.default_rng(20190605)

X = _rng.uniform(-2.0, 2.0, (10, 2))
Y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * _rng.standard_normal(10)
Z = _rng.uniform(-2.0, 2.0, (4, 2))

LENGTHSCALE, VARIANCE, NOISE = THETA = (0.9, 1.7, 0.3)


def assert_close(actual, expected, tolerance: float = 1e-11) -> None:
    """Equal to within `tolerance` times the largest entry: small entries of a matrix are not asked for more."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


def squared_distances(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    return ((x[:, None, :] - z[None, :, :]) ** 2).sum(axis=-1)


def rbf(x: np.ndarray, z: np.ndarray, lengthscale: float = LENGTHSCALE, variance: float = VARIANCE) -> np.ndarray:
    return variance * np.exp(-squared_distances(x, z) / (2.0 * lengthscale**2))


def system(theta: Sequence[float] = THETA) -> np.ndarray:
    """`K̃` of the squared exponential kernel on `X`."""
    lengthscale, variance, noise = theta
    return rbf(X, X, lengthscale, variance) + noise * np.eye(len(X))


def system_slopes(theta: Sequence[float] = THETA) -> np.ndarray:
    """`δK̃` for lengthscale, variance and noise, by hand, stacked along the last axis."""
    lengthscale, variance, _ = theta
    K = rbf(X, X, lengthscale, variance)
    return np.stack([K * squared_distances(X, X) / lengthscale**3, K / variance, np.eye(len(X))], axis=-1)


def finite_differences(function: Callable[[np.ndarray], np.ndarray], theta: Sequence[float] = THETA) -> np.ndarray:
    """The slope of `function` along every parameter, stacked along the last axis.

    Five points: with a step of 1e-3 both truncation and rounding stay near 1e-12.
    """
    theta, step = np.asarray(theta, float), 1e-3
    columns = []
    for direction in step * np.eye(len(theta)):
        near = function(theta + direction) - function(theta - direction)
        far = function(theta + 2 * direction) - function(theta - 2 * direction)
        columns.append((8.0 * near - far) / (12.0 * step))
    return np.stack(columns, axis=-1)


def refits_without_each(K: np.ndarray, y: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Residual and variance of the function at each point, from a fit to all the others: n refits."""
    residuals, variances = np.empty_like(y), np.empty(len(y))
    for i in range(len(y)):
        rest = np.delete(np.arange(len(y)), i)
        weights = np.linalg.solve(K[np.ix_(rest, rest)] + noise * np.eye(len(rest)), K[rest, i])
        residuals[i] = y[i] - weights @ y[rest]
        variances[i] = K[i, i] - weights @ K[rest, i]
    return residuals, variances


def monomials(x: np.ndarray) -> np.ndarray:
    """Features whose inner product is `(a·b + 1)²`, for points in the plane."""
    a, b = x[:, 0], x[:, 1]
    root = np.sqrt(2.0)
    return np.stack([np.ones(len(x)), root * a, root * b, a**2, b**2, root * a * b], axis=1)
