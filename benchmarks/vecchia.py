"""The likelihood and its gradient by `kx.Vecchia()`: against GPyTorch's exact one by CG and Lanczos.

1. n = 40,000, d = 8, Matérn-3/2 with a lengthscale for each column, 30 neighbours, float64. GPyTorch runs at its defaults
   (CG and Lanczos beyond 800 rows) on 12,000 rows only: its kernel matrices of 40,000 rows do not fit into the memory of an
   ordinary machine. Its time grows at least with the square of the rows, so the ratio is an upper bound. The two
   likelihoods are different estimates; per row they must agree to 0.1 nats.
2. Accuracy on 8,000 rows of UCI sets against `kx.Cholesky()`: nats a row, and the error of the gradient relative to its
   norm, where a fit starts and near its end (all parameters a third larger). At the end itself the gradient is 0.
"""

import time

import equinox as eqx
import jax
import numpy as np

import kernax as kx
from benchmarks import _peers, _uci
from benchmarks._options import Options
from benchmarks._table import RatioTable, Table
from benchmarks._timing import Side, compare
from kernax.model import settled

GOAL, PEER_ROWS = 0.05, 12_000
ROWS_OF_SETS, NATS, SLOPES = 8000, 0.02, 0.1
CHOICES = ((30, 1), (60, 1), (120, 1), (512, 128))
"""Neighbours, and rows of a block."""


def run(options: Options) -> Table:
    table = _against_gpytorch(options)
    table.agreed &= _accuracy(options).agreed
    return table


def _against_gpytorch(options: Options) -> RatioTable:
    table = RatioTable("rows", "their rows")
    (n,) = options.sizes_or(40_000)[:1]
    x, y = _made(n, 8)
    model = kx.Model(1.0 * kx.Matern32(lengthscale=np.full(8, 3.0)), noise=0.1)
    for name, peer in _peers.installed({"gpytorch": _gpytorch}).items():
        few = min(n, PEER_ROWS)
        sides = {"ours": _side(model, kx.Data(x, y), kx.Vecchia()), "theirs": peer(model, x[:few], y[:few])}
        timed = compare(sides, options)
        ours = _side(model, kx.Data(x[:few], y[:few]), kx.Vecchia()).call(None)[0] / few
        agree = abs(float(ours) - timed["theirs"].answer) < 0.1
        seconds = (timed[side].seconds for side in ("ours", "theirs"))
        table.compare(n, few, peer=name, **dict(zip(("ours", "theirs"), seconds, strict=True)), goal=GOAL, agree=agree)
    return table


def _accuracy(options: Options) -> Table:
    table = Table(
        "set", "where", "neighbours", "block", "nats a row", "goal", "gradient", "goal", "s", "dense, s", "verdict"
    )
    for name in _uci.available(options, ("pol", "protein")):
        split = _uci.load(options.data, name)
        rows = np.random.default_rng(0).permutation(len(split.y))[:ROWS_OF_SETS]
        data = kx.Data(split.x[rows], split.y[rows])
        start = kx.Model(1.0 * kx.Matern32(lengthscale=np.ones(split.x.shape[1])), noise=0.1)
        start = kx.initialise(start, data)
        vector, rebuild = kx.parameters.ravel(kx.fit(start, data, solver=kx.Vecchia()).model)
        for where, model in {"start": start, "near the end": rebuild(vector + 0.3)}.items():
            exact, dense = _once(_side(model, data, kx.Cholesky()))
            for number, block in CHOICES:
                ours, seconds = _once(_side(model, data, kx.Vecchia(number, block)))
                nats = abs(float(ours[0] - exact[0])) / len(rows)
                slope = float(np.linalg.norm(ours[1] - exact[1]) / np.linalg.norm(exact[1]))
                verdict = "met" if nats <= NATS and slope <= SLOPES else "missed"
                answers = (f"{nats:.4f}", f"≤ {NATS}", f"{slope:.3f}", f"≤ {SLOPES}")
                table.line(name, where, number, block, *answers, seconds, dense, verdict)
    return table


def _made(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 10.0, size=(n, d))
    return x, np.sin(x[:, 0]) + np.cos(x[:, 1]) * x[:, 2] / 10 + 0.3 * rng.normal(size=n)


def _once(side: Side) -> tuple[tuple[jax.Array, jax.Array], float]:
    """The answer, and the seconds of a second call, in which nothing is compiled."""
    answer = jax.block_until_ready(side.call(None))
    begun = time.perf_counter()
    jax.block_until_ready(side.call(None))
    return answer, time.perf_counter() - begun


def _side(model: kx.Model, data: kx.Data, solver) -> Side:
    """Value and gradient, as in a fit: with neighbours that have been chosen."""
    vector, rebuild = kx.parameters.ravel(model)
    solver = settled(solver, model, data)

    @eqx.filter_jit
    def value_and_gradient(vector, data: kx.Data, solver) -> tuple[jax.Array, jax.Array]:
        def value(v):
            return kx.log_marginal_likelihood(kx.condition(rebuild(v), data, solver))

        return jax.value_and_grad(value)(vector)

    return Side(lambda _: value_and_gradient(vector, data, solver))


def _gpytorch(model: kx.Model, x: np.ndarray, y: np.ndarray) -> Side:
    """Value a row and gradient of the exact likelihood at GPyTorch's defaults."""
    import gpytorch
    import torch

    x, y = torch.as_tensor(x), torch.as_tensor(y)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=x.shape[1]))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    exact = Exact(likelihood).double().train()
    likelihood.noise = float(model.noise)
    exact.kernel.outputscale = float(model.kernel.variance)
    exact.kernel.base_kernel.lengthscale = torch.as_tensor(np.array(model.kernel.kernel.lengthscale))
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, exact)

    def call(_: None) -> float:
        value = objective(exact(x), y)
        torch.autograd.grad(value, list(exact.parameters()))
        return value.item()

    return Side(call)
