"""`kx.LowRank` with 1000 inducing rows: the bound and its gradient against GPyTorch's SGPR.

Both sides have the same inducing rows, ARD kernels in 8 columns, float64, and ten hyperparameters; values and gradients must
agree to 1e-6. GPyTorch's side is `InducingPointKernel` under `ExactMarginalLogLikelihood`, whose added loss is Titsias'
correction.
"""

import importlib.util

import numpy as np

from benchmarks._options import Options
from benchmarks._problem import Problem, problem, same
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

RANK, ROWS, GOAL = 1000, 100_000, 0.5


def run(options: Options) -> RatioTable:
    table = RatioTable("n", "rank", "kernel")
    if importlib.util.find_spec("gpytorch") is None:
        print("skipped, not installed: gpytorch.")
        return table
    for n in options.sizes_or(ROWS):
        for name in ("RBF", "Matern52"):
            given, inducing = _problem(n)
            timed = compare({"ours": _ours(name, given, inducing), "theirs": _gpytorch(name, given, inducing)}, options)
            ours, theirs = timed["ours"], timed["theirs"]
            agree, goal = same(ours.answer, theirs.answer), GOAL if n >= ROWS else None
            table.compare(n, RANK, name, peer="gpytorch", ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    return table


def _problem(n: int) -> tuple[Problem, np.ndarray]:
    given = problem(n)
    return given, given.x[np.random.default_rng(0).permutation(n)[:RANK]]


def _ours(name: str, given: Problem, inducing: np.ndarray) -> Side:
    import kernax as kx

    p = given.parameters
    model = kx.Model(p.variance * getattr(kx, name)(lengthscale=p.lengthscale), noise=p.noise)
    return _side(model, kx.Data(given.x, given.y), inducing)


def _side(model, data, inducing) -> Side:
    import jax
    import jax.numpy as jnp

    import kernax as kx
    from benchmarks._ours import parameters_of

    @jax.jit
    @jax.value_and_grad
    def program(model, data, inducing):
        return kx.log_marginal_likelihood(kx.condition(model, data, kx.LowRank(inducing=inducing)))

    model, inducing = jax.tree.map(jnp.asarray, (model, inducing))

    def call(_: None) -> tuple[float, np.ndarray]:
        value, gradient = jax.block_until_ready(program(model, data, inducing))
        return float(value), parameters_of(gradient).flat()

    return Side(call)


def _gpytorch(name: str, given: Problem, inducing: np.ndarray) -> Side:
    import gpytorch
    import torch

    from benchmarks._peers import _gpytorch_kernel

    x, y, p = torch.as_tensor(given.x), torch.as_tensor(given.y), given.parameters

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood):
            super().__init__(x, y, likelihood)
            self.mean, self.base = gpytorch.means.ZeroMean(), _gpytorch_kernel(name, p)
            self.kernel = gpytorch.kernels.InducingPointKernel(self.base, torch.as_tensor(inducing), likelihood)
            self.kernel.inducing_points.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = p.noise
    model = Model(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    raw = [model.base.raw_outputscale, model.base.base_kernel.raw_lengthscale, likelihood.noise_covar.raw_noise]
    slopes = [torch.sigmoid(r.detach()) for r in raw]

    def call(_: None) -> tuple[float, np.ndarray]:
        value = objective(model(x), y) * len(y)
        gradients = torch.autograd.grad(value, raw)
        plain = [(g / s).ravel() for g, s in zip(gradients, slopes, strict=True)]
        return value.item(), torch.cat(plain).numpy()

    return Side(call)
