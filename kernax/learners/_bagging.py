"""Bagging (Breiman 1996): the model conditioned on many random draws of the rows."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import check_finite, is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data, refuse_gaps
from kernax.fitting import Fits, fit_many
from kernax.grams import gram_of
from kernax.kernels import joined_trends
from kernax.learners._resampling import as_counts, drawn_counts
from kernax.means import mean_values
from kernax.model import Model, condition
from kernax.model._checks import check_model_and_data
from kernax.noises import is_common, noise_values
from kernax.parameters import as_dtype
from kernax.posterior import safe_sqrt
from kernax.rows import Rows, as_row_dtype, as_rows, check_same_columns, map_rows, take
from kernax.solvers import AbstractSolver, Cholesky, Result, is_usable, offered, throw_unless


class Bagged(eqx.Module):
    """A bagged model. `bagged(x)` is the mean of the members that did not fail.

    Member b was trained with row i `counts[b, i]` times. A member that failed has its status in `result`, is not `ok`, and
    is NaN in `members_at`. All other methods leave it out.
    """

    model: Model
    """One model for all members, or with a leading axis over members if each was fitted."""
    data: Data
    """The dataset."""
    counts: Int[Array, "b n"]
    """How many times each member was trained with each row, `(members, n)`."""
    alpha: Float[Array, "b n *p"]
    """The coefficients of each member."""
    free: Float[Array, "b q p"] | None
    """Each member's coefficients of the functions that a trend or a spline leaves free."""
    jitter: Float[Array, " b"]
    """The jitter of each member."""
    result: Any
    """The status of each member."""
    ok: Bool[Array, " b"]
    """Which members are usable."""
    fits: Fits | None
    """The fit of each member, if the members were fitted."""
    is_fitted: bool = eqx.field(static=True)
    """Whether each member has its own parameters."""

    def __call__(self, x: Any) -> Float[Array, "m *p"]:
        """The mean of the members. If they share one model, it costs one kernel matrix.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)` or `(m, p)`; NaN if all members failed.
        """
        return _mean_at(self._without_fits, self._rows(x))

    def members_at(self, x: Any) -> Float[Array, "b m *p"]:
        """The prediction of every member.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(members, m)` or `(members, m, p)`; NaN for members that failed.
        """
        return _members_at(self._without_fits, self._rows(x))

    def spread(self, x: Any) -> Float[Array, "m *p"]:
        """The standard deviation over the members, `√(mean_b (f_b(x) - f̄(x))²)`.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)` or `(m, p)`; 0 for a single member.
        """
        return _spread_at(self._without_fits, self._rows(x))

    @property
    def num_failed(self) -> Int[Array, ""]:
        """The number of members that are left out."""
        return jnp.sum(~self.ok)

    @property
    def oob_counts(self) -> Int[Array, " n"]:
        """For each row, the number of members that were trained without it. Its out-of-bag prediction is their mean."""
        return jnp.sum(_out_of_bag(self), axis=0)

    @property
    def num_never_oob(self) -> Int[Array, ""]:
        """The number of rows that count and were in the training rows of every member. `oob_error` leaves them out."""
        return jnp.sum(self.data.mask & (self.oob_counts == 0))

    @property
    def oob_predictions(self) -> Float[Array, "n *p"]:
        """For each row the mean of the members trained without it; NaN if there is none, or if the row is masked."""
        return _out_of_bag_mean(self._without_fits)

    @property
    def oob_error(self) -> Float[Array, ""]:
        """The mean squared out-of-bag residual, over rows (and outputs) that have one; NaN if there is none."""
        return _out_of_bag_error(self._without_fits)

    @property
    def _without_fits(self) -> "Bagged":
        """The part that predicts. The settings of a fit are left out, since compilation would need their hashes."""
        return dataclasses.replace(self, fits=None)

    def _rows(self, x: Any) -> Rows:
        x = take(as_rows(x, "x", one="one new point is a row of its own"))
        check_same_columns(x, self.data.x, "x", "the data of the committee")
        for leaf in jax.tree.leaves(x):
            check_finite(leaf, "x")
        return as_row_dtype(x, self.data.dtype)

    def __len__(self) -> int:
        return self.counts.shape[-2]

    def __repr__(self):
        failed = f", {int(self.num_failed)} failed" if is_concrete(self.ok) and not np.all(self.ok) else ""
        return f"Bagged({len(self)} members{failed}, {self.model!r}, {self.data!r})"


