"""Streams: predictions after the last row of a series, and new rows at its end in O(1) each.

The filter's state holds all that the past says about the future: its mean m and its covariance P, given all rows so far. A
new row moves both over the step from the row before, and corrects them by what is new in it. A trend that is left free adds
its coefficients to the state: they do not move, and the function is `h · state + trend(x) · coefficients`.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data, refuse_gaps
from kernax.grams import gram_of
from kernax.kernels import AbstractKernel, AbstractTrend
from kernax.means import mean_values
from kernax.model import Conditioned, Model
from kernax.model._checks import check_conditioned
from kernax.model._model import trend_of
from kernax.noises import is_per_row, noise_at
from kernax.posterior._new_rows import rows_like
from kernax.posterior._predict import Prediction
from kernax.rows import Rows, map_rows, num_rows, take
from kernax.solvers import Result, StateSpace, is_usable, solve_definite, worse
from kernax.solvers._chain import ROUNDINGS
from kernax.solvers._state_space import arranged
from kernax.solvers._steps import dense


class Streamed(eqx.Module):
    """A model conditioned on a series up to its last row, from `kx.posterior.stream`. Its methods are pure functions."""

    model: Model
    """The model."""
    kernel: AbstractKernel
    """The kernel of the model, made definite if the model leaves functions free."""
    trend: AbstractTrend | None
    """The free functions of the model; `None` if there are none."""
    last: Data
    """The last row."""
    mean: Float[Array, "j p"]
    """The mean of the state given all rows so far, for each output."""
    covariance: Float[Array, "j j"]
    """The covariance of the state given all rows so far."""
    change: Float[Array, " j"]
    """How the last row changed the state, if what was new in it was one standard deviation."""
    result: Any
    """How the computation ended, a member of [`kernax.Result`][]: `not_positive_definite` after a row without noise that has
    the time of the row before. All predictions are then NaN."""

    @property
    def time(self) -> Float[Array, ""]:
        """The time of the last row."""
        return _times_of(self.kernel, self.last.x, self.last.dtype)[0]

    def update(self, x: Any, y: Any, *, noise: Any = None) -> "Streamed":
        """The series with new rows at its end: O(1) each, whatever the number of rows before.

        **Arguments:**

        - `x`: new inputs in the order of time, `(m, d)`, none of them before the last row. Under tracing the order
          cannot be checked, and rows out of order make all later results NaN.
        - `y`: new targets, `(m,)` or `(m, p)`.
        - `noise`: the noise of the new rows, if the model's noise is given per row.

        **Returns:**

        A `Streamed`. Its predictions at later times are those of a model conditioned on all rows.
        """
        new = Data(rows_like(self.model, self.last, x), jnp.asarray(y, self.last.dtype))
        if new.y.shape[1:] != self.last.y.shape[1:]:
            raise ValueError(f"y has shape {new.y.shape}, but the series has targets of shape {self.last.y.shape}.")
        if is_per_row(self.model.noise) != (noise is not None):
            raise ValueError(
                "give noise= for the new rows if the model's noise is given per row, and leave it out otherwise."
            )
        _check_order(self, new.x, in_order=True)
        return _updated(self, new, None if noise is None else jnp.asarray(noise, self.last.dtype))

    def predict(self, x: Any, *, noisy: bool = False) -> Prediction:
        """Mean and variance at the time of the last row or later, as from `kx.predict` after conditioning on all rows.

        **Arguments:**

        - `x`: new inputs, `(m, d)`, in any order. Under tracing, the predictions are NaN at times before the last row.
        - `noisy`: add the noise variance, for the spread of a new observation instead of the function.

        **Returns:**

        A `Prediction`.
        """
        rows = rows_like(self.model, self.last, x)
        _check_order(self, rows, in_order=False)
        return _predicted(self, rows, noisy)

    def __repr__(self):
        at = f", at time {float(self.time):.6g}" if is_concrete(self.covariance) and self.covariance.ndim == 2 else ""
        return f"Streamed({self.model!r}{at})"


def stream(c: Any) -> Streamed:
    """Follow a series: add rows at its end in O(1) each, and predict what comes next.

    `kx.extend` stores all rows, and takes O(n) a call for a series. This function keeps only the state at the last row.

    **Arguments:**

    - `c`: a model whose kernel has a state space, conditioned on a series, with any solver.

    **Returns:**

    A `Streamed`. `s = s.update(x, y)` adds rows, and `s.predict(x)` predicts times at the end or later. Both can be used
    inside `jax.jit` and `jax.lax.scan`.
    """
    check_conditioned(c, "a stream", "condition on all rows again, which takes O(n) with kx.StateSpace()")
    refuse_gaps(c.data, "a stream")
    return _stream(c)


class _Steps(NamedTuple):
    """How the state comes to some rows, and what is seen of it there."""

    move: Float[Array, "m j j"]
    shock: Float[Array, "m j j"]
    seen: Float[Array, "m j"]


def _steps(kernel: AbstractKernel, trend: AbstractTrend | None, x: Rows, lengths: Float[Array, " m"]) -> _Steps:
    """Steps of some lengths to rows, NaN for those that go back. All that is asked of the process is asked here."""
    process = arranged(kernel, x)
    observation = process.observation(x)
    steps = process.steps(jnp.where(lengths >= 0, lengths, jnp.nan), observation)
    move, shock = jax.vmap(dense)(steps.moves), jax.vmap(dense)(steps.shocks)
    seen = jnp.broadcast_to(jnp.asarray(observation, move.dtype), move.shape[:2])
    if trend is None:
        return _Steps(move, shock, seen)
    basis = trend(x)
    q = basis.shape[1]
    still = jnp.broadcast_to(jnp.eye(q, dtype=move.dtype), (*move.shape[:1], q, q))
    return _Steps(
        _beside(move, still),
        _beside(shock, jnp.zeros_like(still)),
        jnp.concatenate([seen, basis.astype(move.dtype)], axis=1),
    )


def _times_of(kernel: AbstractKernel, x: Rows, dtype: Any) -> Float[Array, " m"]:
    return arranged(kernel, x).times(x, dtype)


def _beside(first: Float[Array, "m j j"], second: Float[Array, "m q q"]) -> Float[Array, "m _ _"]:
    """Two matrices as the diagonal blocks of one."""
    (j, q), none = (first.shape[-1], second.shape[-1]), (0, 0)
    return jnp.pad(first, (none, (0, q), (0, q))) + jnp.pad(second, (none, (j, 0), (j, 0)))


def _filtered(
    s: Streamed, steps: _Steps, y: Float[Array, "m p"], noise: Float[Array, " m"], live: Bool[Array, " m"]
) -> tuple[Array, Array, Array, Bool[Array, ""]]:
    """Mean and covariance of the state after these rows, the change by the last one, and whether all rows are new."""

    def step(carry: tuple[Array, Array, Array], row: Any) -> Any:
        (mean, covariance, change), ((move, shock, seen), y, noise, live) = carry, row
        mean, covariance, change = matmul(move, mean), matmul(matmul(move, covariance), move.T) + shock, matmul(move, change)
        common = matmul(covariance, seen)
        spread = jnp.sum(seen * common) + noise
        # Without noise, a time that is there twice has nothing new: what is left are roundings of the row before.
        is_new = ~(spread <= ROUNDINGS * jnp.finfo(spread.dtype).eps * jnp.sum(seen * change) ** 2)
        precision = jnp.where(live & is_new, 1.0 / jnp.where(is_new, spread, 1.0), 0.0)
        mean = mean + precision * common[:, None] * (y - matmul(seen, mean))
        change = jnp.where(live, jnp.sqrt(precision) * common, change)
        return (mean, covariance - precision * common[:, None] * common[None, :], change), is_new | ~live

    start = (s.mean, s.covariance, s.change)
    (mean, covariance, change), is_new = jax.lax.scan(step, start, (steps, y, noise, live))
    return mean, covariance, change, jnp.all(is_new)


@compiled
def _stream(c: Conditioned) -> Streamed:
    data = c.data
    trend = trend_of(c.model)
    trend = None if trend is None else trend.scaled(take(data.x), data.mask)
    basis = jnp.zeros((data.n, 0), data.dtype) if trend is None else trend(take(data.x)).astype(data.dtype)
    columns = jnp.concatenate([c.residual.reshape(data.n, -1), basis], axis=1)
    columns = jnp.where(data.mask[:, None], columns, 0.0)
    system, end = c.system, c.system.ending(columns)
    if end is None:
        system = StateSpace().prepare(gram_of(c.system.gram.kernel, data.x, data.mask), c.system.noise)
        end = system.ending(columns)
        assert end is not None
    mean, covariance, change = end.mean, end.covariance, end.change
    if trend is not None:
        mean, covariance = _with_free(mean, covariance, end.new, end.precision, basis.shape[1])
        change = jnp.concatenate([change, jnp.zeros(basis.shape[1], change.dtype)])
    last = Data(take(data.x, end.row[None]), data.y[end.row[None]])
    result = worse(c.result, system.result)
    mean, covariance = (jnp.where(is_usable(result), part, jnp.nan) for part in (mean, covariance))
    return Streamed(c.model, system.gram.kernel, trend, last, mean, covariance, change, result)


def _with_free(
    mean: Float[Array, "j c"],
    covariance: Float[Array, "j j"],
    new: Float[Array, "n c"],
    precision: Float[Array, " n"],
    q: int,
) -> tuple[Float[Array, "k p"], Float[Array, "k k"]]:
    """The state with the coefficients of q free functions below it; the last q columns are those of the functions."""
    (of_y, of_basis), (new_y, new_basis) = (jnp.split(part, [part.shape[1] - q], axis=1) for part in (mean, new))
    weighted = precision[:, None] * new_basis
    both = solve_definite(
        matmul(weighted.T, new_basis), jnp.concatenate([matmul(weighted.T, new_y), jnp.eye(q, dtype=new.dtype)], axis=1)
    )
    free, spread = jnp.split(both, [new_y.shape[1]], axis=1)
    carried = jnp.concatenate([-of_basis, jnp.eye(q, dtype=new.dtype)])
    mean = jnp.concatenate([of_y, jnp.zeros_like(free)]) + matmul(carried, free)
    return mean, jnp.pad(covariance, ((0, q), (0, q))) + matmul(matmul(carried, spread), carried.T)


@compiled
def _updated(s: Streamed, new: Data, noise: Array | None) -> Streamed:
    times = _times_of(s.kernel, new.x, s.last.dtype)
    steps = _steps(s.kernel, s.trend, new.x, jnp.diff(times, prepend=s.time[None]))
    noise = noise_at(s.model.noise, new.x, s.last.dtype) if noise is None else noise
    residual = (new.y - mean_values(s.model.mean, new.x, new.y)).reshape(new.n, -1)
    noise = jnp.broadcast_to(noise, (new.n,))
    mean, covariance, change, is_new = _filtered(s, steps, residual, noise, new.mask)
    last = Data(take(new.x, slice(-1, None)), new.y[-1:])
    result = worse(s.result, Result.where(is_new, Result.successful, Result.not_positive_definite))
    mean, covariance = (jnp.where(is_usable(result), part, jnp.nan) for part in (mean, covariance))
    return dataclasses.replace(s, last=last, mean=mean, covariance=covariance, change=change, result=result)


@compiled
def _predicted(s: Streamed, x: Rows, noisy: bool) -> Prediction:
    def of_block(block: Rows) -> tuple[Array, Array]:
        move, shock, seen = _steps(s.kernel, s.trend, block, _times_of(s.kernel, block, s.last.dtype) - s.time)
        back = matmul(jnp.swapaxes(move, 1, 2), seen[:, :, None])[:, :, 0]
        spread = jnp.sum(back * matmul(back, s.covariance), axis=1) + jnp.einsum("mi,mij,mj->m", seen, shock, seen)
        return matmul(back, s.mean), spread

    mean, variance = map_rows(of_block, x, 8 * s.covariance.size)
    mean = mean.reshape(num_rows(x), *s.last.y.shape[1:])
    clamped = jnp.sum(variance < 0)
    variance = jnp.maximum(variance, 0.0)
    if noisy:
        variance = variance + noise_at(s.model.noise, x, variance.dtype)
    mean = mean + mean_values(s.model.mean, x, mean)
    finite = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(variance))
    result = worse(s.result, Result.where(finite, Result.successful, Result.nonfinite))
    return Prediction(mean, variance, clamped, result)


def _check_order(s: Streamed, x: Rows, *, in_order: bool) -> None:
    """Raise `ValueError` for rows before the last one, or out of order, as far as that can be seen."""
    times = _times_of(s.kernel, x, s.last.dtype)
    end = s.time
    if not is_concrete(times) or not is_concrete(end) or end.ndim:
        return
    times, end = np.asarray(times), float(end)
    if np.any(times < end):
        raise ValueError(
            f"a stream continues after its last time, {end:.6g}, but a row has the time {np.min(times):.6g}: condition with "
            "kx.StateSpace(), which adds rows anywhere by kx.extend and predicts anywhere."
        )
    if in_order and np.any(np.diff(times) < 0):
        raise ValueError("the rows of an update must be in the order of time: sort them.")
