"""The Gram matrix of infinitely wide ReLU networks of depth 5, jitted, against an RBF Gram matrix of the same size.

There is no goal. What was learned (n = 3000, float64, a busy machine): beyond the writing of the matrix, XLA's `arctan` of a
square root takes 60 ms, `arctan2` and `arccos` 100 to 110 ms, an exponential 11 ms, and each of the five layers needs one
angle. The first layer takes 0.1 s by matrix product and about twice that by the differences of 32 columns, which the kink of
the tangent kernel needs. The NNGP is one fused loop without temporaries. The NTK reads each angle twice, and its plan by XLA
has 28 loops and 16 matrices between them, which is the likely reason for the ratio of the two.
"""

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

DEPTH, WEIGHT, BIAS = 5, 1.8, 0.2
CHECKED = 40
TOLERANCE = 1e-7
"""Plain `arccos` is right to 1e-8 only where rows nearly agree; the rows of this problem are far apart."""


def run(options: Options) -> RatioTable:
    table = RatioTable("kernel", "n", "d")
    gram = jax.jit(lambda kernel, x: kernel(x))
    for n in options.sizes_or(3000):
        x = problem(n, 32).x
        rows = jnp.asarray(x)
        kernels = {
            "RBF": kx.RBF(lengthscale=5.0),
            "NNGP": kx.NNGP(DEPTH, kx.kernels.ReLU(), WEIGHT, BIAS),
            "NTK": kx.NTK(DEPTH, kx.kernels.ReLU(), WEIGHT, BIAS),
        }
        timed = compare({name: Side(lambda _, k=k, rows=rows: gram(k, rows)) for name, k in kernels.items()}, options)
        plain = dict(zip(("NNGP", "NTK"), _recursion(x[:CHECKED]), strict=True))
        for name, expected in plain.items():
            part = np.asarray(timed[name].answer)[:CHECKED, :CHECKED]
            agree = bool(np.max(np.abs(part - expected)) <= TOLERANCE)
            ours, theirs = timed[name].seconds, timed["RBF"].seconds
            table.compare(name, n, 32, peer="our RBF", ours=ours, theirs=theirs, goal=None, agree=agree)
    return table


def _recursion(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NNGP and NTK as the papers write them, in NumPy."""
    covariance = BIAS + WEIGHT * x @ x.T / x.shape[1]
    tangent = covariance
    for _ in range(DEPTH):
        norms = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
        cosine = np.clip(covariance / norms, -1.0, 1.0)
        np.fill_diagonal(cosine, 1.0)
        angle = np.arccos(cosine)
        covariance = BIAS + WEIGHT * norms * (np.sin(angle) + (np.pi - angle) * cosine) / (2.0 * np.pi)
        tangent = covariance + WEIGHT * tangent * (np.pi - angle) / (2.0 * np.pi)
    return covariance, tangent
