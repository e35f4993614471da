"""The objective over two parameters, and where the starts of a fit ended."""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

from kernax._programs import compiled
from kernax.bijectors import Real
from kernax.fitting import Fit
from kernax.kernels import parameter_names
from kernax.model import condition
from kernax.parameters import log_prior, parameter_name, parameters, setting
from kernax.plot._canvas import VERMILION, Axes, canvas, check_finished, check_single
from kernax.plot._replaced import replaced
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import is_usable

_FARTHEST = 1e4
"""Ends of starts that are farther from the fit than this factor lie outside the picture."""


def landscape(
    fit: Fit[Any],
    first: str | None = None,
    second: str | None = None,
    *,
    objective: Any = negative_log_marginal_likelihood,
    num: int = 25,
    ax: Any = None,
) -> Axes:
    """Draw the objective of a fit over two parameters as a map, with the fit and the ends of its other starts.

    The other parameters are held at the values of the fit. A start that ended at other values of those need not end in a
    valley of the map. The map shows how far the objective is above its least value on the grid; each colour is twice as far
    as the one before. It takes `num²` evaluations, O(n³) each with `Cholesky`.

    **Arguments:**

    - `fit`: a `Fit` from [`kernax.fit`][], with `restarts=` to see where they ended.
    - `first`, `second`: the names of the parameters, such as `"rbf.lengthscale"` or `"rbf.lengthscale[2]"` (see
      [`kernax.kernels.parameter_names`][]), or their paths, such as `"kernel.kernel.lengthscale"`; the end of a name is
      enough if no other name has the same end. The first two parameters if not given.
    - `objective`: what was minimised; negative log priors are added to it, as in `kx.fit`.
    - `num`: places along each axis.
    - `ax`: the matplotlib axes to draw into; a new figure if not given.

    **Returns:**

    The axes.
    """
    if not isinstance(fit, Fit):
        raise TypeError(f"landscape needs a Fit from kx.fit, got {type(fit).__name__}.")
    check_finished(fit)
    check_single(fit, fit.value)
    if fit.data is None or not np.isfinite(float(fit.value)):
        raise ValueError("landscape needs a Fit that holds its data and has a finite value: fit that dataset with kx.fit.")
    if num < 2:
        raise ValueError(f"num, of places along each axis, must be at least 2, got {num}.")
    entries = _entries(fit.model)
    names = list(entries)
    if len(names) < 2:
        raise ValueError("a landscape needs two parameters, and the model has one.")
    aliases = dict(zip(_entries(fit.model, by_path=True), names, strict=True))
    chosen = [_named(first, names, aliases, names[0])]
    chosen.append(_named(second, names, aliases, next(name for name in names if name != chosen[0])))
    if chosen[0] == chosen[1]:
        raise ValueError(f"a landscape needs two different parameters, got {chosen[0]} twice.")
    spots = [entries[name] for name in chosen]
    best = [_value(fit.model, spot) for spot in spots]
    ends = np.array([[_value(model, spot) for spot in spots] for model in fit.start_models]).reshape(-1, 2)
    logs = [_is_log(fit.model, spot, value) for spot, value in zip(spots, best, strict=True)]
    lines = [_across(value, ends[:, k], logs[k], num) for k, value in enumerate(best)]
    grid = np.stack([part.ravel() for part in np.meshgrid(*lines)], axis=1)
    places = jnp.asarray(grid, fit.data.dtype)
    values = np.asarray(_objective_at(fit.model, fit.data, fit.solver, objective, tuple(spots), places))
    values = values.astype(np.float64).reshape(num, num)
    if not np.isfinite(values).any():
        raise ValueError("the objective is not finite anywhere on the grid: nothing can be drawn.")
    above = values - np.nanmin(values)

    ax = canvas(ax)
    known = above[np.isfinite(above)]
    likelihood = objective is negative_log_marginal_likelihood
    least = 0.5 if likelihood else max(float(np.quantile(known, 0.95)), np.finfo(float).tiny) / 256
    count = int(np.clip(np.ceil(np.log2(max(known.max() / least, 2.0))), 3, 14))
    levels = np.concatenate([[0.0], least * 2.0 ** np.arange(count)])
    colours = mpl.colormaps["viridis"](np.linspace(1.0, 0.0, len(levels)))  # the last is that of all above
    filled = ax.contourf(*lines, np.ma.masked_invalid(above), levels=levels, colors=list(colours), extend="max")
    figure: Any = ax.figure
    unit = " [nats]" if likelihood else ""
    figure.colorbar(filled, ax=ax, label=f"objective, above the least{unit}", format=lambda value, _: f"{value:.4g}")
    if len(ends):
        ax.plot(*ends.T, "X", color="white", markeredgecolor="black", markersize=11, label=f"ends of {len(ends)} starts")
    ax.plot(*best, "D", color=VERMILION, markeredgecolor="white", markersize=7, label="fit")
    ax.set(xscale="log" if logs[0] else "linear", yscale="log" if logs[1] else "linear")
    ax.set(xlim=lines[0][[0, -1]], ylim=lines[1][[0, -1]], xlabel=chosen[0], ylabel=chosen[1])
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize="small")
    return ax


