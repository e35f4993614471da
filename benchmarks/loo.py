"""The leave-one-out error and its gradient, against plain autodiff of the same formula.

`kx.loo_mse` writes the derivatives of the solve and of the inverse's diagonal in closed form; the peer is the same formula
in plain JAX, differentiated through `jnp.linalg.cholesky` and the triangular solves.
"""

import kernax as kx
from benchmarks import _ours, _peers
from benchmarks._options import Options
from benchmarks._problem import problem, same
from benchmarks._table import RatioTable
from benchmarks._timing import compare

GOAL = 0.5


def run(options: Options) -> RatioTable:
    table = RatioTable("n")
    for n in options.sizes_or(500, 1000, 2000, 4000):
        given = problem(n)
        sides = {"ours": _ours.value_and_gradient(kx.loo_mse, given), "autodiff": _peers.autodiff_loo(given)}
        timed = compare(sides, options)
        ours, theirs = timed["ours"], timed["autodiff"]
        agree = same(ours.answer, theirs.answer)
        table.compare(n, peer="autodiff", ours=ours.seconds, theirs=theirs.seconds, goal=GOAL, agree=agree)
    return table
