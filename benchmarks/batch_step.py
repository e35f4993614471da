"""One step of a batched fit: the likelihood and its gradient of many small datasets, each with parameters of its own.

Scaled RBF with one lengthscale, and noise: value and gradient of the negative log marginal likelihood with respect to the
logarithms of the three, float64. Two layouts of ours, and the faster one is held against the goal: `threads`, in which
`fit_many` runs on CPU (a thread per core, datasets one after another, BLAS at one thread; NumPy in, NumPy out), and `vmap`,
plain `jax.jit(jax.vmap(...))`. The peer is GPyTorch in batch mode with the Cholesky decomposition, in the faster of the two
ways to have it: all `fast_computations` off, or on with `max_cholesky_size` above n. Values and gradients must agree in
every dataset, relative to its own, to 1e-8. `--sizes` gives another number of datasets.

What was learned: of GPyTorch's time at n = 50 (by its profiler) a tenth is the factorisation, a third triangular solves, and
nearly half cutting out triangles, copies, sums and products of all matrices. It needs a quiet machine: on a busy one two of
its threads often took several times as long as one, while on a quiet one they are faster.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare
from kernax.data._many import windows
from kernax.fitting._ask_block import asked
from kernax.fitting._models import Models

CASES = ((1000, 50, 1, 0.44), (1000, 50, 8, 0.53), (200, 200, 4, 0.30))
"""Datasets, rows of each, columns, and the goal."""
TOLERANCE = 1e-8
GPYTORCH = {"gpytorch, all off": True, "gpytorch, by size": False}
"""Sides, and whether `fast_computations` are off."""


class Batch(NamedTuple):
    """Datasets with a leading axis, and the parameters of each."""

    x: np.ndarray
    y: np.ndarray
    variance: np.ndarray
    lengthscale: np.ndarray
    noise: np.ndarray


def run(options: Options) -> RatioTable:
    table = RatioTable("sets", "n", "d", "layout")
    if importlib.util.find_spec("gpytorch") is None:
        print("skipped, not installed: gpytorch.")
        return table
    for usual, n, d, most in CASES:
        sets = options.sizes_or(usual)[0]
        given = batch(sets, n, d)
        sides = {"threads": threads(given), "vmap": vmapped(given)}
        sides |= {name: gpytorch_step(given, all_off=off) for name, off in GPYTORCH.items()}
        timed = compare(sides, options)
        theirs = min((timed[name] for name in GPYTORCH), key=lambda one: one.seconds)
        ours = {name: timed[name] for name in timed if name not in GPYTORCH}
        fastest = min(ours, key=lambda name: ours[name].seconds)
        for name, own in ours.items():
            agree = all(same_in_every_set(own.answer, timed[peer].answer) for peer in GPYTORCH)
            goal = most if name == fastest else None
            table.compare(sets, n, d, name, peer="gpytorch", ours=own.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
        print("(" + "; ".join(f"{name}: {timed[name].seconds:.4f} s" for name in GPYTORCH) + ")")
    return table


def batch(sets: int, n: int, d: int) -> Batch:
    """Normal points, a wavy target with a little noise, and parameters of plausible sizes, all different."""
    rng = np.random.default_rng(sets + n + d)
    x = rng.normal(size=(sets, n, d))
    y = np.sin(x @ np.linspace(0.2, 1.0, d)) + 0.1 * rng.normal(size=(sets, n))
    spread = np.exp(0.3 * rng.normal(size=(3, sets)))
    return Batch(x, y, 1.5 * spread[0], np.sqrt(d) * spread[1], 0.1 * spread[2])


def same_in_every_set(ours: tuple, theirs: tuple) -> bool:
    """Values and gradients, each within the tolerance of the dataset's own value, and of its largest slope."""
    (value, gradient), (other_value, other_gradient) = (tuple(map(np.asarray, answer)) for answer in (ours, theirs))
    values = np.abs(value - other_value) <= TOLERANCE * np.abs(other_value)
    largest = np.max(np.abs(other_gradient), axis=1, keepdims=True)
    return bool(values.all() and (np.abs(gradient - other_gradient) <= TOLERANCE * largest).all())


# Ours


