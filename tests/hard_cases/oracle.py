"""The same quantities in plain NumPy, float64."""

import numpy as np


def rbf(x, z=None, *, lengthscale=1.0, variance=1.0):
    """`variance · exp(-‖a-b‖²/2ℓ²)` for all pairs of rows."""
    x = np.asarray(x, np.float64)
    z = x if z is None else np.asarray(z, np.float64)
    squares = (((x[:, None] - z[None]) / lengthscale) ** 2).sum(-1)
    return variance * np.exp(-0.5 * squares)


def posterior(gram, cross, diagonal, y, noise):
    """Mean and variance at rows whose cross-Gram matrix with the data is `cross` (m, n)."""
    system = gram + noise * np.eye(len(y))
    mean = cross @ np.linalg.solve(system, y)
    variance = diagonal - np.einsum("ij,ji->i", cross, np.linalg.solve(system, cross.T))
    return mean, variance


def log_likelihood(gram, y, noise):
    """`log N(y; 0, K + noise·I)`."""
    system = gram + noise * np.eye(len(y))
    return -0.5 * (y @ np.linalg.solve(system, y) + np.linalg.slogdet(system)[1] + len(y) * np.log(2 * np.pi))
