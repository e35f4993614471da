"""The Gram matrix of values and gradients at n points in five columns, alone and with its pull-back, against GPyTorch.

The pull-back takes a symmetric cotangent of the matrix to the five lengthscales. Ours is compiled.
"""

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks import _peers
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

COLUMNS = 5
GOALS = {"Gram": 0.2, "with pull-back": 0.6}
TOLERANCE = 1e-10


def run(options: Options) -> RatioTable:
    table = RatioTable("what", "n", "d", "rows")
    if not _peers.installed({"gpytorch": _peers.gpytorch_gram}):
        return table
    for n in options.sizes_or(300):
        x, lengthscale = problem(n, COLUMNS).x, np.linspace(0.8, 1.5, COLUMNS)
        rows = n * (1 + COLUMNS)
        weights = np.random.default_rng(0).normal(size=(rows, rows))
        weights += weights.T
        for (what, goal), ours, theirs in zip(
            GOALS.items(), _ours(x, lengthscale, weights), _gpytorch(x, lengthscale, weights), strict=True
        ):
            timed = compare({"ours": ours, "gpytorch": theirs}, options)
            expected, found = np.asarray(timed["gpytorch"].answer), np.asarray(timed["ours"].answer)
            agree = bool(np.max(np.abs(found - expected)) <= TOLERANCE * np.max(np.abs(expected)))
            ours_s, theirs_s = (timed[side].seconds for side in ("ours", "gpytorch"))
            table.compare(what, n, COLUMNS, rows, peer="gpytorch", ours=ours_s, theirs=theirs_s, goal=goal, agree=agree)
    return table


def _ours(x: np.ndarray, lengthscale: np.ndarray, weights: np.ndarray) -> list[Side]:
    rows = kx.observe.gradients(x, np.zeros(len(x)), np.zeros_like(x)).x

    def gram(lengthscale: jax.Array) -> jax.Array:
        return kx.kernels.OfFunctionals(kx.RBF(lengthscale))(rows)

    def pulled(lengthscale: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.vdot(weights, gram(lengthscale))

    whole, slope = jax.jit(gram), jax.jit(jax.grad(pulled))
    at, by = jnp.asarray(lengthscale), jnp.asarray(weights)
    return [Side(lambda _: whole(at)), Side(lambda _: slope(at, by))]


def _gpytorch(x: np.ndarray, lengthscale: np.ndarray, weights: np.ndarray) -> list[Side]:
    import gpytorch
    import torch

    kernel = gpytorch.kernels.RBFKernelGrad(ard_num_dims=x.shape[1]).double()
    kernel.lengthscale = torch.as_tensor(lengthscale)
    inputs, by, raw = torch.as_tensor(x), torch.as_tensor(weights), kernel.raw_lengthscale
    softplus = torch.sigmoid(raw.detach())

    def gram(_: None) -> np.ndarray:
        with torch.no_grad():
            return kernel(inputs).to_dense().numpy()

    def pulled(_: None) -> np.ndarray:
        (gradient,) = torch.autograd.grad((kernel(inputs).to_dense() * by).sum(), raw)
        return (gradient / softplus).numpy().ravel()

    return [Side(gram), Side(pulled)]
