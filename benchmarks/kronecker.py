"""Full grids with `kx.Kronecker()`: value and gradient.

The likelihood of grids of 200 × 200 × 5 and 1000 × 1000 × 5 cells, the last axis being tasks, against GPyTorch with a
Kronecker product of its own kernels (two lengthscales, five weights and five variances of tasks, one noise); both must agree
to 1e-6. `--sizes 200 1000 2000` are the rows of each of the two long axes; a size that GPyTorch has no memory for is shown
without it. On the first of these grids with a tenth of the cells missing, `kx.CG(kx.Kronecker())` is compared with the full
grid, to a residual of 1e-4 as in a fit.

Against `kx.Cholesky()` on 4000 rows of a 100 × 100 grid: `1.3 * RBF * Matern32`, float64, one noise. Dense algebra for all
10,000 rows would need 15 times the time that is shown for 4000. On a grid of 12 × 10 both sides must agree to 1e-8.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks import _peers
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

SHAPE, SMALL, DENSE = (100, 100), (12, 10), 4000
SIZES, NUM_TASKS = (200, 1000), 5
QUANTITIES = {"likelihood": (kx.log_marginal_likelihood, 0.05), "loo_mse": (kx.loo_mse, None)}
TOLERANCE, TASKS_TOLERANCE = 1e-8, 1e-6
LENGTHSCALES, NOISE = (1.1, 0.9), 0.1
WEIGHTS, OWN = np.linspace(0.5, 1.2, NUM_TASKS), np.full(NUM_TASKS, 0.3)
"""The covariance of tasks is `w wᵀ + diag(own)`."""


class Tasks(kx.AbstractKernel):
    weights: jax.Array = kx.parameters.real()
    own: jax.Array = kx.positive()

    def pair(self, a, b):
        return self.weights[a] * self.weights[b] + jnp.where(a == b, self.own[a], 0.0)


def run(options: Options) -> RatioTable:
    table = RatioTable("grid", "rows", "what")
    for place, size in enumerate(options.sizes_or(*SIZES)):
        _against_gpytorch(table, options, (size, size, NUM_TASKS), with_holes=place == 0)
    _against_dense(table, options)
    return table


def _against_gpytorch(table: RatioTable, options: Options, tasks: tuple[int, ...], *, with_holes: bool) -> None:
    data, shape = _tasks_data(tasks), " × ".join(map(str, tasks))
    sides = {"ours": _side(kx.log_marginal_likelihood, data, kx.Kronecker(), _tasks_model)}
    if with_holes:
        holes = kx.Data(data.x, data.y, np.random.default_rng(1).random(data.n) > 0.1)
        sides["missing"] = _side(kx.log_marginal_likelihood, holes, kx.CG(kx.Kronecker(), tolerance=1e-4), _tasks_model)
    peers = {name: peer(np.array(data.y), tasks) for name, peer in _peers.installed({"gpytorch": _gpytorch}).items()}
    sides |= {name: peer for name, peer in peers.items() if _runs(name, peer, shape)}
    timed = compare(sides, options)
    ours = timed.pop("ours")
    missing = timed.pop("missing", None)
    for name, theirs in timed.items():
        agree = same(ours.answer, theirs.answer, TASKS_TOLERANCE)
        table.compare(
            shape, data.n, "likelihood", peer=name, ours=ours.seconds, theirs=theirs.seconds, goal=None, agree=agree
        )
    if not timed:
        print(f"kronecker, {shape}: {ours.seconds:.3g} s, without a peer")
    if missing is not None:
        count = int(holes.count)
        table.compare(shape, count, "10 % missing", peer="full grid", ours=missing.seconds, theirs=ours.seconds, goal=None)


def _runs(name: str, peer: Side, shape: str) -> bool:
    """Whether a peer has memory for a size."""
    try:
        peer.call(None)
    except (MemoryError, RuntimeError) as error:
        print(f"{name} does not manage {shape}: {error}")
        return False
    return True


def _against_dense(table: RatioTable, options: Options) -> None:
    for name, (quantity, goal) in QUANTITIES.items():
        small = _grid(SMALL)
        both = [_side(quantity, small, solver, _model).call(_model()) for solver in (kx.Kronecker(), kx.Cholesky())]
        agree = same(*both, TOLERANCE)
        whole = _grid(SHAPE)
        rows = np.random.default_rng(1).permutation(whole.n)[:DENSE]
        dense = kx.Data(kx.rows.take(whole.x, rows), np.asarray(whole.y)[rows])
        sides = {
            "ours": _side(quantity, whole, kx.Kronecker(), _model),
            "dense": _side(quantity, dense, kx.Cholesky(), _model),
        }
        timed = compare(sides, options)
        ours, theirs = timed["ours"].seconds, timed["dense"].seconds
        shape = " × ".join(str(k) for k in SHAPE)
        table.compare(shape, DENSE, name, peer="Cholesky", ours=ours, theirs=theirs, goal=goal, agree=agree)


def _model() -> kx.Model:
    return kx.Model(1.3 * kx.Select(kx.RBF(1.1), axis=0) * kx.Select(kx.Matern32(0.9), axis=1), noise=0.1)


def _grid(shape: tuple[int, ...]) -> kx.Data:
    axes = tuple(np.linspace(0.0, 10.0, k)[:, None] for k in shape)
    y = np.sin(axes[0]) * np.cos(axes[1].T) + 0.3 * np.random.default_rng(0).normal(size=shape)
    return kx.Data(kx.Grid(axes), y)


def _tasks_model() -> kx.Model:
    first, second = LENGTHSCALES
    places = kx.Select(kx.RBF(first), axis=0) * kx.Select(kx.Matern32(second), axis=1)
    return kx.Model(places * kx.Select(Tasks(WEIGHTS, OWN), axis=2), noise=NOISE)


def _tasks_data(tasks: tuple[int, ...]) -> kx.Data:
    axes = [np.linspace(0.0, 10.0, k) for k in tasks[:2]]
    clean = np.sin(axes[0])[:, None, None] * np.cos(axes[1])[None, :, None] * WEIGHTS
    grid = kx.Grid((*(axis[:, None] for axis in axes), np.arange(NUM_TASKS)))
    return kx.Data(grid, clean + 0.3 * np.random.default_rng(0).normal(size=tasks))


def _side(quantity: Callable, data: kx.Data, solver: kx.solvers.AbstractSolver, model: Callable[[], kx.Model]) -> Side:
    @eqx.filter_jit
    def value_and_gradient(model: kx.Model, data: kx.Data) -> tuple[jax.Array, jax.Array]:
        def value(model: kx.Model) -> jax.Array:
            return jnp.asarray(quantity(kx.condition(model, data, solver)))

        value, gradient = jax.value_and_grad(value)(model)
        return value, jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient)])

    return Side(lambda model: value_and_gradient(model, data), model)


def _gpytorch(targets: np.ndarray, tasks_shape: tuple[int, ...]) -> Side:
    """GPyTorch's kernels of each axis, as a Kronecker product of its linear operators, which it decomposes axis by axis."""
    import gpytorch
    import torch
    from linear_operator.operators import KroneckerProductLinearOperator, to_linear_operator

    y, numbers = torch.as_tensor(targets), torch.arange(math.prod(tasks_shape), dtype=torch.float64)[:, None]
    axes = [torch.linspace(0.0, 10.0, k, dtype=torch.float64)[:, None] for k in tasks_shape[:2]]
    first, second = gpytorch.kernels.RBFKernel().double(), gpytorch.kernels.MaternKernel(nu=1.5).double()
    tasks = gpytorch.kernels.IndexKernel(num_tasks=NUM_TASKS, rank=1).double()
    first.lengthscale, second.lengthscale = LENGTHSCALES
    tasks.var = torch.as_tensor(OWN)
    with torch.no_grad():
        tasks.covar_factor.copy_(torch.as_tensor(WEIGHTS)[:, None])

    class Product(gpytorch.kernels.Kernel):
        def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **options: object):
            parts = (first(axes[0]), second(axes[1]), tasks.covar_matrix)
            product = KroneckerProductLinearOperator(*(to_linear_operator(part.to_dense()) for part in parts))
            return product.diagonal() if diag else product

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood):
            super().__init__(numbers, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), Product()

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = Model(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    softplus = [first.raw_lengthscale, second.raw_lengthscale, tasks.raw_var, likelihood.noise_covar.raw_noise]
    slopes = [torch.sigmoid(raw.detach()) for raw in softplus]

    def call(_: object) -> tuple[float, np.ndarray]:
        value = objective(model(numbers), y) * len(y)
        *others, of_weights = torch.autograd.grad(value, [*softplus, tasks.covar_factor])
        # Divided by the slope of softplus, a gradient is one in the plain parameters.
        one, two, own, noise = ((g / s).ravel() for g, s in zip(others, slopes, strict=True))
        return value.item(), torch.cat([one, two, of_weights.ravel(), own, noise]).numpy()

    return Side(call)
