"""The parameters of a model with their names and units."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from kernax.kernels import (
    AbstractKernel,
    AbstractStationary,
    Categorical,
    FeatureMap,
    Power,
    Product,
    Scale,
    Select,
    Sum,
    Warp,
    parameter_names,
)
from kernax.parameters import owner_and_field, parameters, setting, unit
from kernax.parameters._tree import has_own_range
from kernax.reports._report import Parameter

_MOST_ENTRIES = 12
_EXACTLY = 1e-4


class Names(NamedTuple):
    """What columns and target are called, and how many of their own units one unit of the model's numbers is."""

    columns: tuple[str, ...] | None
    """None if the inputs are no table of columns."""
    target: str
    """Empty if the function is not in units of the target, such as that of counts."""
    x_scales: np.ndarray | None
    y_scale: float
    lines: np.ndarray | None = None
    """The line of each row in its file."""
    parts: dict[str, list[int]] | None = None
    """Of rows that are a dict: which columns each part holds."""
    looks_standardised: bool = False
    """Whether the targets have mean 0 and standard deviation 1, and no scale is given."""

    @property
    def scaled(self) -> str:
        """What was standardised before the fit, with a known scale; the empty text if nothing was."""
        parts = ["the inputs"] * (self.x_scales is not None) + ["the target"] * (self.y_scale != 1.0)
        return " and ".join(parts)


def names_of(
    data: Any,
    columns: Sequence[str] | None,
    target: str | None,
    scales: Any,
    parts: dict[str, list[int]] | None = None,
) -> Names:
    """The names given, or `x[0]`, `x[1]`, … and `y`. `parts` says where rows that are a dict have which column."""
    x = None if data is None else data.x
    width = x.shape[1] if isinstance(x, jax.Array | np.ndarray) and x.ndim == 2 else None
    if columns is not None and width is not None and len(columns) != width:
        raise ValueError(f"columns has {len(columns)} names, and the data has {width} columns: give a name to each.")
    if width is None and data is not None and parts is None:
        columns = None  # inputs of a structure of their own have no columns to be named
    if columns is None and width is not None:
        columns = ["x"] if width == 1 else [f"x[{i}]" for i in range(width)]
    x_scales, y_scale = (None, 1.0) if scales is None else scales
    if x_scales is not None:
        x_scales = np.atleast_1d(np.asarray(x_scales, float))
        if columns is not None and x_scales.shape != (len(columns),):
            raise ValueError(f"scales has {x_scales.size} scales of columns, and there are {len(columns)} columns.")
    names = None if columns is None else tuple(map(str, columns))
    looks = scales is None and data is not None and _look_standardised(data)
    called = target or "y"
    called = f"standardised {called}" if looks and "standardised" not in called else called
    return Names(names, called, x_scales, float(y_scale), parts=parts, looks_standardised=looks)


def _look_standardised(data: Any) -> bool:
    """Whether each output has mean 0 and standard deviation 1, which measured targets do not have by chance."""
    targets = np.asarray(data.y, float)[np.asarray(data.mask).reshape(len(data.y), -1).any(axis=1)]
    if len(targets) < 3 or not np.isfinite(targets).all():
        return False
    level, spreads = np.mean(targets, axis=0), [np.std(targets, axis=0, ddof=ddof) for ddof in (0, 1)]
    return bool(np.all(np.abs(level) < _EXACTLY) and any(np.all(np.abs(sd - 1) < _EXACTLY) for sd in spreads))


class Lengthscale(NamedTuple):
    """One lengthscale, of one column (`None`: of all together)."""

    name: str
    value: float
    column: int | None


def described_parameters(model: Any, names: Names, is_fit: bool, most_entries: int = _MOST_ENTRIES) -> list[Parameter]:
    """Every parameter in its own unit, the entries of short vectors one by one; bounds only of what was fitted."""
    rows = []
    called = parameter_names(model)
    for path, leaf in parameters(model):
        value, name = np.asarray(leaf, float), called[path]
        columns = columns_of(model, path, names)
        measured, known = _unit_in_place(model, path), setting(model, path).bijector
        measured = measured if names.target else _without_target(measured)
        hit = np.zeros(value.shape, bool)
        if is_fit and known is not None:  # a noise of 0 is held, not arrived at
            hit = np.asarray(known.at_bound(value)) & (value != 0)
        if value.ndim > 1 or value.size > most_entries:
            ends = f"{value.size} values from {value.min():.4g} to {value.max():.4g}" if value.size else "no values"
            ends += f", {hit.sum()} of them at a bound" if hit.any() else ""
            rows.append(Parameter(name, ends, _unit_text(measured, None, names, False)))
            continue
        owner = owner_and_field(model, path)[0]
        levels = owner.levels if isinstance(owner, Categorical) and value.shape == (len(owner.levels),) else None
        per_column = value.ndim == 1 and columns is not None and len(columns) == value.size and "x" in measured
        for i, entry in enumerate(value.ravel()):
            column = columns[i] if per_column and columns is not None else _only(columns)
            factor = _factor(measured, column, columns, names)
            entry_name = levels[i] if levels is not None else _label(column if per_column else None, i, names)
            label = name if value.ndim == 0 else f"{name}[{entry_name}]"
            text = _unit_text(measured, column, names, factor is not None)
            side = _side(known, float(entry)) if hit.ravel()[i] else ""
            shown = float(entry) * (1.0 if factor is None else factor)
            rows.append(Parameter(label, shown, text, side, has_own_range(model, path)))
    return rows


