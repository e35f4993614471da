"""Periodic kernels."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul, whole_number
from kernax.kernels._distances import centred, squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import of_features
from kernax.kernels._stationary import check_width
from kernax.parameters import Parameter, positive

_SHORT = 0.05
"""Lengthscales below which Debye's expansion of the weights is exact to rounding."""
_EXTRA_ORDERS = 120
"""Orders beyond those that are used from which the recursion of the weights starts: enough for lengthscales of `_SHORT`."""


class Periodic(AbstractKernel):
    """Periodic kernel, `exp(-2 Σ_k sin²(π(a_k - b_k)/p_k) / ℓ_k²)`: functions that repeat exactly in every column.

    With several columns it is the product over the columns, which is positive definite; a sine of the Euclidean distance
    would not be. The Gram matrix is that of an RBF on the circle: with `u = (cos, sin)(2πa/p)`,
    `4 sin²(π(a-b)/p) = ‖u(a) - u(b)‖²`.

    For one column it is also `Σ_j q_j cos(2πj(a-b)/p)`, with weights `q_j` that add up to 1 (Bessel functions of `1/ℓ²`).
    `kx.StateSpace()` uses only the first `harmonics` of these terms, so it is not exact. The error of a kernel value is at
    most `omitted_variance()`: with 15 harmonics less than 1e-15 if ℓ ≥ 0.8, 1e-9 if ℓ ≥ 0.5, and 1e-5 if ℓ ≥ 0.3. If that
    is not small compared with the noise, the result is `too_few_harmonics`. Other solvers use the exact kernel.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column: how smooth the function is within a period. It has no unit.
    - `period`: p, one number or one for each column.
    - `harmonics`: for `kx.StateSpace()` only: how many harmonics are used. Each adds two numbers to the state.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0)
    period: Float[Parameter, "*d"] = positive(default=1.0, unit="x")
    harmonics: int = eqx.field(static=True, default=15, repr=False)

    def __check_init__(self):
        whole_number(self.harmonics, "Periodic.harmonics")

    def pair(self, a, b):
        self._check(a.shape[-1])
        return jnp.exp(-2.0 * jnp.sum((jnp.sin(jnp.pi * (a - b) / self.period) / self.lengthscale) ** 2))

    def gram(self, x, z):
        self._check(x.shape[1])
        x, z = centred(x, z)
        # Cosine and sine have the same lengthscale.
        lengthscale = self.lengthscale if self.lengthscale.ndim == 0 else jnp.tile(self.lengthscale, 2)
        return jnp.exp(-0.5 * squared_distances(self._circle(x), None if z is None else self._circle(z), lengthscale))

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def coordinates(self, x):
        width = jnp.broadcast_to(self.lengthscale, x.shape[1])
        return self._circle(x) / jnp.tile(width, 2)

    def state_space(self):
        return of_features(self._waves) if self.lengthscale.size == self.period.size == 1 else None

    def omitted_variance(self) -> Float[Array, ""]:
        """The variance that `kx.StateSpace()` leaves out: 1 minus the weights of the harmonics that it uses.

        **Returns:**

        One number.
        """
        return jnp.maximum(1.0 - jnp.sum(_wave_weights(self.harmonics, self.lengthscale.reshape(()))), 0.0)

    def _waves(self, x: Float[Array, "n 1"]) -> Float[Array, "n r"]:
        """Cosine and sine of every harmonic, times the root of its weight."""
        if x.shape[1] != 1:
            raise ValueError(f"StateSpace() takes Periodic of one column, got {x.shape[1]}: choose one with kx.Select.")
        roots = jnp.sqrt(_wave_weights(self.harmonics, self.lengthscale.reshape(())))
        angles = 2.0 * jnp.pi / self.period.reshape(()) * x * jnp.arange(1, self.harmonics + 1)
        level = jnp.broadcast_to(roots[0], x.shape)
        return jnp.concatenate([level, roots[1:] * jnp.cos(angles), roots[1:] * jnp.sin(angles)], axis=1)

    def _circle(self, x: Float[Array, "n d"]) -> Float[Array, "n 2*d"]:
        angle = 2.0 * jnp.pi * x / self.period
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def _check(self, width: int) -> None:
        check_width(self, "lengthscale", self.lengthscale, width)
        check_width(self, "period", self.period, width)


class Cosine(AbstractKernel):
    """Cosine kernel, `cos(2π Σ_k (a_k - b_k)/p_k)`: sine waves with one period, of any amplitude and phase.

    Use it for exact sine waves; for other periodic functions use [`kernax.Periodic`][].

    **Arguments:**

    - `period`: p, one number or one for each column.
    """

    period: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def pair(self, a, b):
        check_width(self, "period", self.period, a.shape[-1])
        return jnp.cos(2.0 * jnp.pi * jnp.sum((a - b) / self.period))

    def gram(self, x, z):
        check_width(self, "period", self.period, x.shape[1])
        x, z = centred(x, z)
        u = self._wave(x)
        if z is None:
            return jnp.where(jnp.eye(x.shape[0], dtype=bool), 1.0, matmul(u, u.T))
        return matmul(u, self._wave(z).T)

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        check_width(self, "period", self.period, x.shape[1])
        return self._wave(x)

    def _wave(self, x: Float[Array, "n d"]) -> Float[Array, "n 2"]:
        angle = 2.0 * jnp.pi * jnp.sum(x / self.period, axis=1)
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


def _wave_weights(count: int, lengthscale: Float[Array, ""]) -> Float[Array, " r"]:
    """`q_0 = I_0(κ)e^-κ` and `q_j = 2 I_j(κ)e^-κ` with `κ = 1/ℓ²`, for j up to `count`.

    A floor keeps the root of a weight that underflows differentiable.
    """
    is_short = lengthscale < _SHORT
    by_ratios = _bessel_by_ratios(count, jnp.where(is_short, _SHORT, lengthscale) ** 2)
    values = jnp.where(is_short, _bessel_of_short(count, jnp.where(is_short, lengthscale, _SHORT) ** 2), by_ratios)
    weights = values * jnp.where(jnp.arange(count + 1) > 0, 2.0, 1.0)
    return jnp.maximum(weights, jnp.finfo(lengthscale.dtype).tiny).astype(lengthscale.dtype)


def _bessel_by_ratios(count: int, inverse: Float[Array, ""]) -> Float[Array, " r"]:
    """`I_j(κ)e^-κ` for j up to `count`, of `1/κ`.

    The ratios `I_j/I_(j-1) = 1/(2j/κ + I_(j+1)/I_j)` are computed from high j downwards, where errors die out.
    """

    def downwards(ratio: Array, j: Array) -> tuple[Array, Array]:
        ratio = 1.0 / (2.0 * j * inverse + ratio)
        return ratio, ratio

    orders = jnp.arange(1, count + _EXTRA_ORDERS, dtype=inverse.dtype)
    ratios = jax.lax.scan(downwards, jnp.zeros_like(inverse), orders, reverse=True)[1][:count]
    return jax.scipy.special.i0e(1.0 / inverse) * jnp.concatenate([jnp.ones(1, inverse.dtype), jnp.cumprod(ratios)])


def _bessel_of_short(count: int, inverse: Float[Array, ""]) -> Float[Array, " r"]:
    """The same for large κ, by Debye's expansion in powers of `1/√(j² + κ²)` (DLMF 10.41)."""
    orders = jnp.arange(count + 1, dtype=inverse.dtype)
    slope = orders * inverse
    root = jnp.sqrt(1.0 + slope**2)
    small, t = inverse / root, (slope / root) ** 2
    series = 1.0 + small * (
        (3 - 5 * t) / 24
        + small * ((81 + t * (-462 + t * 385)) / 1152 + small * (30375 + t * (-369603 + t * (765765 - t * 425425))) / 414720)
    )
    fourth = 4465125 + t * (-94121676 + t * (349922430 + t * (-446185740 + t * 185910725)))
    series = series + small**4 * fourth / 39813120
    return jnp.exp(orders * (slope / (1.0 + root) - jnp.arcsinh(slope))) * jnp.sqrt(small / (2.0 * jnp.pi)) * series
