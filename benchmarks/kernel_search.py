"""The search for a kernel: series per minute, and one program for all structures against one for each.

Series of 100 rows: a trend and a season with noise, each with a period of its own. Base kernels `Linear`, `RBF` and
`Periodic`, at most three factors, greedy, two starts. `--sizes` gives other numbers of rows.

- `series/min`: `search_kernel_many` of 16 series in a process that has compiled its programs, and `found`, the share of
  series in which `linear + periodic` is the best structure.
- `compiled`: one search from nothing, compilation included, against fitting the same structures (those of that search) each
  by a `fit_many` of its own, which compiles a program for each. Both make as many fits, from starts of their own. Goal: 0.5.
"""

import time

import jax
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable, Table

SERIES, ROWS, STARTS = 16, 100, 2
GOAL = 0.5
NEAR = 0.5
"""In log likelihood: how much less the search may find in its best structure, which has several optima."""
FACTORS = {"linear": kx.Linear, "rbf": kx.RBF, "periodic": kx.Periodic}


def made(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A trend and a season."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 20.0, rows))
    season = np.sin(2 * np.pi * (x / rng.uniform(1.5, 4.0) + rng.uniform()))
    return x[:, None], rng.uniform(0.2, 0.4) * x + season + 0.2 * rng.normal(size=rows)


def options() -> dict:
    base = {name: kind() for name, kind in FACTORS.items()}
    return {"base": base, "depth": 3, "beam": 1, "starts": STARTS}


def written(expression: str) -> kx.AbstractKernel:
    """The kernel of an expression such as `linear + rbf * periodic`."""
    whole = None
    for product in expression.split(" + "):
        kernel = None
        for name in product.split(" * "):
            factor = FACTORS[name]()
            kernel = factor if kernel is None else kernel * factor
        kernel = 1.0 * kernel
        whole = kernel if whole is None else whole + kernel
    assert whole is not None
    return whole


def run(given: Options) -> Table:
    """Print both tables."""
    compiled = RatioTable("rows", "structures")
    for rows in given.sizes_or(ROWS):
        x, y = made(0, rows)
        jax.clear_caches()
        begun = time.perf_counter()
        search = kx.search_kernel(kx.Data(x, y), **options())
        ours = time.perf_counter() - begun

        jax.clear_caches()
        begun = time.perf_counter()
        best = np.inf
        for one in search.tried:
            start = kx.Model(written(one.expression), noise=0.1, mean=0.0)
            fits = kx.fit_many(start, [(x, y)] * STARTS, initialise=True, max_steps=200)
            best = min(best, float(np.nanmin(fits.value)))
        theirs = time.perf_counter() - begun
        agree = -search.tried[0].log_likelihood <= best + NEAR
        compiled.compare(rows, len(search.tried), peer="fit_many each", ours=ours, theirs=theirs, goal=GOAL, agree=agree)

    table = Table("rows", "series", "seconds", "series/min", "found")
    for rows in given.sizes_or(ROWS):
        series = [made(seed, rows) for seed in range(SERIES)]
        kx.search_kernel_many(series, **options())
        seconds = np.inf
        for _ in range(min(given.turns, 2)):
            begun = time.perf_counter()
            searches = kx.search_kernel_many(series, **options())
            seconds = min(seconds, time.perf_counter() - begun)
        found = np.mean([one.tried[0].expression == "linear + periodic" for one in searches.values()])
        table.line(rows, SERIES, float(seconds), float(60.0 * SERIES / seconds), float(found))
    table.agreed &= compiled.agreed
    return table
