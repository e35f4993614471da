"""The log marginal likelihood of a Matérn kernel of any order and its gradient, against scikit-learn's value alone.

Ours has derivatives in the order, the lengthscale and the noise. scikit-learn has none in the order (and takes a numerical
one in the lengthscale, for which it calls Bessel's function once more), so its value alone is what ours is compared with.
"""

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._problem import Problem, problem
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

ORDER, LENGTHSCALE, NOISE = 1.7, 1.5, 0.1
GOAL = 1.0
TOLERANCE = 1e-9


def run(options: Options) -> RatioTable:
    table = RatioTable("n", "d")
    for n in options.sizes_or(1000):
        given = problem(n, 3)
        sides = {"value and gradient": _ours(given, gradient=True), "value": _ours(given, gradient=False)}
        timed = compare(sides | {"sklearn": _sklearn(given)}, options)
        theirs = timed["sklearn"]
        for name in sides:
            value = timed[name].answer[0] if name == "value and gradient" else timed[name].answer
            agree = bool(np.abs(value - theirs.answer) <= TOLERANCE * np.abs(theirs.answer))
            goal = GOAL if name == "value and gradient" else None
            peer = f"sklearn's value ({name})"
            table.compare(n, 3, peer=peer, ours=timed[name].seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    return table


def _ours(given: Problem, *, gradient: bool) -> Side:
    def value(model: kx.Model, data: kx.Data) -> jax.Array:
        return kx.log_marginal_likelihood(kx.condition(model, data))

    program = jax.jit(jax.value_and_grad(value) if gradient else value)
    model = jax.tree.map(jnp.asarray, kx.Model(kx.Matern(LENGTHSCALE, ORDER), noise=NOISE))
    data = kx.Data(given.x, given.y)
    return Side(lambda _: program(model, data))


def _sklearn(given: Problem) -> Side:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    kernel = Matern(LENGTHSCALE, nu=ORDER) + WhiteKernel(NOISE)
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(given.x, given.y)
    theta = model.kernel_.theta
    return Side(lambda _: model.log_marginal_likelihood(theta, clone_kernel=False))
