"""Kernels that are Markov processes of one column: what `kx.StateSpace()` asks for.

A Markov process has a state of J numbers, and `f(t) = observation · state(t)`. Over a step of length δ the state becomes
`A(δ) state + shock`, and the shock has the covariance `Q(δ)`. Without data the state has the covariance `P∞`, for which
`P∞ = A P∞ Aᵀ + Q` for every δ. `Q` is computed as it stands: the difference `P∞ - A P∞ Aᵀ` loses all digits for small steps.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.rows import Rows

_FAR = 800.0
"""A step of so many lengthscales forgets everything: `exp(-800)` is 0 in float64. Powers of longer steps may overflow."""
_WRITTEN_OUT = 12
"""Products of matrices with more columns are left to XLA."""
_NEAR, _TERMS = 2.0, 22
"""Below `_NEAR` the series is used; so many terms of it are exact to rounding there."""


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """Which number of a row is the time. It is compared by value."""

    path: tuple[str | int, ...] = ()
    """Keys of dicts and places in tuples that lead to an array."""
    column: int | None = None
    """The column of that array; `None` if it must have one column only."""

    def __call__(self, x: Rows) -> Float[Array, " n"]:
        """The times of all rows; raises `TypeError` if the array has several columns and none is chosen."""
        for step in self.path:
            x = x[step]
        if self.column is None and x.shape[1] != 1:
            raise TypeError(
                f"StateSpace() needs a kernel of one column, but the rows have {x.shape[1]}: choose one with "
                "kx.Select(kernel, columns=0), or use kx.Cholesky() or kx.CG()."
            )
        return x[:, self.column or 0]


@dataclasses.dataclass(frozen=True)
class MarkovProcess:
    """A kernel as a Markov process. See the module's docstring for the terms.

    **Arguments:**

    - `coordinate`: which number of a row is the time; `None` if the process does not depend on it (a constant).
    - `observation`: the vector h with `f = h · state`. It holds constants; what is fitted goes into `stationary`.
    - `stationary`: `P∞`, the covariance of the state without data.
    - `transition`: a function from steps δ of any shape `*n` to the matrices `A(δ)` and `Q(δ)`, of shape `(*n, J, J)`.
    """

    coordinate: Coordinate | None
    observation: np.ndarray
    stationary: Float[Array, "j j"]
    transition: Callable[[Array], tuple[Array, Array]]


def matern(order: int, lengthscale: Float[Array, "*d"]) -> MarkovProcess | None:
    """The process of the Matérn kernel of smoothness `order + ½`.

    The state is f and its first derivatives, each divided by a power of the rate so that all entries are of order 1.

    **Arguments:**

    - `order`: 0, 1 or 2: how often f can be differentiated.
    - `lengthscale`: one number.

    **Returns:**

    A `MarkovProcess`; `None` if there is more than one lengthscale.
    """
    if lengthscale.size != 1:
        return None
    rate, (powers, shares) = math.sqrt(2 * order + 1) / lengthscale.reshape(()), _matern_matrices(order)

    def transition(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n j j"], Float[Array, "*n j j"]]:
        x = jnp.minimum(rate * steps, _FAR)
        terms = [jnp.exp(-x) * x**k / math.factorial(k) for k in range(order + 1)]
        return _combined(powers, terms), _combined(shares, _gamma_tails(2 * order + 1, 2.0 * x))

    stationary = jnp.asarray(np.sum(shares, axis=0), rate.dtype)
    return MarkovProcess(Coordinate(), np.eye(order + 1)[0], stationary, transition)


def constant(variance: Float[Array, ""]) -> MarkovProcess:
    """The process that never changes."""

    def transition(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n 1 1"], Float[Array, "*n 1 1"]]:
        matrix = jnp.ones_like(steps)[..., None, None]
        return matrix, jnp.zeros_like(matrix)

    return MarkovProcess(None, np.ones(1), variance.reshape(1, 1), transition)


def scaled(process: MarkovProcess | None, variance: Float[Array, ""]) -> MarkovProcess | None:
    """The process of `variance · k`."""
    if process is None:
        return None

    def transition(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n j j"], Float[Array, "*n j j"]]:
        move, shock = process.transition(steps)
        return move, variance * shock

    return dataclasses.replace(process, stationary=variance * process.stationary, transition=transition)


def summed(processes: Sequence[MarkovProcess | None]) -> MarkovProcess | None:
    """The process of a sum: the states of all parts one below the other."""
    parts, coordinate = _of_one_coordinate(processes)
    if not parts:
        return None

    def transition(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n j j"], Float[Array, "*n j j"]]:
        moves, shocks = zip(*(part.transition(steps) for part in parts), strict=True)
        return _block_diagonal(moves), _block_diagonal(shocks)

    observation = np.concatenate([part.observation for part in parts])
    return MarkovProcess(coordinate, observation, _block_diagonal([part.stationary for part in parts]), transition)


def multiplied(processes: Sequence[MarkovProcess | None]) -> MarkovProcess | None:
    """The process of a product: all products of two entries of the states."""
    parts, coordinate = _of_one_coordinate(processes)
    return dataclasses.replace(functools.reduce(_product, parts), coordinate=coordinate) if parts else None


def _product(first: MarkovProcess, second: MarkovProcess) -> MarkovProcess:
    def transition(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n j j"], Float[Array, "*n j j"]]:
        (move, shock), (other_move, other_shock) = first.transition(steps), second.transition(steps)
        kept = product(product(move, first.stationary), jnp.swapaxes(move, -1, -2))
        return _kronecker(move, other_move), _kronecker(shock, second.stationary) + _kronecker(kept, other_shock)

    observation = np.kron(first.observation, second.observation)
    return MarkovProcess(None, observation, _kronecker(first.stationary, second.stationary), transition)


def selected(
    process: MarkovProcess | None, columns: tuple[int, ...] | None, place: str | int | None
) -> MarkovProcess | None:
    """The process of a kernel that sees a part of each row: chosen columns of an array, or a place in a structure."""
    if process is None or process.coordinate is None:
        return process
    inner = process.coordinate
    if columns is None:
        assert place is not None
        return dataclasses.replace(process, coordinate=Coordinate((place, *inner.path), inner.column))
    column = inner.column if inner.column is not None or len(columns) > 1 else 0
    if inner.path or column is None or column >= len(columns):
        return None
    return dataclasses.replace(process, coordinate=Coordinate((), columns[column]))


def product(a: Float[Array, "... i j"], b: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """The product of small matrices, written out: XLA fuses it with what surrounds it, and keeps scans over it fast."""
    if a.shape[-1] > _WRITTEN_OUT:
        return matmul(a, b)
    return functools.reduce(operator.add, (a[..., :, j, None] * b[..., j, None, :] for j in range(a.shape[-1])))


def _of_one_coordinate(
    processes: Sequence[MarkovProcess | None],
) -> tuple[list[MarkovProcess], Coordinate | None]:
    """The processes and their common coordinate; no processes if one is missing or the coordinates differ."""
    parts = [part for part in processes if part is not None]
    found = {part.coordinate for part in parts if part.coordinate is not None}
    # The only column of an array is also its column 0.
    found = {Coordinate(c.path) if c.column == 0 and Coordinate(c.path) in found else c for c in found}
    if len(parts) < len(processes) or len(found) > 1:
        return [], None
    return parts, next(iter(found), None)


@functools.cache
def _matern_matrices(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Constant matrices with `A(x) = Σ_k powers[k] e⁻ˣ xᵏ/k!` and `Q(x) = Σ_k shares[k] γ_k(2x)`; see `_gamma_tails`.

    The state follows `z' = F z` driven by noise in its last entry. All eigenvalues of F are -1, so `F + I` is nilpotent:
    `A(x) = exp(F x)` is a polynomial times `e⁻ˣ`, and `Q(x) = q ∫₀ˣ A(s) e eᵀ A(s)ᵀ ds` a sum of gamma integrals.
    """
    size = order + 1
    nilpotent = np.eye(size) + np.eye(size, k=1)
    nilpotent[-1] -= [math.comb(size, k) for k in range(size)]
    powers = np.stack([np.linalg.matrix_power(nilpotent, k) for k in range(size)])
    shares = np.zeros((2 * order + 1, size, size))
    for i in range(size):
        for k in range(size):
            shares[i + k] += math.comb(i + k, i) / 2.0 ** (i + k + 1) * np.outer(powers[i][:, -1], powers[k][:, -1])
    return powers, shares / np.sum(shares[:, 0, 0])


