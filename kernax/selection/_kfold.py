"""Exact k-fold cross-validation: from a single factorisation, or by conditioning again without each fold.

With `alpha = K̃⁻¹(y-μ)`, the residuals of the fold S in the fit without S are `([K̃⁻¹]_SS)⁻¹ alpha_S`: leave-one-out is the
case of folds of one row. A solver that does not offer these blocks (`StateSpace`, `Vecchia`, `CG`) conditions k times, with
the rows of one fold masked. The mean function is not refitted.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.model import Conditioned, settled
from kernax.model._checks import LEARN_AGAIN, check_conditioned
from kernax.rows import take
from kernax.solvers import AbstractSystem, solve_definite


class Folds(eqx.Module):
    """Which rows each fold holds: a table of row numbers, with a mark for the slots that are filled."""

    rows: Int[Array, "k m"]
    filled: Bool[Array, "k m"]

    @property
    def sizes(self) -> Int[Array, " k"]:
        return jnp.sum(self.filled, axis=1)


def kfold_residuals(c: Conditioned, folds: Any = 10, *, key: Key[Array, ""] | None = None) -> Float[Array, "n *p"]:
    """K-fold residuals `y_i - f⁽⁻ˢ⁾(x_i)` for every row i of every fold S.

    With `Cholesky` and `Eigh` they cost O(n³), once for all folds. `StateSpace`, `Vecchia` and `CG` condition again without
    each fold: O(k n) with `StateSpace`.

    **Arguments:**

    - `c`: a model conditioned on data, with any solver but `Kronecker`, which needs every row.
    - `folds`: the number of folds, or an integer label for each row (rows with one label form a fold). A number cuts the
      rows that count into consecutive folds of equal size, as scikit-learn's `KFold` does.
    - `key`: a JAX random key, for random folds. Give one if the rows are sorted.

    **Returns:**

    An array in the shape of y; 0 where the data is masked. NaN in a fold whose removal leaves too few rows: none, or fewer
    than a trend needs.
    """
    check_conditioned(
        c,
        "k-fold cross-validation of squared errors",
        LEARN_AGAIN,
    )
    return _scattered(c, as_folds(folds, c.data, key))


@compiled
def _scattered(c: Conditioned, table: Folds) -> Float[Array, "n *p"]:
    residuals = _by_fold(c, table)
    shape = (c.data.n, *c.alpha.shape[1:])
    # Empty slots point at some row: they add nothing there.
    return jnp.zeros(shape, c.data.dtype).at[table.rows.reshape(-1)].add(residuals.reshape(-1, *shape[1:]))


def fold_mse(c: Conditioned, folds: Any = 10, *, key: Key[Array, ""] | None = None) -> Float[Array, " k"]:
    """Mean squared residual of each fold that is left out.

    **Arguments:**

    - `c`: a model conditioned on data.
    - `folds`: a number of folds, or a fold number for each row.
    - `key`: random key that assigns rows to folds; without it, folds are contiguous blocks of rows.

    **Returns:**

    One number for each fold; NaN for a fold without rows.
    """
    check_conditioned(
        c,
        "k-fold cross-validation of squared errors",
        LEARN_AGAIN,
    )
    return _fold_mse(c, as_folds(folds, c.data, key))


@compiled
def _fold_mse(c: Conditioned, table: Folds) -> Float[Array, " k"]:
    squares = _by_fold(c, table) ** 2
    return jnp.sum(squares.reshape(squares.shape[0], -1), axis=1) / (table.sizes * c.data.num_outputs)


def kfold_mse(c: Conditioned, folds: Any = 10, *, key: Key[Array, ""] | None = None) -> Float[Array, ""]:
    """Mean over the folds of their mean squared residual. Can be used as an objective of a fit.

    `kx.fit(model, data, objective=functools.partial(kx.kfold_mse, folds=5))`

    **Arguments:**

    - `c`: a model conditioned on data.
    - `folds`: a number of folds, or a fold number for each row.
    - `key`: random key that assigns rows to folds; without it, folds are contiguous blocks of rows.

    **Returns:**

    One number.
    """
    check_conditioned(
        c,
        "k-fold cross-validation of squared errors",
        LEARN_AGAIN,
    )
    table = as_folds(folds, c.data, key)
    return mean_over_folds(_fold_mse(c, table), table)


@compiled
def mean_over_folds(scores: Float[Array, " k"], table: Folds) -> Float[Array, ""]:
    """The mean over the folds that hold a row."""
    held = table.sizes > 0
    return jnp.sum(jnp.where(held, scores, 0.0)) / jnp.sum(held)


def as_folds(folds: Any, data: Data, key: Any) -> Folds:
    """The table of a number of folds or of labels, checked as far as can be seen."""
    if isinstance(folds, Folds):
        return folds
    by_number = hasattr(folds, "__index__") and not isinstance(folds, bool) and np.ndim(folds) == 0
    if key is not None and not jnp.issubdtype(getattr(key, "dtype", int), jax.dtypes.prng_key):
        raise TypeError(f"key must be one of JAX's, such as jax.random.key(0), got {key!r}.")
    if by_number:
        table = _equal_folds(int(folds), data, key)
    elif key is not None:
        raise ValueError(
            "folds= labels assign every row to a fold, so nothing is drawn at random: give either labels or key=."
        )
    else:
        table = _labelled_folds(folds, data)
    if is_concrete(table.filled) and table.filled.ndim == 2:
        sizes = np.asarray(table.filled).sum(axis=1)
        if np.sum(sizes > 0) < 2:
            raise ValueError(
                "one fold contains all rows that count, so no rows remain to learn from: give two folds or more."
            )
        if by_number and np.any(sizes == 0):
            raise ValueError(f"{len(sizes)} folds need at least {len(sizes)} rows that count, got {sizes.sum()}.")
    return table


def _equal_folds(number: int, data: Data, key: Key[Array, ""] | None) -> Folds:
    if number < 2:
        raise ValueError(
            f"cross-validation needs at least 2 folds, got {number}: with one fold no rows remain to learn from."
        )
    if number > data.n:
        raise ValueError(f"{number} folds need at least {number} rows, got {data.n}.")
    # NumPy where it can be: the same lines one by one in JAX would compile a dozen small programs.
    np_like: Any = np if is_concrete(data.mask) else jnp
    places, mask = np_like.arange(data.n), np_like.asarray(data.mask)
    count = mask.sum()
    # Rows that count come first, in their own order or shuffled, so that padding moves no row to another fold.
    order = np_like.argsort(~mask, stable=True)
    if key is not None:
        # One draw per place among the rows that count, whatever the padding.
        draws = np_like.asarray(_draws(key, data.n))
        order = order[np_like.argsort(np_like.where(places < count, draws, 2.0), stable=True)]
    sizes = count // number + (np_like.arange(number) < count % number)
    starts = np_like.cumsum(sizes) - sizes
    slots = np_like.arange(-(-data.n // number))
    rows = order[np_like.minimum(starts[:, None] + slots, data.n - 1)]
    return Folds(jnp.asarray(rows), jnp.asarray(slots < sizes[:, None]))


@compiled
def _draws(key: Key[Array, ""], n: int) -> Float[Array, " n"]:
    return jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(n))


def _labelled_folds(labels: Any, data: Data) -> Folds:
    if not is_concrete(labels):
        raise TypeError("fold labels determine shapes, so they must be known before tracing: give a NumPy array.")
    labels = np.asarray(labels)
    if labels.shape != (data.n,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"folds must be a whole number or {data.n} integer labels, one per row; "
            f"got {labels.dtype} of shape {labels.shape}."
        )
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    width = max(len(rows) for rows in members)
    rows = np.stack([np.pad(rows, (0, width - len(rows))) for rows in members])
    filled = np.stack([np.arange(width) < len(rows) for rows in members])
    return Folds(jnp.asarray(rows), jnp.asarray(filled) & data.mask[rows])


def _by_fold(c: Conditioned, table: Folds) -> Float[Array, "k m *p"]:
    """The residuals of each fold left out, 0 in empty slots."""
    blocks = c.system.inverse_blocks(table.rows)
    residuals = _by_refits(c, table) if blocks is None else _by_blocks(c, table, blocks)
    return jnp.where(_beside(table.filled, residuals), residuals, 0.0)


def _by_blocks(c: Conditioned, table: Folds, entries: Float[Array, "k m m"]) -> Float[Array, "k m *p"]:
    both = table.filled[:, :, None] & table.filled[:, None, :]
    identity = jnp.eye(table.rows.shape[1], dtype=c.data.dtype)
    blocks = jnp.where(both, entries, identity)
    alpha = c.alpha[table.rows]
    residuals = jax.vmap(solve_definite)(blocks, jnp.where(_beside(table.filled, alpha), alpha, 0.0))
    enough_left = (table.sizes < c.data.count) & c.system.determined_without(table.rows, table.filled)
    return jnp.where(_beside(enough_left, residuals), residuals, jnp.nan)


def _by_refits(c: Conditioned, table: Folds) -> Float[Array, "k m *p"]:
    _check_rows_may_miss(c)

    def of_fold(fold: tuple[Int[Array, " m"], Bool[Array, " m"]]) -> Float[Array, "m *p"]:
        rows, filled = fold
        left_out = jnp.zeros(c.data.n, bool).at[jnp.where(filled, rows, c.data.n)].set(True, mode="drop")
        system = _system_without(c, left_out)
        return c.residual[rows] - system.mean(take(c.data.x, rows), system.solve(c.residual))

    # One fold after another: reverse mode would otherwise keep what each of them computes on the way.
    residuals = jax.lax.map(jax.checkpoint(of_fold), (table.rows, table.filled))
    return jnp.where(c.ok, residuals, jnp.nan)


def _system_without(c: Conditioned, left_out: Bool[Array, " n"]) -> AbstractSystem:
    """The System without some rows, from the existing factorisation or prepared again."""
    others = eqx.tree_at(lambda data: data.mask, c.data, c.data.mask & ~left_out)
    system = c.system.restricted(others.mask)
    if system is None:
        # Neighbours and inducing rows are chosen again: those of all rows would be among them.
        system = c.model.conditioned(others, jnp.asarray(True), settled(c.solver, c.model, others)).system
    return system


def _check_rows_may_miss(c: Conditioned) -> None:
    """Raise `TypeError` if the solver needs every row."""
    with jax.ensure_compile_time_eval():
        all_but_one = jnp.arange(c.data.n) > 0
    try:
        c.solver.check(c.data.x, all_but_one)
    except ValueError as error:
        raise TypeError(f"k-fold cross-validation leaves rows out. {error}") from None


def _beside(values: Bool[Array, "*k"], residuals: Array) -> Array:
    """One entry for each fold, or for each row of each fold, beside residuals."""
    return values.reshape(values.shape + (1,) * (residuals.ndim - values.ndim))