Spot = tuple[int, tuple[int, ...]]
"""A parameter's place among those of the model, and an entry of it."""


def _entries(model: Any, *, by_path: bool = False) -> dict[str, Spot]:
    found, called = {}, parameter_names(model)
    for place, (path, leaf) in enumerate(parameters(model)):
        name = parameter_name(path) if by_path else called[path]
        for index in np.ndindex(np.shape(leaf)):
            label = f"[{', '.join(map(str, index))}]" if index else ""
            found[name + label] = (place, index)
    return found


def _named(name: str | None, names: list[str], aliases: dict[str, str], default: str) -> str:
    """The parameter that is meant: by its name or its path in `aliases`, or by the end of one of them."""
    if name is None:
        return default
    if name in names or name in aliases:
        return aliases.get(name, name)
    matches = [known for known in names if known.endswith(name)]
    matches = matches or [known for path, known in aliases.items() if path.endswith(name)]
    if len(matches) != 1:
        which = "no parameter is called" if not matches else f"{len(matches)} parameters are called"
        raise ValueError(f"{which} {name!r}: the model has {', '.join(names[:20])}{', …' if len(names) > 20 else ''}.")
    return matches[0]


def _value(model: Any, spot: Spot) -> float:
    return float(np.asarray(parameters(model)[spot[0]][1])[spot[1]])


def _is_log(model: Any, spot: Spot, value: float) -> bool:
    return value > 0 and not isinstance(setting(model, parameters(model)[spot[0]][0]).bijector, Real)


def _across(value: float, ends: np.ndarray, is_log: bool, num: int) -> np.ndarray:
    """The places along an axis: around the fit, and around the ends of the starts that are not too far."""
    if not is_log:
        known = np.append(ends[np.isfinite(ends)], value)
        margin = max(np.ptp(known) * 0.2, abs(value), 1e-3)
        return np.linspace(known.min() - margin, known.max() + margin, num)
    near = ends[(ends > value / _FARTHEST) & (ends < value * _FARTHEST)]
    known = np.append(near, value)
    return np.geomspace(min(known.min() / 3, value / 10), max(known.max() * 3, value * 10), num)


@compiled
def _objective_at(model: Any, data: Any, solver: Any, objective: Any, spots: tuple[Spot, ...], grid: Any) -> Any:
    """The objective with the parameters at the spots set to each row of the grid, one after the other."""

    def value(row: Any) -> Any:
        proposed = model
        for (place, index), entry in zip(spots, row, strict=True):
            leaf = jnp.asarray(parameters(proposed)[place][1])
            proposed = replaced(proposed, {place: leaf.at[index].set(entry)})
        c = condition(proposed, data, solver, throw=False)
        return jnp.where(is_usable(c.result), objective(c) - log_prior(proposed), jnp.nan)

    return jax.lax.map(value, grid)