def _unit_in_place(model: Any, path: Any) -> str:
    """What a parameter is measured in. A product has the target's unit once: its other factors, and what stands below a
    variance or a power, have none of it.
    """
    measured = unit(model, path)
    if "y" not in measured:
        return measured
    without = _without_target(measured)
    for depth in range(1, len(path)):
        part, _ = owner_and_field(model, path[: depth + 1])
        if (isinstance(part, Scale) and path[depth].name == "kernel") or isinstance(part, Power):
            return without
        if isinstance(part, Product) and path[depth + 1].idx != _carrier(part):
            return without
    return measured


def _without_target(measured: str) -> str:
    return measured.replace("y²", "").replace("/x", "1/x")


def _carrier(product: Product) -> int:
    """The factor of a product that has the target's unit: the first with a variance in front, or else of its own."""

    def is_sized(node: Any) -> bool:
        return isinstance(node, Scale | Sum)

    scaled = [i for i, k in enumerate(product.kernels) if any(map(is_sized, jax.tree.leaves(k, is_leaf=is_sized)))]
    own = [i for i, k in enumerate(product.kernels) if any("y" in unit(k, path) for path, _ in parameters(k))]
    return next(iter([*scaled, *own]), 0)


def lengthscales(model: Any, names: Names) -> list[Lengthscale]:
    """The lengthscales of stationary kernels that look at columns of the data themselves."""
    found, called = [], parameter_names(model)
    for path, leaf in parameters(model):
        owner, field = owner_and_field(model, path)
        columns = columns_of(model, path, names)
        if not isinstance(owner, AbstractStationary) or field != "lengthscale" or columns is None:
            continue
        name, value = called[path], np.asarray(leaf, float)
        if value.ndim == 0:
            found.append(Lengthscale(name, float(value), _only(columns)))
        elif len(columns) == value.size:
            found += [Lengthscale(f"{name}[{_label(c, i, names)}]", float(value[i]), c) for i, c in enumerate(columns)]
    return found


def columns_of(model: Any, path: Any, names: Names) -> list[int] | None:
    """Which columns of the data the owner of the parameter at `path` sees; None if it sees something else."""
    if names.columns is None:
        return None
    columns: list[int] = list(range(len(names.columns)))
    for depth in range(1, len(path)):
        part, _ = owner_and_field(model, path[: depth + 1])
        if isinstance(part, Select):
            if part.columns is None:
                if names.parts is None or part.key not in names.parts:
                    return None
                columns = names.parts[part.key]
                continue
            columns = [columns[i] for i in part.columns]
        elif isinstance(part, Warp | FeatureMap):
            return None
        elif not isinstance(part, AbstractKernel | tuple):
            return columns
    return columns


def _only(columns: list[int] | None) -> int | None:
    return columns[0] if columns is not None and len(columns) == 1 else None


def _label(column: int | None, i: int, names: Names) -> str:
    if column is None or names.columns is None:
        return str(i)
    name = names.columns[column]
    return str(column) if name == f"x[{column}]" else name


def _powers(measured: str) -> dict[str, int]:
    """`y²/x²` as `{"y": 2, "x": -2}`."""
    powers, sign, last = {"x": 0, "y": 0}, 1, ""
    for letter in measured:
        if letter == "/":
            sign = -1
        elif letter == "²" and last:
            powers[last] += sign
        elif letter in powers:
            powers[letter] += sign
            last = letter
    return powers


def _factor(measured: str, column: int | None, columns: list[int] | None, names: Names) -> float | None:
    """What a value is multiplied with to be in the units of the table; None if it cannot be told in them."""
    powers = _powers(measured)
    factor = names.y_scale ** powers["y"]
    if powers["x"] and names.x_scales is not None:
        own = names.x_scales if columns is None else names.x_scales[columns]
        if column is None and len(set(own.tolist())) != 1:
            return None
        factor *= float(own[0] if column is None else names.x_scales[column]) ** powers["x"]
    return factor


def _unit_text(measured: str, column: int | None, names: Names, is_converted: bool) -> str:
    if not measured:
        return ""
    if names.x_scales is not None and not is_converted:
        return "standardised"
    several = names.columns[0] if names.columns is not None and len(names.columns) == 1 else "x"
    named = several if column is None or names.columns is None else names.columns[column]
    return "".join({"x": named, "y": names.target}.get(letter, letter) for letter in measured)


def _side(bijector: Any, value: float) -> str:
    """Which end of its range a value sits at."""
    upper = getattr(bijector, "ceiling", getattr(bijector, "upper", np.inf))
    lower = getattr(bijector, "floor", getattr(bijector, "lower", -np.inf))
    return "upper" if abs(upper - value) < abs(value - lower) else "lower"
