"""Sums of waves whose frequencies are spread around a few values."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import as_floats, matmul, whole_number
from kernax.kernels._distances import centred, squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._random_features import orthogonal_normal
from kernax.parameters import Parameter, positive, real

_GRID = 4
"""Frequencies of a periodogram for each 1/range: enough to meet every peak near its top."""
_MOST_FREQUENCIES = 20_000


class SpectralMixture(AbstractKernel):
    """`Σ_q w_q exp(-2π² Σ_k b_qk² δ_k²) cos(2π Σ_k f_qk δ_k)` with `δ = a - b`: a mixture of Gaussians as spectral density.

    Positive definite, since its spectral density is not negative. With enough components it comes close to any stationary
    kernel. Its likelihood has many local maxima: start with `SpectralMixture.of_periodogram(x, y, number)`, or from
    known frequencies.

    **Arguments:**

    - `weight`: w, the variance of each component.
    - `frequency`: f, the centre of each component in every column, `(components, columns)`; `(components,)` for one column.
    - `bandwidth`: b, the standard deviation of the frequencies around f, in the shape of `frequency`. A wave keeps its phase
      over a distance of about `1/(2πb)`.
    """

    weight: Float[Parameter, " q"] = positive(unit="y²")
    frequency: Float[Parameter, "q d"] = real(unit="1/x")
    bandwidth: Float[Parameter, "q d"] = positive(unit="1/x")

    def __init__(self, weight: Any, frequency: Any, bandwidth: Any):
        self.weight = as_floats(weight, "SpectralMixture.weight")
        self.frequency = _two_axes(as_floats(frequency, "SpectralMixture.frequency"))
        self.bandwidth = _two_axes(as_floats(bandwidth, "SpectralMixture.bandwidth"))
        if self.weight.ndim != 1 or self.frequency.shape != self.bandwidth.shape or self.weight.size != len(self.frequency):
            raise ValueError(
                "SpectralMixture needs a weight for each component, and frequencies and bandwidths of shape (components, "
                f"columns), got shapes {self.weight.shape}, {self.frequency.shape} and {self.bandwidth.shape}."
            )

    @classmethod
    def of_periodogram(cls, x: Any, y: Any, number: int) -> "SpectralMixture":
        """A kernel whose components are at the highest peaks of the data's periodogram.

        **Arguments:**

        - `x`: inputs, `(n, d)`, in any order and at any distances. Each column has its own periodogram.
        - `y`: targets, `(n,)`.
        - `number`: how many components.

        **Returns:**

        A `SpectralMixture` whose weights are in proportion to the power of the peaks and add up to the variance of y.
        """
        x, y = (np.asarray(value, float) for value in (x, y))
        if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
            raise ValueError(
                f"of_periodogram needs rows x of shape (n, d) and y of shape (n,), got shapes {x.shape} and {y.shape}."
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError("of_periodogram needs finite x and y, got NaN or infinity: leave those rows out.")
        number, spread = whole_number(number, "number"), float(np.var(y)) or 1.0
        peaks = [_highest_peaks(column, y - y.mean(), number) for column in x.T]
        power = np.mean([own for own, _, _ in peaks], axis=0)
        share = power / power.sum() if power.sum() > 0 else np.full(number, 1.0 / number)
        frequency, bandwidth = (np.stack(parts, axis=1) for parts in list(zip(*peaks, strict=True))[1:])
        return cls(np.maximum(share, 1e-6) * spread, frequency, bandwidth)

    def pair(self, a, b):
        self._check(a.shape[-1])
        steps = a - b
        fading = jnp.exp(-2.0 * jnp.pi**2 * jnp.sum((self.bandwidth * steps) ** 2, axis=1))
        return jnp.sum(self.weight * fading * jnp.cos(2.0 * jnp.pi * jnp.sum(self.frequency * steps, axis=1)))

    def gram(self, x, z):
        self._check(x.shape[1])
        x, z = centred(x, z)
        own = z is None
        z = x if z is None else z
        total = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
        for weight, frequency, bandwidth in zip(self.weight, self.frequency, self.bandwidth, strict=True):
            squares = squared_distances(x, None if own else z, 1.0 / bandwidth)
            # The difference of the phases, column by column: exactly 0 where a row meets itself.
            phases = sum(f * (x[:, k, None] - z[None, :, k]) for k, f in enumerate(frequency))
            total = total + weight * jnp.exp(-2.0 * jnp.pi**2 * squares) * jnp.cos(2.0 * jnp.pi * phases)
        return total

    def diag(self, x):
        self._check(x.shape[1])
        return jnp.broadcast_to(jnp.sum(self.weight), x.shape[:1])

    def waves(self, x, number, seed):
        return self.waves_of(x, orthogonal_normal(number, x.shape[1], seed))

    def waves_of(self, x: Float[Array, "n d"], normal: Any) -> tuple[Float[Array, "n m"], Float[Array, " m"]]:
        """Waves of given standard normal vectors, `(number, columns)`, which every component shifts and scales."""
        self._check(x.shape[1])
        normal = jnp.asarray(normal, x.dtype)
        frequencies = (self.frequency[:, None] + self.bandwidth[:, None] * normal).reshape(-1, x.shape[1])
        return 2.0 * jnp.pi * matmul(x, frequencies.T), jnp.repeat(self.weight / len(normal), len(normal))

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.weight, self, self.weight * (variance / jnp.sum(self.weight)))

    def _check(self, width: int) -> None:
        if width != self.frequency.shape[1]:
            raise ValueError(
                f"SpectralMixture has frequencies for {self.frequency.shape[1]} columns, but the inputs have {width}: give "
                "frequency and bandwidth the shape (components, columns)."
            )


def _two_axes(value: Array) -> Array:
    return value[:, None] if value.ndim == 1 else value


def _highest_peaks(column: np.ndarray, y: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Power, frequency and bandwidth at the highest peaks of the periodogram, repeated if there are few."""
    times = np.unique(column)
    length = times[-1] - times[0]
    if length <= 0:
        return np.ones(number), np.zeros(number), np.ones(number)
    fastest = min(_MOST_FREQUENCIES / _GRID, 0.5 * length / np.median(np.diff(times)))
    frequencies = np.arange(1, max(2, int(_GRID * fastest) + 1)) / (_GRID * length)
    power = np.array([np.abs(np.exp(-2j * np.pi * f * column) @ y) ** 2 for f in frequencies])
    around = np.concatenate([[-np.inf], power, [-np.inf]])
    tops = np.flatnonzero((power >= around[:-2]) & (power >= around[2:]))
    order = tops[np.argsort(-power[tops], kind="stable")][:number]
    chosen = order[np.arange(number) % len(order)]
    # A peak is about as wide as 1/range. Components at the same peak begin with different widths.
    widths = (1.0 + np.arange(number) // len(order)) / (2.0 * length)
    return power[chosen], frequencies[chosen], widths
