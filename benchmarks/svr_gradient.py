"""The gradient of a hold-out loss of support vector regression for all hyperparameters, against the solve itself.

ARD RBF with 8 lengthscales and a variance, C and ε: eleven numbers. "Ours" is the price of the gradient, the time of value
and gradient less that of the value; the "peer" is the solve, `kx.condition`, compiled. No peer has this gradient; it is
checked against central differences (1e-6 of the largest component). `--sizes` gives other numbers of rows.

The conditions of optimality are linear in the free coefficients, so a gradient is one more system of these, and the
pull-back of two Gram matrices.
"""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare
from benchmarks.svr import COLUMNS, LENGTHSCALE, PENALTIES, rows

GOAL = 1.0
TOLERANCE = 1e-6
HELD_OUT = 200


def run(options: Options) -> RatioTable:
    table = RatioTable("C", "n")
    for n in options.sizes_or(500, 1000, 2000):
        data, others = kx.Data(*rows(n)), kx.Data(*rows(HELD_OUT, seed=1))
        for c in PENALTIES:
            kernel = 1.0 * kx.RBF(lengthscale=jnp.full(COLUMNS, LENGTHSCALE))
            model = kx.learners.SVR(kernel, C=c, epsilon=0.1)

            def loss(model: kx.learners.SVR, others: kx.Data = others, data: kx.Data = data) -> jax.Array:
                return kx.learners.holdout_loss(kx.condition(model, data), others)

            free = kx.parameters.unconstrain(model)
            value = eqx.filter_jit(lambda free, loss=loss: loss(kx.parameters.constrain(free)))
            both = eqx.filter_jit(eqx.filter_value_and_grad(lambda free, loss=loss: loss(kx.parameters.constrain(free))))
            solve = jax.jit(lambda model, data: kx.condition(model, data))
            timed = compare(
                {
                    "solve": Side(lambda _, model=model, data=data, solve=solve: solve(model, data)),
                    "value": Side(lambda _, free=free, value=value: value(free)),
                    "both": Side(lambda _, free=free, both=both: both(free)),
                },
                options,
            )
            price = max(timed["both"].seconds - timed["value"].seconds, 1e-9)
            agree = _agree(value, free, timed["both"].answer[1])
            table.compare(c, n, peer="the solve", ours=price, theirs=timed["solve"].seconds, goal=GOAL, agree=agree)
    return table


def _agree(value, free: kx.learners.SVR, gradient: kx.learners.SVR) -> bool:
    """A few components against central differences."""
    vector, rebuild = jax.flatten_util.ravel_pytree(free)
    slopes = np.asarray(jax.flatten_util.ravel_pytree(gradient)[0])
    step = 1e-6
    some = range(0, vector.size, 3)
    differences = [
        float(value(rebuild(vector.at[i].add(step))) - value(rebuild(vector.at[i].add(-step)))) / (2 * step) for i in some
    ]
    return bool(np.max(np.abs(np.array(differences) - slopes[list(some)])) <= TOLERANCE * max(1.0, np.max(np.abs(slopes))))