def bagged(
    model: Any,
    data: Any,
    *,
    members: int = 25,
    key: Any = None,
    fraction: float = 1.0,
    replace: bool = True,
    weights: Any = None,
    counts: Any = None,
    fit_members: bool = False,
    solver: Any = None,
    throw: bool = True,
    **options: Any,
) -> Bagged:
    """A committee whose members are the model conditioned on random draws of the rows (Breiman 1996).

    For the posterior, a row that occurs c times with noise λ is the same as a row that occurs once with noise λ/c. So
    repeated rows cost nothing, and all members have the shape of the data. Each member costs O(n³), one at a time in memory.
    Works inside `jit`, `vmap` and `grad`, and is differentiable in the model and the data, unless `fit_members=True`.

    A member that fails does not raise an error (see `Bagged`). If all members fail, a call outside of `jit` raises
    `FailedError`.

    **Arguments:**

    - `model`: the model of every member.
    - `data`: the rows to draw from.
    - `members`: how many members. Neither more members nor masked rows change the draws of the first ones.
    - `key`: random key of the draws.
    - `fraction`: the share of the rows that each member draws, at least one row.
    - `replace`: draw with replacement (the bootstrap) or without (subsets).
    - `weights`: the chance of a row to be drawn is proportional to its entry.
    - `counts`: how often each member sees each row, whole numbers of shape (members, n), instead of random draws.
    - `fit_members`: first fit the hyperparameters of every member to the rows that it has seen, with [`kernax.fit_many`][].
      Each row counts once there, since copies of rows would pull the noise towards 0. Eager only, and not differentiable.
    - `solver`: how members are solved, by default `kx.Cholesky()`.
    - `throw`: raise an error if all members fail; with `False` return their statuses.
    - `options`: options of `fit_many`, for `fit_members=True`.

    **Returns:**

    A [`kernax.learners.Bagged`][]: a function of new rows, with `spread(x)` and the out-of-bag error.
    """
    check_model_and_data(model, data, "bagged")
    refuse_gaps(data, "bagged")
    if not isinstance(model, Model):
        raise TypeError(
            f"bagged needs a kx.Model, because its noise determines the weight of a repeated row, got {model!r}."
        )
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a configured instance, such as kx.Eigh(), got {solver!r}.")
    if options and not fit_members:
        raise TypeError(f"{', '.join(options)}: these are options of kx.fit_many and need fit_members=True.")
    counts = drawn_counts(data, members, key, fraction, replace, weights) if counts is None else as_counts(counts, data, key)
    fits = _fits(model, data, counts, key, solver, options) if fit_members else None
    members_of, values = (model, None) if fits is None else (fits.model, (fits.value, fits.result))
    committee = _conditioned(members_of, data, counts, Cholesky() if solver is None else solver, values)
    committee = dataclasses.replace(committee, fits=fits)
    if throw and is_concrete(committee.ok) and committee.ok.ndim == 1 and not np.any(committee.ok):
        throw_unless((), jax.tree.map(lambda leaf: leaf[0], committee.result), "every member of the committee")
    return committee


@compiled
def _conditioned(
    model: Model, data: Data, counts: Int[Array, "b n"], solver: AbstractSolver, fitted: tuple[Any, Any] | None
) -> Bagged:
    model = as_dtype(model, data.dtype)
    good = jnp.isfinite(data.y.reshape(data.n, -1)).all(axis=1)
    for leaf in jax.tree.leaves(take(data.x)):
        good = good & jnp.isfinite(leaf.reshape(data.n, -1)).all(axis=1)
    sick = jnp.any((counts > 0) & data.mask & ~good, axis=1)
    # Only members that have seen a NaN are to fail of it: such rows are out of the way of the others.
    clean = Data(data.x, data.y, data.mask & good)
    counts = jnp.where(data.mask, counts, 0)
    own, common = eqx.partition(model, lambda leaf: eqx.is_array(leaf) and fitted is not None)

    def member(lane: tuple[Any, Array, Array]) -> tuple[Array, Array | None, Array, Any]:
        own, counts, sick = lane
        model = _definite(eqx.combine(own, common), clean)
        # A noise of NaN makes the result `nonfinite`.
        noise = noise_values(model.noise, clean.x, clean.dtype) / jnp.maximum(counts, 1).astype(clean.dtype)
        seen = eqx.tree_at(lambda d: d.mask, clean, clean.mask & (counts > 0))
        model = Model(model.kernel, jnp.where(sick, jnp.nan, noise), model.mean, model.trend)
        c = condition(model, seen, solver, throw=False)
        weights = c.system.expansion(c.solution)
        alpha, free = offered(weights, solver, "bagging", "predictions of the form k(x, X) alpha")
        return alpha, free, c.jitter, c.result

    # One after another: the matrices of all members at once would be members × n².
    alpha, free, jitter, result = jax.lax.map(member, (own, counts, sick))
    ok = is_usable(result)
    if fitted is not None:
        value, how = fitted
        result = jax.vmap(Result.where)(how == Result.successful, result, how)
        ok = ok & jnp.isfinite(value)
    return Bagged(model, clean, counts, alpha, free, jitter, result, ok, None, fitted is not None)


