"""Classification of several classes with a support vector machine for every pair, all from one kernel matrix."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax._programs import compiled, is_traced
from kernax._threads import SMALL, cores
from kernax.data import Data
from kernax.grams import gram_of
from kernax.learners._design import as_row_weights
from kernax.learners._dual import Dual, kkt_residual, slopes
from kernax.learners._machines import check_targets
from kernax.learners._one_against_rest import labels_of, named
from kernax.learners._pivoting import solve_dual
from kernax.learners._support_vectors import MAX_STEPS, SVC, outcome
from kernax.model._checks import check_known
from kernax.parameters import as_dtype
from kernax.posterior import rows_like
from kernax.rows import Rows
from kernax.solvers import Result, throw_unless


class OneAgainstOne(eqx.Module):
    """A support vector machine for every pair of classes, from [`kernax.learners.one_against_one`][].

    The pairs are in the order (0, 1), (0, 2), …, (1, 2), …: `pairs` has the places of their classes in `classes`.
    """

    model: SVC
    """The machine."""
    data: Data
    """The rows; y has the places of their labels in `classes`."""
    classes: tuple[Any, ...] = eqx.field(static=True)
    """The labels, ascending."""
    coefficients: Float[Array, "n p"]
    """The coefficients of each machine: 0 for rows of other classes, and for rows that are not support vectors."""
    intercepts: Float[Array, " p"]
    """b of each machine."""
    kkt_residuals: Float[Array, " p"]
    """The largest violation of the conditions of optimality, in each machine."""
    result: Any
    """The status of the first machine that failed; `successful` if none did."""

    def __repr__(self):
        return f"OneAgainstOne(classes={self.classes}, {self.model!r}, {self.data!r})"

    @property
    def pairs(self) -> Int[np.ndarray, "p 2"]:
        """The two classes of each machine, as places in `classes`."""
        return _pairs(len(self.classes))

    def scores(self, x: Any) -> Float[Array, "m p"]:
        """The value `f(x) + b` of every machine.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m, number of pairs)`, positive for the second class of the pair.
        """
        return _scores(self, rows_like(self.model, self.data, x))

    def votes(self, x: Any) -> Float[Array, "m k"]:
        """How many machines vote for each class. To break ties, a number below ½ is added, from the sizes of the scores.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m, number of classes)`.
        """
        return _votes(self.scores(x), len(self.classes))

    def classify(self, x: Any) -> Any:
        """The class with the most votes.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        A NumPy array of labels; under tracing a JAX array, for which the labels must be numbers.
        """
        return named(self.classes, jnp.argmax(self.votes(x), axis=1))


def one_against_one(
    model: Any,
    x: Any,
    labels: Any,
    *,
    weights: Any = None,
    mask: Any = None,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
) -> OneAgainstOne:
    """Train a support vector machine for every pair of classes, as scikit-learn's `SVC` does.

    The kernel matrix is computed once. All machines have the same shape, that of the two largest classes, and are trained by
    one compiled program, in a thread for each core. It is not differentiable: see [`kernax.learners.SVC`][] for two classes.

    **Arguments:**

    - `model`: a [`kernax.learners.SVC`][], whose kernel and C all machines share.
    - `x`: rows, `(n, d)`.
    - `labels`: integers or text, `(n,)`.
    - `weights`: a weight for each row, which multiplies its loss.
    - `mask`: rows that count; the others have no class.
    - `max_steps`: as in [`kernax.learners.support_vectors`][].
    - `throw`: raise an error if a machine fails; else see `result`.

    **Returns:**

    A [`kernax.learners.OneAgainstOne`][].
    """
    if not isinstance(model, SVC):
        raise TypeError(f"the first argument of one_against_one must be a learners.SVC, got {type(model).__name__}.")
    if is_traced((model, x, labels, weights, mask)):
        raise TypeError(
            "one_against_one runs outside of jit, grad and vmap only: inside them, use learners.SVC for two classes."
        )
    labels, counts, classes = labels_of(labels, mask, "one_against_one")
    codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
    data = Data(x, np.where(counts, codes, 0), counts)
    check_known(model, data.x, data.mask)
    check_targets(model, data, "one_against_one")
    if max_steps < 1:
        raise ValueError(f"max_steps must be 1 or more, got {max_steps}.")
    bound = np.broadcast_to(model.C, labels.shape)
    bound = bound if weights is None else bound * np.asarray(as_row_weights(weights, data))

    problem = _problem(np.where(counts, codes, -1), len(classes))
    gram = _gram(as_dtype(model, data.dtype), data)
    bounds = jnp.asarray(np.where(problem.labels != 0, bound[problem.rows], 0.0), data.dtype)
    found = _trained(gram, problem, bounds, model.intercept, max_steps)
    used, failed = problem.labels != 0, np.asarray(found.result != Result.successful)
    coefficients = np.zeros((data.n, len(problem.rows)), data.dtype)
    coefficients[problem.rows[used], np.nonzero(used)[0]] = found.alpha[used]
    machine = OneAgainstOne(
        model=model,
        data=data,
        classes=tuple(classes.tolist()),
        coefficients=jnp.asarray(coefficients),
        intercepts=jnp.asarray(found.intercept),
        kkt_residuals=jnp.asarray(found.kkt_residual),
        result=jax.tree.map(lambda leaf: leaf[failed.argmax()], found.result),
    )
    if throw:
        throw_unless((), machine.result, "training")
    return machine


class _Problem(NamedTuple):
    """The rows of all pairs, as many for each."""

    rows: Int[np.ndarray, "p s"]
    labels: Float[np.ndarray, "p s"]
    """-1 and +1; 0 for padding."""


class _Found(NamedTuple):
    alpha: Float[Any, "p s"]
    intercept: Float[Any, " p"]
    kkt_residual: Float[Any, " p"]
    result: Any
    settled: Bool[Any, " p"]


def _pairs(classes: int) -> Int[np.ndarray, "p 2"]:
    return np.array(list(combinations(range(classes), 2)))


def _problem(codes: Int[np.ndarray, " n"], classes: int) -> _Problem:
    """`codes` are the places of the classes, -1 for rows that do not count."""
    members = [np.flatnonzero(codes == c) for c in range(classes)]
    pairs = [(members[a], members[b]) for a, b in _pairs(classes)]
    width = _padded(max(len(a) + len(b) for a, b in pairs), len(codes))
    rows, labels = np.zeros((len(pairs), width), np.int32), np.zeros((len(pairs), width))
    for at, (first, second) in enumerate(pairs):
        count = len(first) + len(second)
        rows[at, :count] = np.concatenate([first, second])
        labels[at, :count] = np.repeat([-1.0, 1.0], [len(first), len(second)])
    return _Problem(rows, labels)


def _padded(count: int, most: int) -> int:
    """So many, up to an eighth more, that data of about the same size has the same shape."""
    step = max(1 << max((count - 1).bit_length() - 4, 0), 8)
    return min(-(-count // step) * step, most)


def _trained(gram: Array, problem: _Problem, bounds: Array, intercept: bool, max_steps: int) -> _Found:
    """All machines by pivoting, and those again with the interior-point method for which that was not enough."""
    count, width = problem.rows.shape
    # BLAS takes all cores by itself for larger matrices.
    threads = min(cores(), count) if width <= SMALL and jax.default_backend() == "cpu" else 1
    labels = jnp.asarray(problem.labels, gram.dtype)
    share = -(-count // threads)
    # As many machines for every thread, so that there is one program: the first ones once more.
    chunks = np.resize(np.arange(count), (threads, share))
    train = partial(_machines, gram, intercept=intercept, max_steps=jnp.asarray(max_steps))

    def of_chunk(chunk: np.ndarray) -> _Found:
        with _precision(gram):
            return jax.device_get(train(problem.rows[chunk], labels[chunk], bounds[chunk], by_pivoting_alone=True))

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(of_chunk, chunks))
    found = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count].copy(), *parts)
    for at in np.flatnonzero(~found.settled):
        own = slice(at, at + 1)
        again = train(problem.rows[own], labels[own], bounds[own], by_pivoting_alone=False)
        for leaves in zip(jax.tree.leaves(found), jax.tree.leaves(jax.device_get(again)), strict=True):
            leaves[0][at] = leaves[1][0]
    return found


@contextmanager
def _precision(gram: Array) -> Iterator[None]:
    """That of the calling thread, which other threads do not inherit."""
    with jax.enable_x64(gram.dtype == np.float64):
        yield


@compiled
def _gram(model: SVC, data: Data) -> Float[Array, "n n"]:
    return gram_of(model.kernel, data.x, data.mask).dense()


@partial(compiled, size_of=lambda given: given[0][1].shape[1])
def _machines(
    gram: Float[Array, "n n"],
    rows: Int[Any, "p s"],
    labels: Float[Array, "p s"],
    bounds: Float[Array, "p s"],
    *,
    intercept: bool,
    max_steps: Int[Array, ""],
    by_pivoting_alone: bool,
) -> _Found:
    def of_pair(given: tuple[Array, Array, Array]) -> _Found:
        rows, labels, bound = given
        own = gram[rows[:, None], rows[None, :]]
        signed = labels * bound
        dual = Dual(own, labels, jnp.zeros((), gram.dtype), jnp.minimum(signed, 0.0), jnp.maximum(signed, 0.0))
        finite = jnp.isfinite(jnp.sum(own)) & jnp.all(jnp.isfinite(bound) & (bound >= 0))
        harmless = Dual(jnp.eye(len(rows), dtype=gram.dtype), *(jnp.zeros_like(part) for part in dual[1:]))
        dual = jax.tree.map(lambda part, other: jnp.where(finite, part, other), dual, harmless)
        found = solve_dual(dual, intercept, max_steps, None, by_pivoting_alone)
        gradient = matmul(dual.gram, found.alpha) - dual.targets
        residual = kkt_residual(slopes(dual, found.alpha, gradient), found.intercept)
        result = outcome(residual, labels - found.intercept, labels != 0, found.used_up)
        result = Result.where(finite, result, Result.nonfinite)
        alpha, b, residual = (jnp.where(finite, part, jnp.nan) for part in (found.alpha, found.intercept, residual))
        return _Found(alpha, b, residual, result, found.settled)

    return jax.lax.map(of_pair, (rows, labels, bounds))


@compiled
def _scores(c: OneAgainstOne, x: Rows) -> Float[Array, "m p"]:
    return gram_of(c.model.kernel, c.data.x, c.data.mask).cross_mv(x, c.coefficients) + c.intercepts


@compiled
def _votes(scores: Float[Array, "m p"], classes: int) -> Float[Array, "m k"]:
    first, second = (jnp.asarray(np.eye(classes)[side], scores.dtype) for side in _pairs(classes).T)
    won = (scores > 0).astype(scores.dtype)
    votes = matmul(won, second) + matmul(1.0 - won, first)
    sums = matmul(scores, second - first)
    return votes + sums / (3.0 * (jnp.abs(sums) + 1.0))
