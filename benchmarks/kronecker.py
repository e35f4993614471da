"""A full grid with `kx.Kronecker()` against `kx.Cholesky()` on 4000 of its rows: value and gradient.

`1.3 * RBF * Matern32` over the two axes of a 100 × 100 grid, float64, one noise: four hyperparameters. Dense algebra for all
10,000 rows would need 15 times the time that is shown for 4000. On a grid of 12 × 10 both sides must agree to 1e-8.
`--sizes` are the rows of the dense side.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

SHAPE, SMALL = (100, 100), (12, 10)
QUANTITIES = {"likelihood": (kx.log_marginal_likelihood, 0.05), "loo_mse": (kx.loo_mse, None)}
TOLERANCE = 1e-8


def run(options: Options) -> RatioTable:
    table = RatioTable("grid", "rows", "what")
    for name, (quantity, goal) in QUANTITIES.items():
        small = _grid(SMALL)
        both = [_side(quantity, small, solver).call(_model()) for solver in (kx.Kronecker(), kx.Cholesky())]
        agree = all(
            np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in zip(*map(jax.tree.leaves, both), strict=True)
        )
        whole = _grid(SHAPE)
        for n in options.sizes_or(4000):
            rows = np.random.default_rng(1).permutation(whole.n)[:n]
            dense = kx.Data(kx.rows.take(whole.x, rows), np.asarray(whole.y)[rows])
            sides = {"ours": _side(quantity, whole, kx.Kronecker()), "dense": _side(quantity, dense, kx.Cholesky())}
            timed = compare(sides, options)
            ours, theirs = timed["ours"].seconds, timed["dense"].seconds
            shape = " × ".join(str(k) for k in SHAPE)
            table.compare(shape, n, name, peer="Cholesky", ours=ours, theirs=theirs, goal=goal, agree=agree)
    return table


def _model() -> kx.Model:
    return kx.Model(1.3 * kx.Select(kx.RBF(1.1), axis=0) * kx.Select(kx.Matern32(0.9), axis=1), noise=0.1)


def _grid(shape: tuple[int, ...]) -> kx.Data:
    axes = tuple(np.linspace(0.0, 10.0, k)[:, None] for k in shape)
    y = np.sin(axes[0]) * np.cos(axes[1].T) + 0.3 * np.random.default_rng(0).normal(size=shape)
    return kx.Data(kx.Grid(axes), y)


def _side(quantity, data: kx.Data, solver) -> Side:
    @eqx.filter_jit
    def value_and_gradient(model: kx.Model, data: kx.Data) -> tuple[jax.Array, jax.Array]:
        vector, rebuild = kx.parameters.ravel(model)
        return jax.value_and_grad(lambda v: jnp.asarray(quantity(kx.condition(rebuild(v), data, solver))))(vector)

    return Side(lambda model: value_and_gradient(model, data), _model)
