"""Kernels of places on a sphere."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax.kernels._inputs import Warp
from kernax.kernels._kernel import AbstractKernel


class LatitudeLongitude(eqx.Module):
    """Converts `(latitude, longitude)` in degrees on a sphere to a point in space, `(3,)`.

    **Arguments:**

    - `radius`: the radius of the sphere.
    """

    radius: float = eqx.field(static=True, default=1.0, converter=lambda radius: _one_number(radius))

    def __check_init__(self):
        if not 0 < self.radius < math.inf:
            raise ValueError(f"the radius of a sphere must be finite and positive, got {self.radius:g}.")

    def check(self, x: Any) -> None:
        """Raise `ValueError` if a latitude or longitude is out of range, as far as that can be seen before tracing."""
        if not hasattr(x, "ndim") or x.ndim != 2 or x.shape[1] != 2 or not is_concrete(x):
            return
        for column, (name, most) in enumerate((("latitude", 90.0), ("longitude", 360.0))):
            wrong = np.abs(np.asarray(x[:, column])) > most
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ValueError(
                    f"Sphere takes latitudes from -90 to 90 and longitudes from -360 to 360, in degrees and in this order, "
                    f"but row {row} has the {name} {float(x[row, column]):g}."
                )

    def __call__(self, place: Float[Array, " columns"]) -> Float[Array, " 3"]:
        """Convert one place.

        **Arguments:**

        - `place`: latitude and longitude in degrees.

        **Returns:**

        A vector `(3,)`.
        """
        if place.shape != (2,):
            raise ValueError(
                f"Sphere needs rows of latitude and longitude, got {place.shape[-1]} columns: choose two with "
                "kx.Select(kernel, columns=(0, 1))."
            )
        latitude, longitude = jnp.deg2rad(place[0]), jnp.deg2rad(place[1])
        flat = jnp.cos(latitude)
        return self.radius * jnp.stack([flat * jnp.cos(longitude), flat * jnp.sin(longitude), jnp.sin(latitude)])


def _one_number(radius: Any) -> float:
    if np.ndim(radius):
        raise ValueError(f"the radius of a sphere must be one number, got shape {np.shape(radius)}.")
    return float(radius)


def Sphere(kernel: AbstractKernel, *, radius: Any = 1.0) -> Warp:  # noqa: N802  (a kernel, made of another one)
    """A kernel of the straight distance, through the sphere, between two places.

    Rows are latitude and longitude in degrees. Longitudes may run from -180 to 180 or from 0 to 360, and the poles need no
    special treatment. Every kernel of three columns stays positive definite. With the distance along the surface it would
    not: an RBF of that distance is indefinite.

    **Arguments:**

    - `kernel`: a kernel of three columns, such as `kx.Matern32(lengthscale=500.0)`.
    - `radius`: the radius of the sphere, in the units of the lengthscale: 6371.0 for kilometres on the Earth.

    **Returns:**

    A [`kernax.Warp`][].
    """
    return Warp(kernel, LatitudeLongitude(radius))
