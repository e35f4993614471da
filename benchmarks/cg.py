"""CG: a solve against GPyTorch's, and accuracy against dense.

- `solve`: pol (UCI, n = 13,500, 26 columns), ARD Matérn-3/2, noise 0.01, to a relative residual of 1e-2, the kernel matrix
  included. GPyTorch preconditions with a pivoted Cholesky factor of rank 15 (its default) or 100. All residuals are computed
  from the answers by NumPy and printed.
- At n = 2000 the means of CG (default options) and of Cholesky are compared.
"""

import numpy as np

from benchmarks import _fresh, _peers, _uci
from benchmarks._options import Options
from benchmarks._table import Table, verdict
from benchmarks._timing import Side, compare

COMPARED = 2000
ERROR, RATIO = 1e-6, 0.5
RESIDUAL, NOISE, VARIANCE = 1e-2, 0.01, 0.32
LENGTHSCALES = [0.65, 0.69, 1.73, 2.71, 1.91, 5.76, 5.96, 12.3, 50.0, 8.89, 5.85, 7.06, 11.0] + 13 * [50.0]
"""As fitted to a part of pol, the columns that do not matter at 50."""
RANKS = (15, 100)
"""GPyTorch's preconditioners."""


def run(options: Options) -> Table:
    table = Table("n", "what", "measured", "goal", "verdict", widths=(8, 48, 11, 11, 9))
    if _uci.available(options, ("pol",)):
        _solves(table, options)
    largest = _fresh.call("benchmarks.cg:error", COMPARED)
    agreement = "met" if largest <= ERROR else "DISAGREE"
    table.line(COMPARED, "largest error of the mean", f"{largest:.1e}", f"≤ {ERROR:g}", agreement)
    return table


def _solves(table: Table, options: Options) -> None:
    assert options.data is not None
    given = _uci.load(options.data, "pol")
    n = len(given.y)
    sides = {"kernax": _ours(given)}
    if _peers.installed({"gpytorch": _gpytorch}):
        sides |= {f"GPyTorch, rank {rank}": _gpytorch(given, rank) for rank in RANKS}
    timed = compare(sides, options)
    residuals = {name: _residual(given, np.asarray(side.answer)) for name, side in timed.items()}
    ours = timed.pop("kernax")
    table.line(n, "solve, kernax, s", ours.seconds, "–", "–")
    shown = f"≤ {RESIDUAL:g}"
    table.line(n, "relative residual, kernax", f"{residuals['kernax']:.4f}", shown, _reached(residuals["kernax"]))
    for name, theirs in timed.items():
        table.line(n, f"solve, {name}, s", theirs.seconds, "–", "–")
        table.line(n, f"relative residual, {name}", f"{residuals[name]:.4f}", "–", "–")
        ratio = ours.seconds / theirs.seconds
        table.line(n, f"solve, kernax / {name}", f"{ratio:.2f}", f"≤ {RATIO:g}", verdict(ratio, RATIO))


def _reached(residual: float) -> str:
    return "met" if residual <= 1.1 * RESIDUAL else "DISAGREE"


def _ours(given: _uci.Split) -> Side:
    import jax
    import jax.numpy as jnp

    import kernax as kx
    from kernax.grams import gram_of

    kernel = VARIANCE * kx.Matern32(np.array(LENGTHSCALES))
    solver, mask, noise = kx.CG(tolerance=RESIDUAL), jnp.ones(len(given.y), bool), jnp.asarray(NOISE)
    program = jax.jit(lambda kernel, x, y: solver.prepare(gram_of(kernel, x, mask), noise).solve(y).value)
    x, y = jnp.asarray(given.x), jnp.asarray(given.y)
    return Side(lambda _: program(kernel, x, y))


def _gpytorch(given: _uci.Split, rank: int) -> Side:
    import gpytorch
    import linear_operator
    import torch

    x, y = torch.as_tensor(given.x), torch.as_tensor(given.y)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=x.shape[1])).double()
    kernel.outputscale = VARIANCE
    kernel.base_kernel.lengthscale = torch.as_tensor(LENGTHSCALES)

    def call(_: None) -> np.ndarray:
        with (
            torch.no_grad(),
            linear_operator.settings.max_cholesky_size(1),
            linear_operator.settings.cg_tolerance(RESIDUAL),
            linear_operator.settings.max_cg_iterations(1000),
            linear_operator.settings.max_preconditioner_size(rank),
            linear_operator.settings.min_preconditioning_size(1),
        ):
            matrix = kernel(x).evaluate_kernel().add_jitter(NOISE)
            return matrix.solve(y[:, None])[:, 0].numpy()

    return Side(call)


def _residual(given: _uci.Split, answer: np.ndarray) -> float:
    """`‖b - A x‖ / ‖b‖`, in blocks of rows, by NumPy."""
    x, left = given.x / np.array(LENGTHSCALES), np.empty_like(given.y)
    norms = np.sum(x**2, axis=1)
    for begin in range(0, len(left), 1000):
        rows = slice(begin, begin + 1000)
        root = np.sqrt(3.0 * np.maximum(norms[rows, None] + norms - 2.0 * x[rows] @ x.T, 0.0))
        left[rows] = given.y[rows] - VARIANCE * ((1.0 + root) * np.exp(-root)) @ answer - NOISE * answer[rows]
    return float(np.linalg.norm(left) / np.linalg.norm(given.y))


def error(n: int) -> float:
    """The largest difference of the means of CG and Cholesky. In a process of its own."""
    import kernax as kx

    model, data, new = _problem(n)
    ours, dense = (kx.mean(kx.condition(model, data, solver), new) for solver in (kx.CG(), kx.Cholesky()))
    return float(np.max(np.abs(np.asarray(ours) - np.asarray(dense))))


def _problem(n: int):
    import jax
    import jax.numpy as jnp

    import kernax as kx

    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(n, 4)), rng.normal(size=(200, 4))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=n)
    model = kx.Model(1.2 * kx.RBF(np.full(4, 1.5)), noise=0.09)
    return jax.tree.map(jnp.asarray, model), kx.Data(x, y), new
