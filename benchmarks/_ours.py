"""kernax's side of the comparisons, in the common form of `_peers.py`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks._problem import Parameters, Problem
from benchmarks._timing import Side


def model_of(p: Parameters) -> kx.Model:
    return kx.Model(p.variance * kx.RBF(lengthscale=p.lengthscale), noise=p.noise)


def parameters_of(model: kx.Model) -> Parameters:
    """The way back; of a gradient, too, which is a `Model` of slopes."""
    return Parameters(model.kernel.variance, model.kernel.kernel.lengthscale, model.noise)


def program(
    objective: Callable[[kx.model.Conditioned], jax.Array], given: Problem
) -> tuple[Callable, tuple[kx.Model, kx.Data]]:
    """Value and gradient of an objective, compiled, and what to call it with."""
    compiled = jax.jit(jax.value_and_grad(lambda model, data: objective(kx.condition(model, data))))
    model = jax.tree.map(jnp.asarray, model_of(given.parameters))
    return compiled, (model, kx.Data(given.x, given.y))


def value_and_gradient(objective: Callable[[kx.model.Conditioned], jax.Array], given: Problem) -> Side:
    compiled, arguments = program(objective, given)

    def call(_: None) -> tuple[jax.Array, np.ndarray]:
        value, gradient = jax.block_until_ready(compiled(*arguments))
        return value, parameters_of(gradient).flat()

    return Side(call)


def gram(name: str, given: Problem) -> Side:
    compiled = jax.jit(lambda kernel, x: kernel(x))
    kernel = given.parameters.variance * getattr(kx, name)(lengthscale=given.parameters.lengthscale)
    x = jnp.asarray(given.x)
    return Side(lambda _: compiled(kernel, x))
