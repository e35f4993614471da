"""Twenty more rows onto n by `kx.extend`, against conditioning on all rows anew; both compiled before they are timed."""

import jax
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

MORE = 20
GOAL = 0.1
TOLERANCE = 1e-10


def run(options: Options) -> RatioTable:
    table = RatioTable("n", "more rows")
    for n in options.sizes_or(2000):
        given = problem(n + MORE, 4)
        model = kx.Model(1.3 * kx.Matern52(lengthscale=[1.0, 2.0, 1.5, 0.8]), noise=0.1)
        c = kx.condition(model, kx.Data(given.x[:n], given.y[:n]))
        every, x, y = kx.Data(given.x, given.y), given.x[n:], given.y[n:]

        def extended(_: None, c=c, x=x, y=y) -> jax.Array:
            return kx.extend(c, x, y).alpha

        def anew(_: None, model=model, every=every) -> jax.Array:
            return kx.condition(model, every).alpha

        timed = compare({"ours": Side(extended), "anew": Side(anew)}, options)
        found, expected = (np.asarray(timed[side].answer) for side in ("ours", "anew"))
        agree = bool(np.max(np.abs(found - expected)) <= TOLERANCE * np.max(np.abs(expected)))
        ours, theirs = timed["ours"].seconds, timed["anew"].seconds
        table.compare(n, MORE, peer="condition", ours=ours, theirs=theirs, goal=GOAL, agree=agree)
    return table