def _value_and_gradient(model: kx.Model, data: kx.Data) -> tuple[jax.Array, jax.Array]:
    """Of one dataset; slopes by the logarithms of variance, lengthscale and noise."""

    def value(free: kx.Model) -> jax.Array:
        return kx.selection.negative_log_marginal_likelihood(kx.condition(kx.parameters.constrain(free), data, throw=False))

    answer, slopes = jax.value_and_grad(value)(kx.parameters.unconstrain(model))
    return answer, jnp.stack([slopes.kernel.variance, slopes.kernel.kernel.lengthscale, slopes.noise])


def _models_and_data(given: Batch) -> tuple[Models, kx.Data]:
    """NumPy arrays with a leading dataset axis."""

    def model(variance: jax.Array, lengthscale: jax.Array, noise: jax.Array) -> kx.Model:
        return kx.Model(variance * kx.RBF(lengthscale=lengthscale), noise=noise)

    models = jax.vmap(model)(given.variance, given.lengthscale, given.noise)
    data = kx.data.stack(zip(given.x, given.y, strict=True))
    return Models(jax.tree.map(np.asarray, models), len(given.y)), jax.tree.map(np.asarray, data)


def threads(given: Batch) -> Side:
    models, _ = _models_and_data(given)
    sets = [data for window in windows(zip(given.x, given.y, strict=True)) for data in window]

    def call(_: None) -> tuple[np.ndarray, np.ndarray]:
        parts = asked(_value_and_gradient, models, sets, (), None)[0]
        order = np.argsort(np.concatenate([part.numbers for part in parts]))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *(part.results for part in parts))

    return Side(call)


def vmapped(given: Batch) -> Side:
    models, data = _models_and_data(given)
    arguments = jax.tree.map(jnp.asarray, (models.model, data))
    compiled = jax.jit(jax.vmap(_value_and_gradient))
    return Side(lambda _: compiled(*arguments))


# GPyTorch's


def gpytorch_step(given: Batch, *, all_off: bool) -> Side:
    import torch

    evaluate, raw, parameters = gpytorch_batch(given, all_off=all_off)
    # The constraints are softplus (noise: above a floor), of derivative σ(raw); that of a logarithm is the value itself.
    factors = [(value() / torch.sigmoid(r)).detach() for value, r in zip(parameters, raw, strict=True)]

    def call(_: None) -> tuple[np.ndarray, np.ndarray]:
        values = evaluate()
        gradients = torch.autograd.grad(values.sum(), raw)
        by_log = [(g * factor).reshape(-1) for g, factor in zip(gradients, factors, strict=True)]
        return values.detach().numpy(), torch.stack(by_log, dim=1).numpy()

    return Side(call)


def gpytorch_batch(given: Batch, *, all_off: bool = False) -> tuple[Callable[[], Any], list[Any], list[Callable[[], Any]]]:
    """GPyTorch's batch mode: a function to the negative log marginal likelihood of every dataset, the raw parameters
    (variance, lengthscale, noise), and functions to their values."""
    import gpytorch
    import torch

    sets, n = given.y.shape
    shape = torch.Size([sets])
    x, y = torch.as_tensor(given.x), torch.as_tensor(given.y)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ZeroMean(batch_shape=shape)
            base = gpytorch.kernels.RBFKernel(batch_shape=shape)
            self.kernel = gpytorch.kernels.ScaleKernel(base, batch_shape=shape)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    # A floor far below the default 1e-4, which fits of little noise would run into.
    floor = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape, noise_constraint=floor)
    model = Model(likelihood).double().train()
    model.kernel.outputscale = torch.as_tensor(given.variance)
    model.kernel.base_kernel.lengthscale = torch.as_tensor(given.lengthscale)[:, None, None]
    likelihood.noise = torch.as_tensor(given.noise)[:, None]
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    raw = [model.kernel.raw_outputscale, model.kernel.base_kernel.raw_lengthscale, likelihood.noise_covar.raw_noise]
    on = not all_off

    def evaluate() -> torch.Tensor:
        with (
            gpytorch.settings.fast_computations(covar_root_decomposition=on, log_prob=on, solves=on),
            gpytorch.settings.max_cholesky_size(10**9),
        ):
            return -n * objective(model(x), y)

    parameters = [lambda: model.kernel.outputscale, lambda: model.kernel.base_kernel.lengthscale, lambda: likelihood.noise]
    return evaluate, raw, parameters
