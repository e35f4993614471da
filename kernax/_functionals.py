"""Rows that observe linear functionals of a function: its values, slopes and averages."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Functionals(eqx.Module):
    """Rows that each observe `Σ_q (weight_q f(x_q) + slope_q · ∇f(x_q))`. The functions of `kx.observe` make them.

    **Arguments:**

    - `x`: the points of each row, `(n, q, d)`: one for a value or a slope, several for an average.
    - `weight`: the factors of the values at the points, `(n, q)`.
    - `slope`: the factors of the gradients at the points, `(n, q, d)`; `None` if no row observes a slope.
    """

    x: Float[Array, "n q d"]
    weight: Float[Array, "n q"]
    slope: Float[Array, "n q d"] | None = None

    @property
    def has_slopes(self) -> bool:
        """Whether rows may observe slopes, that is, whether `slope` is not `None`."""
        return self.slope is not None

    @property
    def is_value(self) -> Bool[Array, "*n"]:
        """Which rows observe values or averages, and no slope; a single boolean for a single row."""
        if self.slope is None:
            return jnp.ones(self.weight.shape[:-1], bool)
        return jnp.all(self.slope == 0, axis=(-2, -1))

    def like(self, known: "Functionals") -> "Functionals":
        """These rows with as many points as other rows, and with slopes if those have them.

        **Arguments:**

        - `known`: the other rows.

        **Returns:**

        Rows. Raises `ValueError` if these rows have more points, or slopes where the others have none.
        """
        more = known.x.shape[1] - self.x.shape[1]
        if more < 0 or (self.has_slopes and not known.has_slopes):
            raise ValueError(
                "the new rows have more points per row than the rows so far, or observe slopes while the rows so far "
                "observe none: condition again on kx.observe.together(data, more)."
            )
        return self.padded(more, slopes=known.has_slopes)

    def padded(self, more: int, *, slopes: bool) -> "Functionals":
        """The same rows with more points, of weight 0.

        **Arguments:**

        - `more`: how many points to add.
        - `slopes`: whether the result has numbers for slopes.

        **Returns:**

        Rows.
        """
        x = jnp.concatenate([self.x, jnp.repeat(self.x[:, :1], more, axis=1)], axis=1)
        slope = self.slope
        if slopes:
            slope = jnp.zeros_like(self.x) if slope is None else slope
            slope = jnp.pad(slope, ((0, 0), (0, more), (0, 0)))
        return Functionals(x, jnp.pad(self.weight, ((0, 0), (0, more))), slope)

    def of(self, function: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "n ..."]:
        """The observed values, slopes or averages of a function.

        **Arguments:**

        - `function`: a function of many points, `(n, d)`, that returns one entry for each.

        **Returns:**

        An array with one entry for each row.
        """

        def part(points: Array, weight: Array, slope: Array | None) -> Array:
            if slope is None:
                value, along = function(points), 0.0
            else:
                value, along = jax.jvp(function, (points,), (slope.astype(points.dtype),))
            return weight.reshape(-1, *[1] * (value.ndim - 1)) * value + along

        if self.x.shape[1] == 1:
            return part(*jax.tree.map(lambda leaf: leaf[:, 0], (self.x, self.weight, self.slope)))
        # One point of each row after another, so that memory does not grow with their number, in reverse mode too.
        part = jax.checkpoint(part)
        points = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (self.x, self.weight, self.slope))
        like = jax.eval_shape(part, *jax.tree.map(lambda leaf: leaf[0], points))
        start = jnp.zeros(like.shape, like.dtype)
        return jax.lax.scan(lambda total, some: (total + part(*some), None), start, points)[0]


def values_at(x: Float[Array, "n d"]) -> Functionals:
    """Rows that observe the values of a function at points.

    **Arguments:**

    - `x`: points, `(n, d)`.

    **Returns:**

    Rows.
    """
    return Functionals(x[:, None], jnp.ones((x.shape[0], 1), x.dtype))


def at_rows(function: Callable[[Any], Any], x: Any) -> Any:
    """Evaluate a function of one point at every row. For rows of `kx.observe`, the result is what the rows observe of it.

    **Arguments:**

    - `function`: a function of one point.
    - `x`: rows.

    **Returns:**

    An array with one entry for each row.
    """
    return observed(jax.vmap(function), x)


def observed(function: Callable[[Any], Array], x: Any) -> Array:
    """What rows observe of a function of rows, in which `Functionals` have been replaced by points.

    **Arguments:**

    - `function`: takes rows and returns an array with one entry for each.
    - `x`: rows: `Functionals`, or a structure such as `{"x": functionals, "task": tasks}`.

    **Returns:**

    An array with one entry for each row. With several `Functionals` in a row, each is applied in its own argument.
    """
    leaves, structure = jax.tree.flatten(x, is_leaf=_is_functionals)

    def after(place: int, leaves: list[Any]) -> Array:
        if place == len(leaves):
            return function(jax.tree.unflatten(structure, leaves))
        leaf = leaves[place]
        if not _is_functionals(leaf):
            return after(place + 1, leaves)
        return leaf.of(lambda points: after(place + 1, [*leaves[:place], points, *leaves[place + 1 :]]))

    return after(0, leaves)


def functionals_in(x: Any) -> list[Functionals]:
    """The `Functionals` in some rows."""
    return [leaf for leaf in jax.tree.leaves(x, is_leaf=_is_functionals) if _is_functionals(leaf)]


def observe_values(x: Any) -> Bool[Array, "*n"] | bool:
    """Which rows observe values or averages, and no slope; `True` if no row holds `Functionals`."""
    return functools.reduce(operator.and_, (part.is_value for part in functionals_in(x)), True)


def fitted_to(x: Any, known: Any) -> Any:
    """New rows for rows that are known: plain points observe values where the known rows hold `Functionals`."""
    if not functionals_in(known):
        return x
    leaves, structure = jax.tree.flatten(known, is_leaf=_is_functionals)
    try:
        parts = structure.flatten_up_to(x)
    except ValueError:
        return x  # another structure, which `check_same_columns` refuses

    def one(leaf: Any, part: Any) -> Any:
        is_plain = _is_functionals(leaf) and not _is_functionals(part) and getattr(part, "ndim", 0) == 2
        return values_at(jnp.asarray(part)) if is_plain else part

    return jax.tree.unflatten(structure, [one(*pair) for pair in zip(leaves, parts, strict=True)])


def with_room(x: Any, known: Any) -> Any:
    """Rows whose `Functionals` have as many points as the known ones, and slopes if those have them."""

    def one(part: Any, other: Any) -> Any:
        return part.like(other) if _is_functionals(part) else part

    return jax.tree.map(one, x, known, is_leaf=_is_functionals) if functionals_in(x) else x


def _is_functionals(x: Any) -> bool:
    return isinstance(x, Functionals)
