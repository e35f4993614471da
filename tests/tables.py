"""What the laws are tested over: every kernel, solver and floating type."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx


class Tent(kx.AbstractKernel):
    """A kernel of a user's own: `max(0, 1 - |a_0 - b_0|/width)`."""

    width: jax.Array = kx.positive(default=2.0)

    def pair(self, a, b):
        return jnp.maximum(0.0, 1.0 - jnp.abs(a[0] - b[0]) / self.width)


def _features(a):
    return jnp.stack([a[0], a[1], a[0] * a[1]])


KERNELS = {
    "rbf": kx.RBF(lengthscale=0.8),
    "rbf_ard": kx.RBF(lengthscale=[0.7, 1.9]),
    "matern12": kx.Matern12(lengthscale=1.2),
    "matern32": kx.Matern32(lengthscale=[0.9, 1.4]),
    "matern52": kx.Matern52(lengthscale=1.1),
    "rational_quadratic": kx.RationalQuadratic(lengthscale=0.9, alpha=0.6),
    "periodic": kx.Periodic(lengthscale=[0.8, 1.3], period=[1.7, 2.3]),
    "cosine": kx.Cosine(period=1.9),
    "linear": kx.Linear(variance=[0.5, 2.0]),
    "polynomial": kx.Polynomial(degree=3, scale=0.4, offset=0.7),
    "constant": kx.Constant(variance=1.6),
    "sum": 1.5 * kx.RBF() + kx.Linear() + 0.3,
    "product": kx.Matern52() * kx.Periodic(period=3.0),
    "power": (0.6 * kx.RBF() + 0.2) ** 2,
    "select": kx.Select(kx.RBF(lengthscale=0.5), columns=1),
    "warp": kx.Warp(kx.RBF(), eqx.nn.MLP(2, 3, 4, 1, activation=jnp.tanh, key=jax.random.key(1))),
    "feature_map": kx.FeatureMap(_features),
    "arc_cosine_0": kx.ArcCosine(order=0, weight_variance=[0.7, 1.6], bias_variance=0.4),
    "arc_cosine_1": kx.ArcCosine(order=1, weight_variance=0.8, bias_variance=0.0),
    "arc_cosine_2": kx.ArcCosine(order=2, weight_variance=[0.3, 0.2], bias_variance=0.2),
    "nngp_relu": kx.NNGP(depth=2, weight_variance=1.7, bias_variance=[0.2, 0.1, 0.3]),
    "ntk_relu": kx.NTK(depth=1, weight_variance=[1.5, 1.9], bias_variance=0.3),
    "ntk_erf": kx.NTK(depth=1, activation=kx.kernels.Erf(), weight_variance=1.4, bias_variance=0.5),
    "own": Tent(),
}
SOLVERS = {"cholesky": kx.Cholesky(), "eigh": kx.Eigh()}
TOLERANCES = {np.float32: 2e-4, np.float64: 1e-10}


def points(n: int, seed: int = 0, d: int = 2) -> np.ndarray:
    """Random rows, two of them equal."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    x[-1] = x[0]
    return x


def targets(x: np.ndarray, seed: int = 1) -> np.ndarray:
    """A smooth function of the rows with noise."""
    return np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.2 * np.random.default_rng(seed).normal(size=len(x))


def gradient_by_differences(function, vector: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of a vector."""
    answer = np.zeros_like(vector)
    for i in range(len(vector)):
        move = np.zeros_like(vector)
        move[i] = step
        answer[i] = (float(function(vector + move)) - float(function(vector - move))) / (2 * step)
    return answer
