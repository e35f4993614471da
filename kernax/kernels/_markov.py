"""Kernels that are Markov processes of one column, for `kx.StateSpace()`.

A process consists of parts that are independent of each other, and each part has a state of a few numbers:
`f(t) = Σ observation · state(t)`. Over a step of length δ a state becomes `A(δ) state + shock`; the shock has the covariance
`Q(δ)`. Without data the first state has the covariance P. For a stationary process `P = A P Aᵀ + Q` for every δ. `Q` is
computed directly: the difference `P - A P Aᵀ` loses all digits for small steps.

Kernels with finitely many features φ are processes, too: a part of one number for each feature, which never changes and is
observed with the weight φ(x).
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.rows import Rows, num_rows

_FAR = 800.0
"""A step of so many lengthscales forgets everything: `exp(-800)` is 0 in float64. Powers of longer steps may overflow."""
_WRITTEN_OUT = 12
"""Products of matrices with more columns are left to XLA."""
_NEAR, _TERMS = 2.0, 22
"""Below `_NEAR` the series is used; so many terms of it are exact to rounding there."""

Start = Callable[[], Float[Array, "p j j"]]
Transition = Callable[[Float[Array, "*n"]], tuple[Float[Array, "*n p j j"], Float[Array, "*n p j j"]]]


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """The number in each row that is the time. Two of these objects are compared by value."""

    path: tuple[str | int, ...] = ()
    """Keys of dicts and places in tuples that lead to an array."""
    column: int | None = None
    """The column of that array; `None` if it must have one column only."""

    def __call__(self, x: Rows) -> Float[Array, " n"]:
        """The times of all rows.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array `(n,)`. Raises `TypeError` if the array has several columns and none is chosen.
        """
        for step in self.path:
            x = x[step]
        if self.column is None and x.shape[1] != 1:
            raise TypeError(
                f"StateSpace() needs a kernel of one column, but the rows have {x.shape[1]}: choose one with "
                "kx.Select(kernel, columns=0), or use kx.Cholesky() or kx.CG()."
            )
        return x[:, self.column or 0]


@dataclasses.dataclass(frozen=True)
class Part:
    """Independent processes with states of the same size J.

    **Arguments:**

    - `observation`: the weights of the states in f: an array `(p, J)` of constants for p processes, or a function from rows
      to an array `(n, p, J)`.
    - `start`: a function that returns P, the covariance of each state without data, `(p, J, J)`. If p is 1, it is that of
      all.
    - `transition`: a function from steps δ of any shape `*n` to `A(δ)` and `Q(δ)` of shape `(*n, p, J, J)`. If p is 1, they
      are those of all.
    - `earlier`: only if the process is not stationary: a function from steps δ to the covariance of the first state with the
      state δ before it, and the covariance of that one.
    """

    observation: np.ndarray | Callable[[Rows], Float[Array, "n p j"]]
    start: Start
    transition: Transition
    earlier: Transition | None = None

    @property
    def size(self) -> int:
        """J."""
        return jax.eval_shape(self.start).shape[-1]

    def observed(self, x: Rows) -> Float[Array, "n p j"]:
        """The weights of the states in f at every row."""
        if callable(self.observation):
            return self.observation(x)
        weights = jnp.asarray(self.observation, jax.eval_shape(self.start).dtype)
        return jnp.broadcast_to(weights, (num_rows(x), *weights.shape))


@dataclasses.dataclass(frozen=True)
class MarkovProcess:
    """A kernel written as a Markov process. The module's docstring explains the terms.

    **Arguments:**

    - `coordinate`: which number of a row is the time; `None` if the process does not depend on it.
    - `parts`: the independent parts whose sum is f.
    """

    coordinate: Coordinate | None
    parts: tuple[Part, ...]


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
    start, steps = (Partial(function, lengthscale.reshape(())) for function in _matern_functions(order))
    return MarkovProcess(Coordinate(), (Part(np.eye(order + 1)[:1], start, steps),))


@functools.cache
def _matern_functions(order: int) -> tuple[Callable[[Array], Array], Callable[[Array, Array], tuple[Array, Array]]]:
    """`Part.start` and `Part.transition` of a lengthscale."""

    def start(lengthscale: Array) -> Array:
        return jnp.asarray(np.sum(_matern_matrices(order)[1], axis=0), lengthscale.dtype)[None]

    def transition(lengthscale: Array, steps: Array) -> tuple[Array, Array]:
        rate = math.sqrt(2 * order + 1) / lengthscale
        return _matern_transition(order, capped(rate * steps, _FAR))

    return start, transition


def constant(variance: Float[Array, ""]) -> MarkovProcess:
    """The process that never changes."""
    return MarkovProcess(None, (Part(np.ones((1, 1)), Partial(_of_one_number, variance), Partial(unmoved)),))


def _of_one_number(variance: Float[Array, "*one"]) -> Float[Array, "1 1 1"]:
    return variance.reshape(1, 1, 1)


def of_features(features: Callable[[Rows], Float[Array, "n r"] | None]) -> MarkovProcess:
    """The process of a kernel `φ(a)·φ(b)`: weights of the features that never change."""

    def observation(x: Rows) -> Float[Array, "n r 1"]:
        values = features(x)
        assert values is not None
        return values[:, :, None]

    return MarkovProcess(None, (Part(observation, Partial(_of_one_number, jnp.ones((), jnp.float32)), Partial(unmoved)),))


def unmoved(steps: Float[Array, "*n"]) -> tuple[Float[Array, "*n 1 1 1"], Float[Array, "*n 1 1 1"]]:
    """The transition of a state of one number that never changes."""
    move = jnp.ones_like(steps)[..., None, None, None]
    return move, jnp.zeros_like(move)


def scaled(process: MarkovProcess | None, variance: Float[Array, ""]) -> MarkovProcess | None:
    """The process of `variance · k`."""
    if process is None:
        return None

    def earlier(part: Part) -> Transition | None:
        inner = part.earlier

        def scaled_earlier(steps: Array) -> tuple[Array, Array]:
            assert inner is not None
            common, own = inner(steps)
            return variance * common, variance * own

        return None if inner is None else scaled_earlier

    def of_part(part: Part) -> Part:
        start, transition = (
            Partial(_scaled_start, part.start, variance),
            Partial(_scaled_transition, part.transition, variance),
        )
        return Part(part.observation, start, transition, earlier(part))

    return MarkovProcess(process.coordinate, tuple(map(of_part, process.parts)))


def _scaled_start(start: Start, variance: Array) -> Array:
    return variance * start()


def _scaled_transition(transition: Transition, variance: Array, steps: Array) -> tuple[Array, Array]:
    move, shock = transition(steps)
    return move, variance * shock


def summed(processes: Sequence[MarkovProcess | None]) -> MarkovProcess | None:
    """The process of a sum: the parts of all."""
    known, coordinate = _of_one_coordinate(processes)
    return MarkovProcess(coordinate, tuple(part for process in known for part in process.parts)) if known else None


def multiplied(processes: Sequence[MarkovProcess | None]) -> MarkovProcess | None:
    """The process of a product: of each pair of parts, all products of two entries of their states."""
    known, coordinate = _of_one_coordinate(processes)
    if not known:
        return None
    parts = known[0].parts
    for process in known[1:]:
        parts = tuple(_product(first, second) for first in parts for second in process.parts)
    return MarkovProcess(coordinate, parts)


def weighted(process: MarkovProcess | None, weight: Callable[[Rows], Float[Array, " n"]]) -> MarkovProcess | None:
    """The process of `w(a) k(a, b) w(b)`, for a weight w that depends on the row."""
    feature = MarkovProcess(None, of_features(lambda x: weight(x)[:, None]).parts)
    return multiplied([process, feature])


def _product(first: Part, second: Part) -> Part:
    transition = Partial(_product_transition, first.transition, second.transition, first.start, second.start)
    start = Partial(_product_start, first.start, second.start)
    if not callable(first.observation) and not callable(second.observation):
        return Part(_kronecker(first.observation[:, None], second.observation[:, None])[:, 0], start, transition)

    def observation(x: Rows) -> Float[Array, "n p j"]:
        return _kronecker(first.observed(x)[:, :, None], second.observed(x)[:, :, None])[:, :, 0]

    return Part(observation, start, transition)


def _product_start(first: Start, second: Start) -> Array:
    return _kronecker(first(), second())


def _product_transition(
    first: Transition, second: Transition, first_start: Start, second_start: Start, steps: Array
) -> tuple[Array, Array]:
    (move, shock), (other_move, other_shock) = first(steps), second(steps)
    # Of the first, what is left of P. Without a difference, which would lose digits.
    kept = product(product(move, first_start()), jnp.swapaxes(move, -1, -2))
    return _kronecker(move, other_move), _kronecker(shock, second_start()) + _kronecker(kept, other_shock)


def viewed(process: MarkovProcess | None, view: Callable[[Rows], Rows]) -> MarkovProcess | None:
    """The process of a kernel of a function of each row; `None` if it depends on time."""
    if process is None or process.coordinate is not None:
        return None
    return dataclasses.replace(process, parts=_viewed_parts(process.parts, view))


def selected(
    process: MarkovProcess | None, columns: tuple[int, ...] | None, place: str | int | None, view: Callable[[Rows], Rows]
) -> MarkovProcess | None:
    """The process of a kernel of a part of each row: chosen columns of an array, or a place in a structure."""
    if process is None:
        return None
    parts, inner = _viewed_parts(process.parts, view), process.coordinate
    if inner is None:
        return MarkovProcess(None, parts)
    if columns is None:
        assert place is not None
        return MarkovProcess(Coordinate((place, *inner.path), inner.column), parts)
    column = inner.column if inner.column is not None or len(columns) > 1 else 0
    if inner.path or column is None or column >= len(columns):
        return None
    return MarkovProcess(Coordinate((), columns[column]), parts)


def _viewed_parts(parts: tuple[Part, ...], view: Callable[[Rows], Rows]) -> tuple[Part, ...]:
    def of_view(part: Part) -> Part:
        inner = part.observation
        return dataclasses.replace(part, observation=(lambda x: inner(view(x)))) if callable(inner) else part

    return tuple(map(of_view, parts))


def product(a: Float[Array, "... i j"], b: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """The product of small matrices, written out: XLA fuses it with what surrounds it, and keeps scans over it fast."""
    if a.shape[-1] > _WRITTEN_OUT:
        return matmul(a, b)
    return functools.reduce(operator.add, (a[..., :, j, None] * b[..., j, None, :] for j in range(a.shape[-1])))


def _of_one_coordinate(
    processes: Sequence[MarkovProcess | None],
) -> tuple[list[MarkovProcess], Coordinate | None]:
    """The processes and their common coordinate; no processes if one is missing or the coordinates differ."""
    known = [process for process in processes if process is not None]
    found = {process.coordinate for process in known if process.coordinate is not None}
    # The only column of an array is also its column 0.
    found = {Coordinate(c.path) if c.column == 0 and Coordinate(c.path) in found else c for c in found}
    if len(known) < len(processes) or len(found) > 1:
        return [], None
    return known, next(iter(found), None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern_transition(order: int, x: Float[Array, "*n"]) -> tuple[Float[Array, "*n 1 j j"], Float[Array, "*n 1 j j"]]:
    """`A` and `Q` of a Matérn process, after steps of x in units of the rate."""
    powers, shares = _matern_matrices(order)
    return _combined(powers, _gamma_slopes(order + 1, x)), _combined(shares, _gamma_tails(2 * order + 1, 2.0 * x))


@_matern_transition.defjvp
def _matern_transition_jvp(order, primals, tangents):
    # As one number for each step times a matrix: reverse mode through the sums of `_combined` takes three times as long.
    # `A' = F A` and `Q' = q A e eᵀ Aᵀ`: the slopes follow from A, which is kept anyway.
    (x,), (dx,) = primals, tangents
    move, shock = _matern_transition(order, x)
    feedback, density = _matern_feedback(order)
    by_noise = move[..., -1]
    slopes = (product(jnp.asarray(feedback, x.dtype), move), density * by_noise[..., :, None] * by_noise[..., None, :])
    return (move, shock), tuple(times_each(slope, dx) for slope in slopes)


def capped(x: Float[Array, "*n"], cap: Any) -> Float[Array, "*n"]:
    """`min(x, cap)`; as a choice, which in reverse mode keeps the sum over the entries of a matrix apart from that over the
    steps: XLA would join the two and keep an array of its own for each entry.
    """
    return jnp.where(x > cap, cap, x)  # NaN stays


def times_each(matrices: Float[Array, "*n 1 j j"], numbers: Float[Array, "*n"]) -> Float[Array, "*n 1 j j"]:
    """Each matrix times its number, entry by entry: the transpose of a broadcast is a slow sum over short axes."""
    flat = matrices.reshape(*numbers.shape, -1)
    entries = [flat[..., i] * numbers for i in range(flat.shape[-1])]
    return jnp.stack(entries, axis=-1).reshape(matrices.shape)


@functools.cache
def _matern_feedback(order: int) -> tuple[np.ndarray, float]:
    """F and q: the state follows `z' = F z`, driven by noise of density q in its last entry. All eigenvalues of F are -1."""
    size = order + 1
    feedback = np.eye(size, k=1)
    feedback[-1] -= [math.comb(size, k) for k in range(size)]
    # A number of Python: one of NumPy would make float64 of float32.
    return feedback, float(-2.0 * (feedback @ np.sum(_matern_matrices(order)[1], axis=0))[-1, -1])


@functools.cache
def _matern_matrices(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Constant matrices with `A(x) = Σ_k powers[k] e⁻ˣ xᵏ/k!` and `Q(x) = Σ_k shares[k] γ_k(2x)`; see `_gamma_tails`.

    `F + I` is nilpotent: `A(x) = exp(F x)` is a polynomial times `e⁻ˣ`, and `Q(x) = q ∫₀ˣ A(s) e eᵀ A(s)ᵀ ds` a sum of gamma
    integrals.
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


def _combined(matrices: np.ndarray, terms: Sequence[Float[Array, "*n"]]) -> Float[Array, "*n 1 j j"]:
    """`Σ_k matrices[k] terms[k]`."""
    dtype = terms[0].dtype
    products = (
        jnp.asarray(matrix, dtype) * term[..., None, None, None] for matrix, term in zip(matrices, terms, strict=True)
    )
    return functools.reduce(operator.add, products)


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


def _kronecker(a: Any, b: Any) -> Any:
    """The Kronecker products of small matrices `(..., p, i, j)` and `(..., q, k, l)`, for all p·q pairs of processes."""
    entries = a[..., :, None, :, None, :, None] * b[..., None, :, None, :, None, :]
    sizes = [one * other for one, other in zip(a.shape[-3:], b.shape[-3:], strict=True)]
    return entries.reshape(*entries.shape[:-6], *sizes)
