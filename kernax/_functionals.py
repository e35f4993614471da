"""Rows that observe linear functionals of a function: its values, slopes and averages."""

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
    return x.of(jax.vmap(function)) if isinstance(x, Functionals) else jax.vmap(function)(x)
