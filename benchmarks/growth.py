"""How seconds and peak memory of the likelihood with its gradient grow with n, for every solver.

Each line is a process of its own. The seconds are those of a second call, in which nothing is compiled; `choice` are those
of finding neighbours or inducing rows, which a fit does a few times. Memory is the peak of the whole process, Python and JAX
(about 0.3 GB) included, so its slope is less than that of the arrays alone. Slopes are those of logarithms between the
smallest and the largest n: 1 is linear. `--sizes` replaces every solver's own sizes.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _fresh
from benchmarks._options import Options
from benchmarks._table import Table, verdict

VECCHIA_SLOPE, CG_GIGABYTES, CG_ROWS = 1.05, 1.5, 10_000
"""Goals: Vecchia's seconds a row do not grow, and CG with this many rows stays below so many gigabytes."""


class Case(NamedTuple):
    sizes: tuple[int, ...]
    solver: Callable[[Any], Any]
    columns: int = 3


CASES = {
    "Cholesky": Case((1000, 2000, 4000), lambda kx: kx.Cholesky()),
    "Eigh": Case((500, 1000, 2000), lambda kx: kx.Eigh()),
    "CG": Case((5000, 10_000, 20_000), lambda kx: kx.CG(stored=False), columns=4),
    "Vecchia": Case((10_000, 100_000, 1_000_000), lambda kx: kx.Vecchia()),
    "LowRank": Case((10_000, 30_000, 100_000), lambda kx: kx.LowRank(1000), columns=8),
    "StateSpace": Case((10_000, 100_000, 1_000_000), lambda kx: kx.StateSpace(), columns=1),
    "Kronecker": Case((10_000, 40_000, 160_000), lambda kx: kx.Kronecker(), columns=2),
}


def run(options: Options) -> Table:
    table = Table("solver", "n", "choice, s", "value and gradient, s", "µs a row", "memory, GB", "goal", "verdict")
    for name, case in CASES.items():
        sizes = options.sizes_or(*case.sizes)
        found = [_fresh.call("benchmarks.growth:measured", name, n) for n in sizes]
        for n, (choice, seconds, gigabytes) in zip(sizes, found, strict=True):
            goal = CG_GIGABYTES if name == "CG" and n == CG_ROWS else None
            shown = "–" if goal is None else f"memory ≤ {goal:g}"
            per_row = f"{1e6 * seconds / n:.3g}"
            table.line(
                name,
                n,
                choice if choice > 1e-3 else "–",
                seconds,
                per_row,
                f"{gigabytes:.2f}",
                shown,
                verdict(gigabytes, goal),
            )
        if len(sizes) > 1:
            first, last = found[np.argmin(sizes)], found[np.argmax(sizes)]
            slopes = np.log(np.array(last[1:]) / first[1:]) / np.log(max(sizes) / min(sizes))
            goal = VECCHIA_SLOPE if name == "Vecchia" else None
            shown = "–" if goal is None else f"time ≤ {goal:g}"
            table.line(name, "slope", "–", f"{slopes[0]:.2f}", "–", f"{slopes[1]:.2f}", shown, verdict(slopes[0], goal))
    return table


def measured(name: str, n: int) -> tuple[float, float, float]:
    """Seconds of the solver's choices, seconds of value and gradient, and the process's peak memory in GB."""
    import equinox as eqx
    import jax

    import kernax as kx
    from benchmarks.memory import _resident
    from kernax.model import settled

    (model, data), solver = _problem(name, n), CASES[name].solver(kx)
    jax.block_until_ready(settled(solver, model, data))
    choice = _seconds(lambda: settled(solver, model, data))
    solver = settled(solver, model, data)

    @eqx.filter_jit
    def program(model: kx.Model, data: kx.Data, solver: Any) -> Any:
        return eqx.filter_value_and_grad(lambda m: kx.log_marginal_likelihood(kx.condition(m, data, solver)))(model)

    jax.block_until_ready(program(model, data, solver))
    seconds = _seconds(lambda: program(model, data, solver))
    return choice, seconds, _resident("VmHWM") / 1e9


def _problem(name: str, n: int) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    import kernax as kx
    from benchmarks import kronecker

    columns = CASES[name].columns
    if name == "Kronecker":
        side = math.isqrt(n)
        return jax.tree.map(jnp.asarray, kronecker._model()), kronecker._grid((side, side))
    rng = np.random.default_rng(0)
    if columns == 1:
        x, lengthscale = np.sort(rng.uniform(0.0, n / 100.0, size=(n, 1)), axis=0), np.asarray(1.5)
    else:
        x, lengthscale = rng.normal(size=(n, columns)), np.full(columns, 1.5)
    kernel = {"CG": kx.RBF, "LowRank": kx.RBF}.get(name, kx.Matern32)
    model = kx.Model(1.2 * kernel(lengthscale), noise=0.09)
    return jax.tree.map(jnp.asarray, model), kx.Data(x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=n))


def _seconds(call: Callable[[], object]) -> float:
    import jax

    begun = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begun
