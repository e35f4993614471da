"""The same questions asked of other libraries: one small function per peer.

Each function builds the peer's model of a problem and returns a `Side` whose call answers in the common form: for a
likelihood its value and the flat gradient with respect to the plain parameters (`_problem.Parameters`), for a Gram matrix
the matrix. Each imports its library itself, so that one that is not installed can be skipped.
"""

import importlib.util
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._problem import Parameters, Problem
from benchmarks._timing import Side


def installed(peers: dict[str, Callable[..., Side]]) -> dict[str, Callable[..., Side]]:
    """Those of the peers, by name of their package, that are here; names the others."""
    missing = [name for name in peers if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped, not installed: {', '.join(missing)}.")
    return {name: peer for name, peer in peers.items() if name not in missing}


# Log marginal likelihood, value and gradient


def gpytorch_likelihood(given: Problem) -> Side:
    """GPyTorch in Cholesky mode."""
    import gpytorch
    import torch

    x, y, p = torch.as_tensor(given.x), torch.as_tensor(given.y), given.parameters

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood):
            super().__init__(x, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), _gpytorch_kernel("RBF", p)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = p.noise
    model = Model(likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    raw = [model.kernel.raw_outputscale, model.kernel.base_kernel.raw_lengthscale, likelihood.noise_covar.raw_noise]
    # The constraints are softplus (noise: above a floor), of derivative σ(raw): divided out, the gradient is a plain one.
    slopes = [torch.sigmoid(r.detach()) for r in raw]

    def call(_: None) -> tuple[float, np.ndarray]:
        with (
            gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False),
            gpytorch.settings.max_cholesky_size(10**9),
        ):
            value = objective(model(x), y) * len(y)
        gradients = torch.autograd.grad(value, raw)
        plain = [(g / s).ravel() for g, s in zip(gradients, slopes, strict=True)]
        return value.item(), torch.cat(plain).numpy()

    return Side(call)


def tinygp_likelihood(given: Problem) -> Side:
    import tinygp

    def value(p: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        kernel = p.variance * tinygp.transforms.Linear(1.0 / p.lengthscale, tinygp.kernels.ExpSquared())
        return tinygp.GaussianProcess(kernel, x, diag=p.noise).log_probability(y)

    return _jitted(value, given)


def gpjax_likelihood(given: Problem) -> Side:
    import gpjax

    def value(p: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        prior = gpjax.gps.Prior(_gpjax_kernel("RBF", p), gpjax.mean_functions.Zero(), jitter=0.0)
        model = prior * gpjax.likelihoods.Gaussian(jnp.sqrt(p.noise))
        return gpjax.objectives.conjugate_mll(model, gpjax.Dataset(x, y[:, None]))

    return _jitted(value, given)


def sklearn_likelihood(given: Problem) -> Side:
    from sklearn.gaussian_process import GaussianProcessRegressor

    model = GaussianProcessRegressor(sklearn_kernel(given.parameters), optimizer=None).fit(given.x, given.y)
    theta = model.kernel_.theta

    def call(_: None) -> tuple[float, np.ndarray]:
        value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
        return float(value), gradient / np.exp(theta)

    return Side(call)


def sklearn_kernel(p: Parameters):
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    bounds = (1e-5, 1e5)
    return ConstantKernel(p.variance, bounds) * RBF(p.lengthscale, bounds) + WhiteKernel(p.noise, bounds)


def lapack_floor(given: Problem) -> Side:
    """No peer but the floor: LAPACK's factorisation and inverse of a matrix that stands ready, and nothing else."""
    from scipy.linalg.lapack import dpotrf, dpotri

    p = given.parameters
    matrix = np.asarray(_plain_gram(p, jnp.asarray(given.x))) + p.noise * np.eye(len(given.y))

    def call(copy: np.ndarray) -> None:
        factor, _ = dpotrf(copy, overwrite_a=True)
        dpotri(factor, overwrite_c=True)

    return Side(call, prepare=lambda: np.array(matrix, order="F"))


# Leave-one-out, value and gradient


def autodiff_loo(given: Problem) -> Side:
    """The same formula by plain autodiff through the factorisation, as one would write it at first."""

    def value(p: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        identity = jnp.eye(x.shape[0], dtype=x.dtype)
        lower = jnp.linalg.cholesky(_plain_gram(p, x) + p.noise * identity)
        alpha = jax.scipy.linalg.cho_solve((lower, True), y)
        half = jax.scipy.linalg.solve_triangular(lower, identity, lower=True)
        return jnp.mean((alpha / jnp.sum(half**2, axis=0)) ** 2)

    return _jitted(value, given)


# Gram matrices, for kernels "RBF" and "Matern52"


def gpytorch_gram(name: str, given: Problem) -> Side:
    import torch

    kernel, x = _gpytorch_kernel(name, given.parameters), torch.as_tensor(given.x)

    def call(_: None) -> np.ndarray:
        with torch.no_grad():
            return kernel(x).to_dense().numpy()

    return Side(call)


def gpjax_gram(name: str, given: Problem) -> Side:
    compiled = jax.jit(lambda p, x: _gpjax_kernel(name, p).gram(x).as_matrix())
    arguments = jax.tree.map(jnp.asarray, (given.parameters, given.x))
    return Side(lambda _: compiled(*arguments))


# Shared pieces


def _gpytorch_kernel(name: str, p: Parameters):
    import gpytorch
    import torch

    d = len(p.lengthscale)
    base = {"RBF": gpytorch.kernels.RBFKernel, "Matern52": partial(gpytorch.kernels.MaternKernel, nu=2.5)}[name]
    kernel = gpytorch.kernels.ScaleKernel(base(ard_num_dims=d)).double()
    kernel.outputscale = p.variance
    kernel.base_kernel.lengthscale = torch.as_tensor(p.lengthscale)
    return kernel


def _gpjax_kernel(name: str, p: Parameters):
    import gpjax
    from gpjax.parameters import Real

    return getattr(gpjax.kernels, name)(lengthscale=Real(p.lengthscale), variance=Real(p.variance))


def _plain_gram(p: Parameters, x: jax.Array) -> jax.Array:
    """ARD RBF by a matrix product."""
    z = x / p.lengthscale
    norms = jnp.sum(z * z, axis=1)
    return p.variance * jnp.exp(-0.5 * jnp.maximum(norms[:, None] + norms[None, :] - 2.0 * z @ z.T, 0.0))


def _jitted(value: Callable[[Parameters, jax.Array, jax.Array], jax.Array], given: Problem) -> Side:
    """Value and flat gradient of a JAX function of plain parameters."""
    compiled = jax.jit(jax.value_and_grad(value))
    arguments = jax.tree.map(jnp.asarray, (given.parameters, given.x, given.y))

    def call(_: None) -> tuple[jax.Array, np.ndarray]:
        answer, gradient = jax.block_until_ready(compiled(*arguments))
        return answer, gradient.flat()

    return Side(call)
