"""The variance of the noise at each row: a number, an array, or a module that is called with one row."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import as_floats
from kernax.parameters import Parametrised, as_function
from kernax.rows import Grid, Rows, map_rows, num_rows, take


def as_noise(value: Any) -> Any:
    """Convert what a user may pass as a noise.

    **Arguments:**

    - `value`: a number, an array with one variance for each row, or a function or module of one row.

    **Returns:**

    An array for a number or an array, and a module for a function or a module.
    """
    if isinstance(value, Parametrised) or (callable(value) and not hasattr(value, "dtype")):
        return as_function(value)
    return as_floats(value, "Model.noise")


def is_per_row(noise: Any) -> bool:
    """Whether the noise is an array with one variance for each training row, so that it is unknown for new rows.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.

    **Returns:**

    A boolean.
    """
    return not callable(noise) and noise.ndim > 0


def is_common(noise: Any) -> bool:
    """Whether the noise is one number for all rows, old and new.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.

    **Returns:**

    A boolean.
    """
    return not callable(noise) and noise.ndim == 0


def noise_values(noise: Any, x: Rows, dtype: Any) -> Float[Array, "*n"]:
    """The noise variance of every training row.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.
    - `x`: the training rows.
    - `dtype`: the floating type of the answer.

    **Returns:**

    An array of shape `()` if the noise is one number for all rows, else `(n,)`. Raises `ValueError` if a noise function does
    not return one number for each row.
    """
    if callable(noise):
        values = jnp.asarray(map_rows(jax.vmap(noise), x, 1), dtype)
        if values.ndim != 1:
            raise ValueError(f"a noise function must return one number for one row, got shape {values.shape[1:]}.")
        return values
    return jnp.asarray(noise, dtype)


def noise_axis(noise: Any, x: Any) -> int | None:
    """The axis of a grid that alone decides the noise, such as the tasks for a noise of each task.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.
    - `x`: rows.

    **Returns:**

    The number of the axis; `None` if the rows are not a grid with named axes, or if the noise needs more than one of them.
    """
    if not callable(noise) or not isinstance(x, Grid) or x.names is None:
        return None
    for number, (name, axis) in enumerate(zip(x.names, x.axes, strict=True)):
        try:
            eqx.filter_eval_shape(jax.vmap(noise), {name: axis})
        except (KeyError, TypeError, ValueError):
            continue
        return number
    return None


def noise_at(noise: Any, x: Rows, dtype: Any) -> Float[Array, "*m"]:
    """The noise variance of new rows.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.
    - `x`: new rows.
    - `dtype`: the floating type of the answer.

    **Returns:**

    An array of shape `()` if the noise is one number for all rows, else `(m,)`. Raises `ValueError` if the noise is known
    for the training rows only.
    """
    if is_per_row(noise):
        raise ValueError(
            "the model's noise is given per training row, so that of new rows is unknown: add it to the answer yourself, "
            "or give noise as a function of the row (kx.noises.Known, kx.noises.PerGroup, or a module)."
        )
    return noise_values(noise, x, dtype)


def check_noise(noise: Any, x: Any) -> None:
    """Raise `ValueError` if the noise does not fit these rows, as far as that can be checked before tracing.

    **Arguments:**

    - `noise`: a noise from `kernax.noises.as_noise`.
    - `x`: rows.

    **Returns:**

    `None`.
    """
    if hasattr(noise, "check"):
        noise.check(take(x) if isinstance(x, Grid) else x)
    elif not callable(noise) and noise.shape not in ((), (num_rows(x),)):
        raise ValueError(
            f"Model.noise has shape {noise.shape}, but the data has {num_rows(x)} rows: give one number or one per row."
        )
