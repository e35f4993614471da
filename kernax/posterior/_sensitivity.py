"""Which columns the posterior mean depends on: Sobol indices."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kernax._arrays import is_concrete, whole_number
from kernax._programs import compiled
from kernax.kernels import as_inputs
from kernax.kernels._input_distributions import Inputs
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned
from kernax.posterior._conformal import Interval
from kernax.posterior._predict import mean
from kernax.posterior._sample import sample
from kernax.posterior._variance_shares import Shares, closed_shares, own_inputs
from kernax.rows import Functionals, Grid, take

_MOST_DRAWN = 2048
"""Rows at which functions are drawn jointly: their covariance matrix has so many rows."""
_FEWEST = 32


class SensitivityIndices(eqx.Module):
    """Sobol indices of each column. Print it for a table."""

    columns: tuple[str, ...] = eqx.field(static=True)
    """The names of the columns."""
    first: Float[Array, "d *p"]
    """The share of the variance that the column explains alone: `Var E[f | x_k] / Var f`."""
    first_interval: Interval | None
    """The interval of `first`; `None` if there is none."""
    total: Float[Array, "d *p"]
    """The share that the column explains alone or together with others: `E Var[f | all but x_k] / Var f`."""
    total_interval: Interval | None
    """The interval of `total`; `None` if there is none."""
    variance: Float[Array, "*p"]
    """`Var f`, of the posterior mean over the inputs."""
    method: str = eqx.field(static=True)
    """How the indices were computed: "closed form" or "quasi-Monte Carlo"."""

    def __repr__(self):
        if not is_concrete(self.first) or self.first.ndim > 2:
            return f"SensitivityIndices({', '.join(self.columns)})"
        lines = [("column", "first-order", "total")]
        for p in range(1 if self.first.ndim == 1 else self.first.shape[1]):
            suffix = "" if self.first.ndim == 1 else f" (output {p})"
            for k, name in enumerate(self.columns):
                at = (k,) if self.first.ndim == 1 else (k, p)
                first = _cell(self.first, self.first_interval, at)
                lines.append((name + suffix, first, _cell(self.total, self.total_interval, at)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def _cell(value: Array, interval: Interval | None, at: tuple[int, ...]) -> str:
    ends = "" if interval is None else f" [{float(interval.lower[at]):.3f}, {float(interval.upper[at]):.3f}]"
    return f"{float(value[at]):.3f}{ends}"


def sensitivity(
    c: Any,
    inputs: Any = None,
    *,
    columns: Sequence[str] | None = None,
    level: float = 0.95,
    num_samples: int = 200,
    num_points: int = 4096,
    key: Key[Array, ""] | None = None,
) -> SensitivityIndices:
    """Sobol indices: the share of the variance of the posterior mean that each column explains.

    The columns vary independently of each other, each with its own distribution. (If columns are correlated in the data, the
    indices describe the function, not the data.) The first-order index of a column is its share alone. The total index also
    has its share of all interactions; it is 0 only if the function does not depend on the column.

    The indices of the mean are computed in closed form, O(n²d), if the mean function is constant, the solver predicts by
    `k(x, X) alpha`, and the kernel is either an `OrthogonalAdditive` with its own `inputs`, or a sum of at most 4 products
    of kernels of one column (such as an `RBF` of several columns). Otherwise, and where rounding spoils the closed form
    (noise that is tiny compared with the kernel's variance), they are averages over quasi-random rows, with
    `(d + 2) num_points` predictions (Sobol', 1993; Jansen, 1999).

    Intervals are quantiles over functions drawn from the posterior, with a covariance matrix of at most 2048 rows
    (`32 (d + 2)` beyond 62 columns). They are for the function itself, which varies more than its posterior mean: if
    the data contain little information, the index of the mean may lie outside of them. Averaging over so few rows adds an
    error of about 0.02. They are NaN if rounding makes that matrix indefinite: use float64, or more noise.

    **Arguments:**

    - `c`: a model conditioned on data whose rows are an array `(n, d)`.
    - `inputs`: how each column is distributed: [`kernax.kernels.NormalInputs`][], [`kernax.kernels.PointInputs`][] or
      [`kernax.kernels.uniform_inputs`][], for all columns or one for each; or rows `(m, d)`. By default those of an
      `OrthogonalAdditive` kernel, and for other kernels the rows of the data.
    - `columns`: names of the columns.
    - `level`: the probability of the intervals, between 0 and 1.
    - `num_samples`: how many functions to draw for them; 0 for no intervals.
    - `num_points`: how many rows to average over if there is no closed form; a power of two.
    - `key`: a JAX random key; `jax.random.key(0)` by default, so that the answer is the same at every call.

    **Returns:**

    A `SensitivityIndices` with `first`, `total`, their intervals, `variance` and `method`. Where the mean does not vary, all
    indices are 0.
    """
    check_conditioned(c)
    x = c.data.x
    if isinstance(x, Functionals | Grid) or not isinstance(take(x), jax.Array):
        raise TypeError("sensitivity needs rows that are one array (n, d), so that each column is an input.")
    d = x.shape[1]
    names = tuple(f"x[{k}]" for k in range(d)) if columns is None else tuple(map(str, columns))
    if len(names) != d:
        raise ValueError(f"columns has {len(names)} names, and the data has {d} columns: give a name to each.")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    if isinstance(num_samples, bool) or not hasattr(num_samples, "__index__") or num_samples < 0:
        raise ValueError(f"num_samples must be a whole number, or 0 for no intervals, got {num_samples!r}.")
    num_points = whole_number(num_points, "num_points")
    if num_points & (num_points - 1):
        raise ValueError(f"num_points must be a power of two, got {num_points}.")
    known = own_inputs(c.model.kernel) if inputs is None else None
    if known is None:
        known = as_inputs(_rows_that_count(c) if inputs is None else inputs, d)
    key = jax.random.key(0) if key is None else key
    shares, method = _closed(c, known), "closed form"
    if shares is None or (is_concrete(shares.variance) and bool(jnp.isnan(shares.variance).any())):
        method = "quasi-Monte Carlo"
        values = mean(c, _design(num_points, known, key, c.data.dtype))
        shares = Shares(*(part[0] for part in _averages(values[None], d)))
    intervals = (None, None) if not num_samples else _intervals(c, shares, known, key, int(num_samples), level)
    first, total = _indices(shares)
    return SensitivityIndices(names, first, intervals[0], total, intervals[1], shares.variance, method)


def _rows_that_count(c: Conditioned) -> np.ndarray:
    if not is_concrete(c.data.mask):
        raise TypeError(
            "inside jit, vmap and grad, sensitivity needs inputs=: the distribution must be known before tracing."
        )
    return np.asarray(take(c.data.x))[np.asarray(c.data.mask)]


@compiled
def _closed(c: Conditioned, inputs: tuple[Inputs, ...]) -> Shares | None:
    shares = closed_shares(c, inputs)
    return None if shares is None else Shares(*(jnp.where(c.ok, part, jnp.nan) for part in shares))


def _design(number: int, inputs: tuple[Inputs, ...], key: Key[Array, ""], dtype: Any) -> Float[Array, "m d"]:
    """Rows A, rows B, and for each column the rows A with that column from B: Sobol points, shifted at random."""
    from scipy.stats import qmc  # takes half a second to import

    d = len(inputs)
    points = jnp.asarray(qmc.Sobol(2 * d, scramble=False).random(number), dtype)
    levels = (points + jax.random.uniform(key, (2 * d,), dtype)) % 1.0
    # Away from 0 and 1, where quantiles are infinite.
    edge = jnp.finfo(dtype).eps
    levels = jnp.clip(levels, edge, 1.0 - edge)
    a, b = (
        jnp.stack([part.quantile(half[:, k]) for k, part in enumerate(inputs)], axis=1)
        for half in (levels[:, :d], levels[:, d:])
    )
    mixed = [jnp.where(jnp.arange(d) == k, b, a) for k in range(d)]
    return jnp.concatenate([a, b, *mixed]).astype(dtype)


@compiled
def _averages(values: Float[Array, "s m *p"], d: int) -> Shares:
    """The shares of several functions, from their values at the rows of `_design`."""
    blocks = values.reshape(values.shape[0], d + 2, -1, *values.shape[2:])
    blocks = blocks - jnp.mean(blocks, axis=(1, 2), keepdims=True)
    a, b, mixed = blocks[:, 0], blocks[:, 1], blocks[:, 2:]
    changes = mixed - a[:, None]
    return Shares(
        variance=jnp.mean(blocks**2, axis=(1, 2)),
        # A and B are independent. A half of their product is taken off for its error, which is much like that of the rest.
        first=jnp.mean(b[:, None] * (mixed - 0.5 * a[:, None]), axis=2),
        total=0.5 * jnp.mean(changes**2, axis=2),
    )


def _intervals(
    c: Conditioned, shares: Shares, inputs: tuple[Inputs, ...], key: Key[Array, ""], number: int, level: float
) -> tuple[Interval, Interval]:
    """Intervals of first-order and total indices, from functions that are drawn at a few rows.

    What the average over these rows makes of the mean is known, and so is the truth. The difference is the error of the
    average, most of which the drawn functions have in common with their mean: it is taken off.
    """
    d = len(inputs)
    rows = max(_FEWEST, 2 ** int(np.log2(_MOST_DRAWN / (d + 2))))
    places = _design(rows, inputs, key, c.data.dtype)
    drawn = _averages(sample(c, places, key=jax.random.fold_in(key, 1), num_samples=number), d)
    known = _averages(mean(c, places)[None], d)
    return _quantiles(Shares(*(a + b - k for a, b, k in zip(drawn, shares, known, strict=True))), level)


@compiled
def _quantiles(shares: Shares, level: float) -> tuple[Interval, Interval]:
    ends = jnp.asarray([0.5 - 0.5 * level, 0.5 + 0.5 * level], shares.variance.dtype)
    first, total = (jnp.quantile(part, ends, axis=0) for part in jax.vmap(_indices)(shares))
    return Interval(first[0], first[1]), Interval(total[0], total[1])


def _indices(shares: Shares) -> tuple[Array, Array]:
    """First-order and total shares of the variance, between 0 and 1."""
    varies = shares.variance > 0
    whole = jnp.where(varies, shares.variance, 1.0)

    def share(part: Array) -> Array:
        # NaN is no share: it stays NaN.
        return jnp.where(varies | jnp.isnan(shares.variance), jnp.clip(part / whole, 0.0, 1.0), 0.0)

    return share(shares.first), share(shares.total)
