"""Where fits start: values that suit the data, and random starts."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from kernax import means
from kernax.data import Data
from kernax.model import Model
from kernax.parameters import as_dtype, parameters, setting


def initialise(model: Model, data: Data) -> Model:
    """The model with starting values that suit the data's scales; fits from there take fewer steps and rarely fail.

    Lengthscales become the median distance of two rows (per column, if there is one per column), a kernel's variances
    share the target's variance, the noise becomes a tenth of it, a constant mean the target's mean. Periods, exponents,
    networks and per-row noise stay as they are. A kernel of one's own takes part by its method `initialised`.
    """
    model = as_dtype(model, data.dtype)
    counts = data.mask if data.y.ndim == 1 else data.mask[:, None]
    level = jnp.mean(data.y, axis=0, where=counts)
    spread = jnp.mean(jnp.var(data.y, axis=0, where=counts))
    spread = jnp.where(jnp.isfinite(spread) & (spread > 0), spread, 1.0)
    model = eqx.tree_at(lambda m: m.kernel, model, model.kernel.initialised(data.x, data.mask, spread))
    if model.noise.ndim == 0:
        model = eqx.tree_at(lambda m: m.noise, model, jnp.where(model.noise > 0, 0.1 * spread, 0.0))
    if isinstance(model.mean, means.Constant):
        value = level if model.mean.value.ndim == level.ndim else jnp.mean(level)
        model = eqx.tree_at(lambda m: m.mean.value, model, jnp.broadcast_to(value, model.mean.value.shape))
    return model


def starting_points(model: Model, free: Model, restarts: int, key: Key[Array, ""] | None) -> list[Model]:
    """The given start and `restarts` random ones: drawn from a parameter's prior if it can be sampled, and otherwise a
    standard normal step away in the unconstrained space (a factor of about e for positive parameters)."""
    keys = [] if key is None else jax.random.split(key, restarts)
    return [free, *(_random_start(model, free, k) for k in keys)]


def _random_start(model: Model, free: Model, key: Key[Array, ""]) -> Model:
    paths = parameters(free)
    keys = dict(zip((path for path, _ in paths), jax.random.split(key, len(paths)), strict=True))

    def drawn(path: tuple, leaf: Array) -> Array:
        if path not in keys:
            return leaf
        known = setting(model, path)
        sampler = getattr(known.prior, "sample", None)
        if sampler is not None:
            assert known.bijector is not None
            return known.bijector.inverse(sampler(keys[path], leaf.shape, leaf.dtype))
        return leaf + jax.random.normal(keys[path], leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(drawn, free)
