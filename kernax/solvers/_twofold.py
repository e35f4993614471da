"""Numbers with twice the digits: each is the unevaluated sum of two floating-point numbers.

Products are computed from halves of the digits, which are cut off as bits. Every partial product is then exact, so it does
not matter whether the compiler joins a product and a sum into one operation (Dekker, Numerische Mathematik 18, 1971). Errors
of sums are relative to the size of the terms. To keep programs short, few operations work on large arrays.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax.solvers._steps import Steps, dense

_LOWER_HALF = {"float32": (np.int32, 12), "float64": (np.int64, 27)}
"""The integer type of the same width, and how many bits the lower half of the digits has."""


class Twofold(eqx.Module):
    """Arrays with twice the digits."""

    high: Float[Array, "*s"]
    """The numbers, rounded."""
    low: Float[Array, "*s"]
    """What is missing to them."""

    @classmethod
    def of(cls, values: Float[Array, "*s"]) -> "Twofold":
        """Arrays as they are."""
        return cls(values, jnp.zeros_like(values))

    def __getitem__(self, index: Any) -> "Twofold":
        return Twofold(self.high[index], self.low[index])

    def reshape(self, *shape: int) -> "Twofold":
        return Twofold(self.high.reshape(*shape), self.low.reshape(*shape))

    def __neg__(self) -> "Twofold":
        return Twofold(-self.high, -self.low)

    def __add__(self, other: "Twofold | Array") -> "Twofold":
        high, low = (other.high, self.low + other.low) if isinstance(other, Twofold) else (other, self.low)
        total, missing = _sum(self.high, high)
        return Twofold(*_ordered_sum(total, missing + low))

    def __mul__(self, other: "Twofold | Array") -> "Twofold":
        factor = other if isinstance(other, Twofold) else Twofold.of(other)
        product, missing = _product(self.high, factor.high)
        missing = missing + self.low * factor.high
        return Twofold(*_ordered_sum(product, missing + self.high * factor.low if factor is other else missing))

    def divided(self, by: "Twofold", where: Bool[Array, "..."], times: Float[Array, "..."]) -> "Twofold":
        """Divided by numbers where these are allowed, else as it is; times 0 or 1."""
        divisor = jnp.where(where, by.high, 1.0)
        quotient = self.high / divisor * times
        product, missing = _product(quotient, divisor)
        rest = ((self.high * times - product) - missing) + (self.low * times - quotient * jnp.where(where, by.low, 0.0))
        return Twofold(*_ordered_sum(quotient, rest / divisor))

    def total(self, axis: int) -> "Twofold":
        """The sum along an axis."""
        values = jax.tree.map(lambda part: jnp.moveaxis(part, axis, 0), self)
        while values.high.shape[0] > 1:
            half = values.high.shape[0] // 2
            values = _joined([values[:half] + values[half : 2 * half], values[2 * half :]])
        return values[0]


def ahead_of(step: Steps, held: Twofold) -> Twofold:
    """`Steps.ahead`: `M P Mᵀ + Q`."""
    rows, columns, begin = [], [], 0
    for move in step.moves:
        count, size = move.shape[:2]
        own = held[begin : begin + count * size].reshape(count, 1, size, -1)
        rows.append((own * move[..., None]).total(2).reshape(count * size, -1))
        begin += count * size
    moved, begin = _joined(rows), 0
    for move in step.moves:
        count, size = move.shape[:2]
        own = moved[:, begin : begin + count * size].reshape(-1, count, 1, size)
        columns.append((own * move).total(3).reshape(-1, count * size))
        begin += count * size
    return _joined(columns, axis=1) + dense(step.shocks)


def seen_of(step: Steps, states: Twofold) -> Twofold:
    """`Steps.seen`: `hᵀ S`."""
    if step.varying is not None:
        return (states * step.varying[:, None]).total(0)
    assert step.fixed is not None
    weights = np.array(step.fixed)
    seen = states[np.flatnonzero(weights)]
    weights = weights[weights != 0]
    return (seen if np.all(weights == 1.0) else seen * jnp.asarray(weights, seen.high.dtype)[:, None]).total(0)


def _joined(parts: list[Twofold], axis: int = 0) -> Twofold:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=axis), *parts)


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and what is missing to it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _ordered_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The same if a is at least as large as b."""
    total = a + b
    return total, b - (total - a)


def _product(a: Float[Array, "..."], b: Float[Array, "..."]) -> tuple[Array, Array]:
    """The product, rounded, and what is missing to it."""
    (a, below_a), (b, below_b) = _halves(a), _halves(b)
    total, missing = _sum(a * b, a * below_b)
    total, more = _sum(total, below_a * b)
    return total, (missing + more) + below_a * below_b


def _halves(a: Float[Array, "..."]) -> tuple[Array, Array]:
    """The numbers with the upper half of their digits, and what is missing to them."""
    integer, bits = _LOWER_HALF[a.dtype.name]
    digits = jax.lax.bitcast_convert_type(a, integer)
    upper = jax.lax.bitcast_convert_type(digits & np.asarray(-(1 << bits), integer), a.dtype)
    return upper, a - upper