def _definite(model: Model, data: Data) -> Model:
    """The model with a spline's kernel made definite on all rows, so that its members share one kernel and one trend."""
    trend = joined_trends(model.kernel.trend(), model.trend)
    if trend is None:
        return model
    x = take(data.x)
    return Model(model.kernel.definite(x, data.mask), model.noise, model.mean, trend.scaled(x, data.mask))


@compiled
def _members_at(committee: Bagged, x: Rows) -> Float[Array, "b m *p"]:
    values = _safe_members_at(committee, x)
    return jnp.where(_beside(committee.ok, values), values, jnp.nan)


@compiled
def _mean_at(committee: Bagged, x: Rows) -> Float[Array, "m *p"]:
    return _mean_over(committee.ok[:, None], _safe_members_at(committee, x))


@compiled
def _spread_at(committee: Bagged, x: Rows) -> Float[Array, "m *p"]:
    values, ok = _safe_members_at(committee, x), committee.ok[:, None]
    return safe_sqrt(_mean_over(ok, (values - _mean_over(ok, values)) ** 2))


@compiled
def _out_of_bag_mean(committee: Bagged) -> Float[Array, "n *p"]:
    return _mean_over(_out_of_bag(committee), _safe_members_at(committee, take(committee.data.x)))


@compiled
def _out_of_bag_error(committee: Bagged) -> Float[Array, ""]:
    data, has_one = committee.data, jnp.any(_out_of_bag(committee), axis=0)
    residuals = jnp.where(_beside(has_one, data.y), data.y - _out_of_bag_mean(committee), 0.0)
    return jnp.sum(residuals**2) / (jnp.sum(has_one) * data.num_outputs)


def _out_of_bag(committee: Bagged) -> Bool[Array, "b n"]:
    """Which members have not seen which rows that count, of those members that did not fail."""
    return (committee.counts == 0) & committee.ok[:, None] & committee.data.mask


def _safe_members_at(committee: Bagged, x: Rows) -> Float[Array, "b m *p"]:
    """`μ(x) + k_xX alpha_b` for every member; 0 in place of alpha for those that failed, so that no derivative meets NaN."""
    data = committee.data
    alpha, free = jax.tree.map(
        lambda leaf: jnp.where(_beside(committee.ok, leaf), leaf, 0.0), (committee.alpha, committee.free)
    )
    own, common = eqx.partition(committee.model, lambda leaf: eqx.is_array(leaf) and committee.is_fitted)

    def of_block(block: Rows) -> Array:
        def member(own: Any, alpha: Array, free: Array | None) -> Array:
            model = _definite(eqx.combine(own, common), data)
            cross = gram_of(model.kernel, data.x, data.mask).cross(block)
            values = matmul(cross.T, alpha)
            if free is not None:
                values = values + matmul(model.trend(block), free).reshape(values.shape)
            return values + mean_values(model.mean, block, values)

        return jnp.moveaxis(jax.vmap(member)(own, alpha, free), 0, 1)

    # The cross-Gram of a common model is not mapped over, and so made once.
    width = data.n * (len(committee) if committee.is_fitted else 1) + alpha[:, 0].size
    return jnp.moveaxis(map_rows(of_block, x, width), 1, 0)


def _mean_over(which: Bool[Array, "b #m"], values: Float[Array, "b m *p"]) -> Float[Array, "m *p"]:
    """The mean over the members that `which` selects at each row; NaN where there is none."""
    which = which.reshape(which.shape + (1,) * (values.ndim - 2))
    number = jnp.sum(which, axis=0)
    total = jnp.sum(jnp.where(which, values, 0.0), axis=0)
    return jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.nan)


def _beside(flags: Bool[Array, " k"], like: Array) -> Bool[Array, "..."]:
    return flags.reshape(flags.shape + (1,) * (like.ndim - 1))


def _fits(model: Model, data: Data, counts: Array, key: Any, solver: Any, options: dict[str, Any]) -> Fits:
    """Every member's hyperparameters, fitted to the rows that it has seen."""
    if not all(map(is_concrete, jax.tree.leaves((model, data, counts)))):
        raise TypeError(
            "fit_members=True works outside of jit, grad and vmap only: leave it out there, and all members share the model."
        )
    if not is_common(model.noise):
        raise ValueError("fit_members=True needs one noise for all rows; this model has one per row.")
    if options.get("shared"):
        raise ValueError(
            "fit_members=True does not allow shared=True, which makes one fit of all members: use kx.fit instead."
        )
    x, y = jax.tree.map(np.asarray, (take(data.x), data.y))
    # Each row once. Copies agree without any noise: the likelihood has no bound as the noise goes to 0, and what is left
    # out of a fold has its copy among the rest.
    rows = [np.flatnonzero(own) for own in np.where(data.mask, counts, 0)]
    draws = [(jax.tree.map(lambda leaf, own=own: leaf[own], x), y[own]) for own in rows]
    if options.get("restarts"):
        key = None if key is None else jax.random.fold_in(key, len(draws))
        options = {"key": key} | options
    return fit_many(model, draws, solver=solver, **options)