def _combined(matrices: np.ndarray, terms: Sequence[Array]) -> Float[Array, "... j j"]:
    """`Σ_k matrices[k] terms[k]`."""
    # As one matrix product, whose transpose is one, too: a sum of products of arrays has a slow derivative.
    factors = jnp.stack(terms, axis=-1)
    flat = matmul(factors, jnp.asarray(matrices.reshape(len(terms), -1), factors.dtype))
    return flat.reshape(*factors.shape[:-1], *matrices.shape[1:])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gamma_tails(count: int, z: Float[Array, "*n"]) -> list[Float[Array, "*n"]]:
    """`γ_k(z) = e⁻ᶻ Σ_{j>k} zʲ/j! = ∫₀ᶻ e⁻ˢ sᵏ/k! ds` for `k = 0, …, count - 1`, exact to rounding for all z."""
    # The last by its series if z is small, else by what is missing to 1; the others by adding terms, which are positive.
    near = jnp.minimum(z, _NEAR)
    series = jnp.zeros_like(z)
    for j in range(count + _TERMS, count - 1, -1):
        series = series * near + 1.0 / math.factorial(j)
    terms = _gamma_slopes(count, z)
    missing = sum(terms[1:], terms[0])
    last = jnp.where(z < _NEAR, jnp.exp(-near) * near**count * series, 1.0 - missing)
    tails = [last]
    for term in terms[:0:-1]:
        tails.append(tails[-1] + term)
    return tails[::-1]


@_gamma_tails.defjvp
def _gamma_tails_jvp(count, primals, tangents):
    (z,), (dz,) = primals, tangents
    return _gamma_tails(count, z), [slope * dz for slope in _gamma_slopes(count, z)]


def _gamma_slopes(count: int, z: Float[Array, "*n"]) -> list[Float[Array, "*n"]]:
    """`e⁻ᶻ zᵏ/k!` for `k = 0, …, count - 1`."""
    return [jnp.exp(-z) * z**k / math.factorial(k) for k in range(count)]


def _block_diagonal(blocks: Sequence[Float[Array, "... _ _"]]) -> Float[Array, "... j j"]:
    size, before, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        after = size - before - block.shape[-1]
        rows.append(jnp.pad(block, [(0, 0)] * (block.ndim - 1) + [(before, after)]))
        before += block.shape[-1]
    return jnp.concatenate(rows, axis=-2)


def _kronecker(a: Float[Array, "... i i"], b: Float[Array, "... k k"]) -> Float[Array, "... j j"]:
    """The Kronecker product of small matrices; leading axes are broadcast."""
    entries = a[..., :, None, :, None] * b[..., None, :, None, :]
    size = a.shape[-1] * b.shape[-1]
    return entries.reshape(*entries.shape[:-4], size, size)
