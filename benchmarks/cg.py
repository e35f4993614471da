"""CG at sizes where the kernel matrix does not fit: accuracy against dense, time, and peak memory.

At the first size the means of CG (default options) and of Cholesky are compared. At the others, a fresh process conditions,
predicts 200 means, and computes the likelihood with its gradient in all hyperparameters (ARD RBF, d = 4, noise 0.09). Peak
memory is that of the whole process, Python and JAX included. `dense K` is what the kernel matrix alone would take.
"""

import time

from benchmarks import _fresh
from benchmarks._options import Options
from benchmarks._table import Table, verdict

COMPARED = 2000
ERROR, GIGABYTES = 1e-6, 1.5
LARGE = 10_000
"""The size at which the goal for memory holds."""


def run(options: Options) -> Table:
    table = Table("n", "what", "measured", "goal", "verdict", widths=(8, 36, 11, 11, 9))
    largest = _fresh.call("benchmarks.cg:error", COMPARED)
    agreement = "met" if largest <= ERROR else "DISAGREE"
    table.line(COMPARED, "largest error of the mean", f"{largest:.1e}", f"≤ {ERROR:g}", agreement)
    for n in options.sizes_or(LARGE):
        found = _fresh.call("benchmarks.cg:measured", n)
        goal = GIGABYTES if n == LARGE else None
        shown = "–" if goal is None else f"≤ {goal:g}"
        table.line(n, "peak memory, GB", f"{found['gigabytes']:.2f}", shown, verdict(found["gigabytes"], goal))
        table.line(n, "dense K, GB", f"{8e-9 * n * n:.2f}", "–", "–")
        table.line(n, "steps of one solve", found["steps"], "–", "–")
        table.line(n, "value and gradient, s", found["seconds"], "–", "–")
    return table


def error(n: int) -> float:
    """The largest difference of the means of CG and Cholesky. In a process of its own."""
    import numpy as np

    import kernax as kx

    model, data, new = _problem(n)
    ours, dense = (kx.mean(kx.condition(model, data, solver), new) for solver in (kx.CG(), kx.Cholesky()))
    return float(np.max(np.abs(np.asarray(ours) - np.asarray(dense))))


def measured(n: int) -> dict[str, float]:
    """Peak memory, steps and seconds. In a process of its own."""
    import jax

    import kernax as kx
    from benchmarks.memory import _resident

    model, data, new = _problem(n)
    c = kx.condition(model, data, kx.CG())
    jax.block_until_ready(kx.mean(c, new))
    program = jax.jit(jax.value_and_grad(lambda m, d: kx.log_marginal_likelihood(kx.condition(m, d, kx.CG()))))
    jax.block_until_ready(program(model, data))
    begun = time.perf_counter()
    jax.block_until_ready(program(model, data))
    seconds = time.perf_counter() - begun
    return {"gigabytes": _resident("VmHWM") / 1e9, "steps": int(c.solution.steps), "seconds": seconds}


def _problem(n: int):
    import jax
    import jax.numpy as jnp
    import numpy as np

    import kernax as kx

    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(n, 4)), rng.normal(size=(200, 4))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=n)
    model = kx.Model(1.2 * kx.RBF(np.full(4, 1.5)), noise=0.09)
    return jax.tree.map(jnp.asarray, model), kx.Data(x, y), new
