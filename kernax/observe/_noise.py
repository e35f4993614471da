"""Noise of rows that observe values and slopes."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.noises import AbstractNoise
from kernax.parameters import Parameter, positive
from kernax.rows import functionals_in, observe_values


class Noise(AbstractNoise):
    """One noise variance for values and averages, another for slopes: they have different units.

    Give it as `kx.Model(kernel, noise=kx.observe.Noise(1e-4, 1e-2))`. Both are fitted like any other parameter.

    **Arguments:**

    - `value`: the variance of the noise of values and averages.
    - `slope`: the variance of the noise of slopes.
    """

    value: Float[Parameter, ""] = positive(scalar=True, unit="y²")
    slope: Float[Parameter, ""] = positive(scalar=True, unit="y²/x²")

    def __call__(self, row: Any) -> Float[Array, ""]:
        return jnp.where(observe_values(row), self.value, self.slope)

    def check(self, x: object) -> None:
        """Raise `ValueError` if the rows are not those of `kx.observe`."""
        if not functionals_in(x):
            raise ValueError("observe.Noise needs rows of kx.observe: write kx.observe.values(x, y) for plain rows.")
