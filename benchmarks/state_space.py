"""The log marginal likelihood of a Matérn-3/2 process of one column and its gradient, in O(n).

The peer is tinygp's quasiseparable solver, which needs sorted times; both sides get the same sorted times. Data are
arguments of the compiled functions: XLA would compute with constants while it compiles.
"""

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks import _peers
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 1.0
PARAMETERS = np.array([1.1, 1.2, 0.13])
"""Variance, lengthscale and noise."""


def run(options: Options) -> RatioTable:
    peers = _peers.installed({"tinygp": _tinygp})
    table = RatioTable("n")
    for n in options.sizes_or(10_000, 100_000):
        rng = np.random.default_rng(n)
        t = np.sort(rng.uniform(0.0, n / 100, n))
        y = np.sin(t) + 0.3 * rng.normal(size=n)
        sides = {"ours": _ours(t, y)} | {name: peer(t, y) for name, peer in peers.items()}
        timed = compare(sides, options)
        ours = timed.pop("ours")
        for name, theirs in timed.items():
            agree = same(ours.answer, theirs.answer, 1e-8)
            table.compare(n, peer=name, ours=ours.seconds, theirs=theirs.seconds, goal=GOAL, agree=agree)
    return table


def _ours(t: np.ndarray, y: np.ndarray) -> Side:
    def likelihood(p: jax.Array, data: kx.Data) -> jax.Array:
        return kx.log_marginal_likelihood(kx.condition(kx.Model(p[0] * kx.Matern32(p[1]), p[2]), data, kx.StateSpace()))

    compiled, data = jax.jit(jax.value_and_grad(likelihood)), kx.Data(t[:, None], y)
    return Side(lambda _: compiled(jnp.asarray(PARAMETERS), data))


def _tinygp(t: np.ndarray, y: np.ndarray) -> Side:
    import tinygp

    def likelihood(p: jax.Array, t: jax.Array, y: jax.Array) -> jax.Array:
        kernel = p[0] * tinygp.kernels.quasisep.Matern32(p[1])
        return tinygp.GaussianProcess(kernel, t, diag=p[2]).log_probability(y)

    compiled, rows, targets = jax.jit(jax.value_and_grad(likelihood)), jnp.asarray(t), jnp.asarray(y)
    return Side(lambda _: compiled(jnp.asarray(PARAMETERS), rows, targets))
