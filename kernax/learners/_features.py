"""Explicit feature maps: callables of one point, which serve the linear learners and `kx.FeatureMap` alike."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kernax._arrays import as_floats, is_concrete, matmul, whole_number
from kernax.parameters import Parameter, Parametrised, as_function, positive, real


class PolynomialFeatures(eqx.Module):
    """All monomials of the coordinates of a point, of degree 1 to `degree`.

    d coordinates give `C(d + degree, degree) - 1` features, or `d · degree` without interactions.

    **Arguments:**

    - `degree`: the highest degree, a whole number of at least 1.
    - `interactions`: include products of different coordinates; with `False` only powers of single coordinates.
    - `constant`: put the constant 1 first. Linear learners add an intercept themselves, so it is left out by default;
      include it for `kx.FeatureMap`, or with `intercept=False`.
    """

    degree: int = eqx.field(static=True, converter=lambda value: whole_number(value, "PolynomialFeatures.degree"))
    interactions: bool = eqx.field(static=True, default=True)
    constant: bool = eqx.field(static=True, default=False, kw_only=True)

    def __call__(self, a: Float[Array, " d"]) -> Float[Array, " q"]:
        """The features of one point.

        **Arguments:**

        - `a`: a point, `(d,)`.

        **Returns:**

        A vector.
        """
        if a.ndim != 1:
            raise ValueError(f"PolynomialFeatures needs a point of shape (d,), got shape {a.shape}.")
        # A factor that is left out stands as a 1 behind the coordinates; products, and no powers, since these have no
        # derivative at 0 in some of their arguments.
        padded = jnp.append(a, 1.0)
        factors = padded[jnp.asarray(self._exponents(a.shape[0]))]
        product = factors[:, 0]
        for column in range(1, self.degree):
            product = product * factors[:, column]
        return product

    def _exponents(self, d: int) -> np.ndarray:
        """One row a monomial: the coordinates that are multiplied, filled up with d."""
        rows: list[tuple[int, ...]] = [()] if self.constant else []
        for degree in range(1, self.degree + 1):
            if self.interactions:
                rows += itertools.combinations_with_replacement(range(d), degree)
            else:
                rows += [(j,) * degree for j in range(d)]
        return np.array([row + (d,) * (self.degree - len(row)) for row in rows])


class FourierFeatures(Parametrised):
    """Fourier features, `scale · [cos(ω₁·a), …, cos(ω_m·a), sin(ω₁·a), …, sin(ω_m·a)]`.

    [`kernax.learners.random_fourier_features`][] draws the frequencies for an RBF kernel.

    **Arguments:**

    - `frequencies`: ω, `(m, d)`, one frequency per row.
    - `scale`: a factor of all features, one positive number.
    """

    frequencies: Float[Parameter, "m d"] = real()
    scale: Float[Parameter, ""] = positive(default=1.0, scalar=True)

    def __check_init__(self):
        if self.frequencies.ndim != 2:
            raise ValueError(
                f"FourierFeatures.frequencies has shape {self.frequencies.shape}; kernax needs (m, d), one frequency per "
                "row: for points with one coordinate write frequencies[:, None]."
            )

    def __call__(self, a: Float[Array, " d"]) -> Float[Array, " q"]:
        """The features of one point.

        **Arguments:**

        - `a`: a point, `(d,)`.

        **Returns:**

        A vector of `2m` numbers.
        """
        if a.shape != self.frequencies.shape[1:]:
            raise ValueError(
                f"the frequencies have {self.frequencies.shape[1]} coordinates, but a point has shape {a.shape}."
            )
        phases = matmul(self.frequencies, a)
        return self.scale * jnp.concatenate([jnp.cos(phases), jnp.sin(phases)])


def random_fourier_features(key: Key[Array, ""], num: int, lengthscale: Any) -> FourierFeatures:
    """Random features that approximate the RBF kernel: `φ(a)·φ(b) ≈ exp(-|a - b|²/2ℓ²)`, with an error of `1/√num`.

    **Arguments:**

    - `key`: random key of the frequencies.
    - `num`: how many frequencies to draw.
    - `lengthscale`: ℓ, one entry for each coordinate (a vector of length one for points on a line). Differentiable.

    **Returns:**

    A function of one point that gives its features.
    """
    lengthscale = as_floats(lengthscale, "lengthscale")
    if lengthscale.ndim != 1:
        raise ValueError(
            f"lengthscale has shape {lengthscale.shape}; random_fourier_features needs one for each coordinate: "
            "jnp.full(d, ℓ)."
        )
    if is_concrete(lengthscale) and not np.all(np.asarray(lengthscale) > 0):
        raise ValueError(f"lengthscale must be positive, got {np.asarray(lengthscale)}.")
    num = whole_number(num, "the number of frequencies")
    draws = jax.random.normal(key, (num, lengthscale.shape[0]), lengthscale.dtype)
    return FourierFeatures(draws / lengthscale, scale=jnp.asarray(num**-0.5, lengthscale.dtype))


def columns(a: Array) -> Array:
    """The coordinates themselves."""
    return a


def as_features(value: Any) -> Any:
    """A feature map as a module; None stands for the coordinates themselves."""
    return as_function(columns if value is None else value)
