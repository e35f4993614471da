"""How much each column matters, as bars with intervals."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kernax._programs import compiled
from kernax.fitting import Fit
from kernax.kernels import AbstractStationary, FeatureMap, Select, Warp, parameter_names
from kernax.model import Conditioned, condition
from kernax.parameters import log_prior, owner_and_field, parameters, ravel
from kernax.plot._canvas import COLOURS, GREY, Axes, by_output, canvas, check_drawable, check_level, ink, output_name
from kernax.plot._replaced import all_but, replaced
from kernax.plot._units import Inputs, plain
from kernax.selection import log_marginal_likelihood

_MOST_BARS = 30


class Bars(NamedTuple):
    """One bar for each column: its length, and the ends of its interval (NaN where there is none)."""

    label: str
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def sensitivity(of: Any, *, level: float | None = 0.95, columns: Any = None, ax: Any = None) -> Axes:
    """Draw how much each column matters, as bars with intervals, the most important column on top.

    A model with one lengthscale for each column (ARD) is drawn as the standard deviation of each column divided by its
    lengthscale: columns with a short bar hardly change the function over the data. For a `Fit` the intervals come from the
    curvature of the log posterior at the fit (Laplace's approximation): two gradients for each parameter.

    Sobol indices, from `kx.sensitivity`, are drawn with their intervals, and so is any table of indices: a dict of columns,
    or an object whose method `table()` returns one. Its column of text names the bars. Every other column is a group of
    bars, such as `first` and `total`; `first_lower` and `first_upper` are the ends of the intervals of `first`.

    **Arguments:**

    - `of`: a `Fit` or a `Conditioned` with inputs of shape `(n, d)`, Sobol indices, or a table of indices.
    - `level`: the probability of the intervals of a `Fit`; `None` for bars alone.
    - `columns`: the names of the columns of x. A `kx.tables.Column` can be used as a name.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes. Of more than 30 columns the 30 most important are drawn.
    """
    if level is not None:
        check_level(level)
    if isinstance(of, Fit | Conditioned):
        names, bars = _of_lengthscales(of, level, columns)
        title = "standard deviation of the column / lengthscale"
    else:
        names, bars = _of_table(of)
        title = bars[0].label if len(bars) == 1 else "index"
    order = np.argsort(-np.max([np.nan_to_num(group.values) for group in bars], axis=0), kind="stable")[:_MOST_BARS]
    ax = canvas(ax)
    thickness = 0.8 / len(bars)
    for j, group in enumerate(bars):
        places = np.arange(len(order)) + (j - (len(bars) - 1) / 2) * thickness
        values, low, high = group.values[order], group.low[order], group.high[order]
        ax.barh(places, values, height=0.9 * thickness, color=COLOURS[j % len(COLOURS)], alpha=0.75, label=group.label)
        known = np.isfinite(low) & np.isfinite(high)
        if known.any():
            ax.hlines(places[known], low[known], high[known], color=ink(), linewidth=1.2)
            for ends in (low, high):
                ax.plot(ends[known], places[known], "|", color=ink(), markersize=6)
    ax.axvline(0.0, color=GREY, linewidth=0.8)
    ax.set_yticks(np.arange(len(order)), [names[i] for i in order])
    ax.invert_yaxis()
    ax.set(xlabel=title)
    if len(bars) > 1:
        ax.legend(loc="lower right", fontsize="small")
    return ax


def _of_table(of: Any) -> tuple[list[str], list[Bars]]:
    table = _as_table(of)
    if not isinstance(table, Mapping):
        raise TypeError(
            "sensitivity needs a Fit, a Conditioned, a dict of columns or an object whose method table() returns one, got "
            f"{type(of).__name__}."
        )
    arrays = {str(name): np.asarray(values) for name, values in table.items()}
    texts = [name for name, values in arrays.items() if values.dtype.kind in "UO"]
    numbers = {name: values.astype(float) for name, values in arrays.items() if values.dtype.kind in "iuf"}
    if len(texts) != 1:
        raise ValueError(f"a table of indices needs one column of names, and this one has {len(texts)} columns of text.")
    names = [plain(str(name)) for name in arrays[texts[0]]]
    ends = {f"{name}_{end}" for name in numbers for end in ("lower", "upper")}
    none = np.full(len(names), np.nan)
    bars = [
        Bars(name, values, numbers.get(f"{name}_lower", none), numbers.get(f"{name}_upper", none))
        for name, values in numbers.items()
        if name not in ends
    ]
    if not bars or any(part.shape != (len(names),) for group in bars for part in group[1:]):
        raise ValueError(f"a table of indices needs columns of {len(names)} numbers, one for each name.")
    return names, bars


def _as_table(of: Any) -> Any:
    """A dict of columns, of what has one or is a set of indices; anything else as it is."""
    if callable(getattr(of, "table", None)):
        return of.table()
    if not hasattr(of, "columns") or not hasattr(of, "first"):
        return of
    table: dict[str, Any] = {"column": list(map(str, of.columns))}
    for field, word in (("first", "first-order"), ("total", "total")):
        interval = getattr(of, f"{field}_interval", None)
        values = by_output(getattr(of, field))
        for j in range(values.shape[1]):
            name = f"{word}{output_name(j, values.shape[1])}"
            table[name] = values[:, j]
            if interval is not None:
                table[f"{name}_lower"], table[f"{name}_upper"] = (
                    by_output(end)[:, j] for end in (interval.lower, interval.upper)
                )
    return table


def _of_lengthscales(of: Any, level: float | None, columns: Any) -> tuple[list[str], list[Bars]]:
    """Bars of every vector of lengthscales, with those of the columns that it does not see left at 0."""
    c = check_drawable(of)
    inputs = Inputs(c, columns)
    width = len(inputs.quantities)
    places, seen = [], []
    for place, (path, leaf) in enumerate(parameters(c.model)):
        owner, field = owner_and_field(c.model, path)
        at = _columns_seen(c.model, path, width)
        if not isinstance(owner, AbstractStationary) or field != "lengthscale" or at is None:
            continue
        if np.shape(leaf) == (len(at),) or (np.ndim(leaf) == 0 and len(at) == 1):
            places.append(place)
            seen.append(at)
    if not places:
        raise ValueError(
            "no kernel of the model has a lengthscale for each column: give one, such as kx.RBF(jnp.ones(d)), or draw "
            "kx.plot.partial_dependence."
        )
    deviations = np.std(inputs.values, axis=0)
    known, called = parameters(c.model), parameter_names(c.model)
    inverse = [1.0 / np.atleast_1d(np.asarray(known[place][1], np.float64)) for place in places]
    least = 0.1 / np.where(deviations > 0, deviations, 1.0)
    steps = [1e-3 * np.maximum(s, least[at]) for s, at in zip(inverse, seen, strict=True)]
    errors = [np.full(len(s), np.nan) for s in inverse]
    if level is not None and isinstance(of, Fit):
        errors = _standard_errors(c, places, inverse, steps)
    factor = check_level(level) if level is not None else np.nan
    bars = []
    for place, at, s, error in zip(places, seen, inverse, errors, strict=True):
        values, low, high = np.zeros(width), np.full(width, np.nan), np.full(width, np.nan)
        values[at] = deviations[at] * s
        low[at] = deviations[at] * np.maximum(s - factor * error, 0.0)
        high[at] = deviations[at] * (s + factor * error)
        bars.append(Bars(called[known[place][0]], values, low, high))
    return [quantity.name for quantity in inputs.quantities], bars


def _columns_seen(model: Any, path: Any, number: int) -> list[int] | None:
    """Which columns the owner of a parameter sees; `None` if it sees something else, such as features."""
    columns = list(range(number))
    for depth in range(1, len(path)):
        part, _ = owner_and_field(model, path[: depth + 1])
        if isinstance(part, Select) and part.columns is not None:
            columns = [columns[i] for i in part.columns]
        elif isinstance(part, Select | Warp | FeatureMap):
            return None
    return columns


def _standard_errors(c: Conditioned, places: list[int], inverse: list[Any], steps: list[Any]) -> list[np.ndarray]:
    """Of the inverse lengthscales, from the curvature of the log posterior over them and all other parameters.

    Inverse lengthscales are better than logarithms: the likelihood of an irrelevant column is flat for every long
    lengthscale, but has a curvature at `1/lengthscale = 0`.
    """
    lengths = [len(s) for s in inverse]
    others, _ = ravel(c.model, trainable=all_but(c.model, places))
    vector = np.concatenate([*inverse, np.asarray(others, np.float64)])
    is_double = c.data.dtype == jnp.float64
    every = np.concatenate([*steps, np.full(len(others), 1e-3)]) * (1.0 if is_double else 30.0)
    slopes = []
    for i, step in enumerate(every):
        moved = [vector + sign * step * (np.arange(len(vector)) == i) for sign in (1.0, -1.0)]
        up, down = (_slope(c.model, c.data, c.solver, tuple(places), jnp.asarray(v, c.data.dtype)) for v in moved)
        slopes.append((np.asarray(up, np.float64) - np.asarray(down, np.float64)) / (2 * step))
    hessian = -0.5 * (np.array(slopes) + np.array(slopes).T)
    # A parameter at an end of its range, where the posterior does not curve, is held.
    curved = np.flatnonzero(np.diag(hessian) > 0)
    scale = 1.0 / np.sqrt(np.diag(hessian)[curved])
    values, vectors = np.linalg.eigh(hessian[np.ix_(curved, curved)] * scale[:, None] * scale)
    errors = np.full(len(vector), np.nan)
    errors[curved] = scale * np.sqrt(np.sum(vectors**2 / np.maximum(values, 1e-6), axis=1))
    return np.split(errors[: sum(lengths)], np.cumsum(lengths)[:-1])


@compiled
def _slope(model: Any, data: Any, solver: Any, places: tuple[int, ...], vector: Any) -> Any:
    """The gradient of the log posterior in the inverse lengthscales at some places and the other parameters."""

    def value(vector: Any) -> Any:
        start, changes = 0, {}
        for place in places:
            leaf = parameters(model)[place][1]
            changes[place] = (1.0 / vector[start : start + leaf.size]).reshape(leaf.shape)
            start += leaf.size
        _, rebuild = ravel(model, trainable=all_but(model, places))
        proposed = replaced(rebuild(vector[start:]), changes)
        return log_marginal_likelihood(condition(proposed, data, solver, throw=False)) + log_prior(proposed)

    return jax.grad(value)(vector)
