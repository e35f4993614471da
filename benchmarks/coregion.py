"""Three correlated outputs with gaps: the log marginal likelihood and its gradient against GPyTorch's Hadamard multitask.

Of n rows × 3 outputs, 30 % of the values are missing. ARD RBF of two columns times `B Bᵀ + diag(v)` of rank 1,
with one noise: nine parameters. Both sides use Cholesky factorisations, in float64.
"""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 0.5
LENGTHSCALE, NOISE = np.array([0.8, 1.5]), 0.1
LOADINGS, OWN = np.array([[1.0], [-0.7], [0.4]]), np.array([0.2, 0.3, 0.5])


def run(options: Options) -> RatioTable:
    table = RatioTable("rows x 3 outputs")
    if importlib.util.find_spec("gpytorch") is None:
        print("skipped, not installed: gpytorch.")
        return table
    for n in options.sizes_or(200, 1000):
        x, y = _problem(n)
        timed = compare({"ours": _ours(x, y), "gpytorch": _gpytorch(x, y)}, options)
        ours, theirs = timed["ours"], timed["gpytorch"]
        agree = same(ours.answer, theirs.answer)
        goal = GOAL if n >= 1000 else 1.0
        table.compare(n, peer="gpytorch", ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    return table


def _problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 2))
    common = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1]
    y = common[:, None] * LOADINGS[:, 0] + 0.3 * rng.normal(size=(n, 3))
    y[rng.random((n, 3)) < 0.3] = np.nan
    return x, y


def _ours(x: np.ndarray, y: np.ndarray) -> Side:
    kernel = kx.kernels.Coregion(3, 1, loadings=LOADINGS, variances=OWN) * kx.Select(kx.RBF(LENGTHSCALE), key="x")
    model, data = jax.tree.map(jnp.asarray, kx.Model(kernel, noise=NOISE)), kx.data.long(x, y)
    compiled = jax.jit(jax.value_and_grad(lambda m, d: kx.log_marginal_likelihood(kx.condition(m, d))))

    def call(_: None) -> tuple[jax.Array, np.ndarray]:
        value, slope = jax.block_until_ready(compiled(model, data))
        tasks, inputs = slope.kernel.kernels
        parts = (tasks.loadings, tasks.variances, inputs.kernel.lengthscale, slope.noise)
        return value, np.concatenate([np.ravel(part) for part in parts])

    return Side(call)


def _gpytorch(x: np.ndarray, y: np.ndarray) -> Side:
    import gpytorch
    import torch

    rows, tasks = np.nonzero(~np.isnan(y))
    inputs, labels, values = (torch.as_tensor(part) for part in (x[rows], tasks[:, None], y[rows, tasks]))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood):
            super().__init__((inputs, labels), values, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.RBFKernel(ard_num_dims=2).double()
            self.kernel.lengthscale = torch.as_tensor(LENGTHSCALE)
            self.tasks = gpytorch.kernels.IndexKernel(num_tasks=3, rank=1).double()
            self.tasks.covar_factor.data, self.tasks.var = torch.as_tensor(LOADINGS), torch.as_tensor(OWN)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x).mul(self.tasks(t)))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = Model(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    raw = [model.tasks.covar_factor, model.tasks.raw_var, model.kernel.raw_lengthscale, likelihood.noise_covar.raw_noise]
    # The constraints are softplus, of derivative σ(raw): divided out, the gradient is a plain one. B has none.
    slopes = [torch.ones_like(raw[0]), *(torch.sigmoid(r.detach()) for r in raw[1:])]

    def call(_: None) -> tuple[float, np.ndarray]:
        with (
            gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False),
            gpytorch.settings.max_cholesky_size(10**9),
        ):
            value = objective(model(inputs, labels), values) * len(values)
        gradients = torch.autograd.grad(value, raw)
        plain = [(g / s).ravel() for g, s in zip(gradients, slopes, strict=True)]
        return value.item(), torch.cat(plain).numpy()

    return Side(call)
