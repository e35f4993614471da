"""The kernels that an expression may name, what each takes, and in which units."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kernax import kernels
from kernax.expressions._columns import AbstractColumn
from kernax.expressions._syntax import Source, Term


class Atom(NamedTuple):
    """A kernel's class and the sort of each parameter.

    `length` is in the units of its column; `vector` has none, but may differ from column to column; `slope` is a variance of
    the target per square of a column; `variance` one of the target; `number` and `numbers` have no unit;
    `whole` is a whole number.
    """

    make: Callable[..., Any]
    parameters: dict[str, str]
    least: int = 1

    @property
    def has_ard(self) -> bool:
        return any(sort in ("length", "vector", "slope") for sort in self.parameters.values())


_STATIONARY = {"lengthscale": "length"}
_NETWORK = {"depth": "whole", "activation": "activation", "weight_variance": "numbers", "bias_variance": "numbers"}
ATOMS = {
    "rbf": Atom(kernels.RBF, _STATIONARY),
    "matern12": Atom(kernels.Matern12, _STATIONARY),
    "matern32": Atom(kernels.Matern32, _STATIONARY),
    "matern52": Atom(kernels.Matern52, _STATIONARY),
    "rationalquadratic": Atom(kernels.RationalQuadratic, {**_STATIONARY, "alpha": "number"}),
    "periodic": Atom(kernels.Periodic, {"period": "length", "lengthscale": "vector", "harmonics": "whole"}),
    "cosine": Atom(kernels.Cosine, {"period": "length"}),
    "sho": Atom(kernels.SHO, {"period": "length", "quality": "number"}),
    "linear": Atom(kernels.Linear, {"variance": "slope"}),
    "polynomial": Atom(kernels.Polynomial, {"degree": "whole", "scale": "number", "offset": "number"}),
    "constant": Atom(kernels.Constant, {"variance": "variance"}),
    "cubicspline": Atom(kernels.CubicSpline, {}),
    "thinplate": Atom(kernels.ThinPlate, {"order": "whole"}),
    "arccosine": Atom(
        kernels.ArcCosine, {"order": "whole", "weight_variance": "numbers", "bias_variance": "numbers"}, least=0
    ),
    "nngp": Atom(kernels.NNGP, _NETWORK, least=0),
    "ntk": Atom(kernels.NTK, _NETWORK, least=0),
}
CATEGORICAL = "categorical"
ALIASES = {
    "category": CATEGORICAL,
    "rq": "rationalquadratic",
    "se": "rbf",
    "squaredexponential": "rbf",
    "gaussian": "rbf",
    "exponential": "matern12",
    "poly": "polynomial",
    "bias": "constant",
    "spline": "cubicspline",
    "thinplatespline": "thinplate",
}
_ACTIVATIONS = {"relu": kernels.ReLU, "erf": kernels.Erf}
_MOST_WHOLE, _MOST_HARMONICS = 20, 200


def atom_options(
    atom: Atom, options: dict[str, Any], columns: tuple[AbstractColumn, ...], variance: float, source: Source, at: int
) -> tuple[dict[str, Any], set[str], set[str]]:
    """The arguments of a kernel in standardised units, which of them were written, and which are held."""
    ard = options.get("ard", True)
    if not isinstance(ard, bool):
        source.fail("ard is True or False", at)
    if atom.make is kernels.ThinPlate:
        _check_thin_plate(options, len(columns), source, at)
    if atom.make is kernels.SHO and len(columns) > 1:
        source.fail(f"sho is for one column: choose it, such as sho(columns={columns[0].name!r})", at)
    values, given, held = {}, set(), set()
    for name, sort in atom.parameters.items():
        if name not in options:
            if sort in ("length", "vector", "slope") and ard and len(columns) > 1:
                values[name] = np.ones(len(columns))
            if name == "period":
                values[name] = _first_period(columns)
            continue
        value = options[name]
        if isinstance(value, Term):
            value = value.value
            held.add(name)
        given.add(name)
        values[name] = _converted(name, sort, value, columns, variance, atom.least, source, at)
    return values, given, held


def categorical_options(
    options: dict[str, Any], column: AbstractColumn, source: Source, at: int
) -> tuple[dict[str, Any], set[str]]:
    """The arguments of `Categorical` for this column, and which of them are held."""
    values, held = {}, set()
    for name, value in options.items():
        if name not in ("rank", "correlation"):
            source.fail(f"{CATEGORICAL} has no {name!r}. {CATEGORICAL} takes a column, rank, correlation.", at)
        if isinstance(value, Term):
            value = value.value
            held.add(name)
        if name == "rank" and (not isinstance(value, float) or value not in range(1, len(column.levels) + 1)):
            source.fail(f"rank is a whole number from 1 to {len(column.levels)}, the number of categories", at)
        if name == "correlation" and not (isinstance(value, float) and 0 <= value <= 1):
            source.fail("correlation is a number from 0 to 1", at)
        values[name] = int(value) if name == "rank" else value
    if len(values) > 1:
        source.fail(f"{CATEGORICAL} takes rank or correlation, not both", at)
    return values, held


def _converted(
    name: str,
    sort: str,
    value: Any,
    columns: tuple[AbstractColumn, ...],
    variance: float,
    least: int,
    source: Source,
    at: int,
) -> Any:
    if sort == "whole":
        most = _MOST_HARMONICS if name == "harmonics" else _MOST_WHOLE
        if not isinstance(value, float) or value not in range(least, most + 1):
            source.fail(f"{name} is a whole number from {least} to {most}", at)
        return int(value)
    if sort == "activation":
        if not isinstance(value, str) or value.lower() not in _ACTIVATIONS:
            source.fail(f"activation is one of {', '.join(_ACTIVATIONS)}", at)
        return _ACTIVATIONS[value.lower()]()
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(isinstance(number, float) for number in numbers):
        source.fail(f"{name} is a number{'' if sort in ('number', 'variance') else ', or a list of them'}", at)
    if not all(number > 0 or (number == 0 and name in ("offset", "bias_variance")) for number in numbers):
        source.fail(f"{name} must be positive", at)
    if sort in ("number", "variance") and isinstance(value, list):
        source.fail(f"{name} is one number", at)
    if sort == "variance":
        return numbers[0] / variance
    if sort in ("number", "numbers"):
        return np.array(value) if isinstance(value, list) else value
    if isinstance(value, list) and len(value) != len(columns):
        names = ", ".join(column.name for column in columns)
        source.fail(f"{name} has {len(value)} numbers for {len(columns)} columns ({names}): give one, or one for each", at)
    if sort == "vector":
        return np.array(value) if isinstance(value, list) else value
    if not isinstance(value, list):
        _check_one_unit(name, value, columns, source, at)
    scales = np.array([column.scale for column in columns])
    converted = np.array(value) * scales**2 / variance if sort == "slope" else np.array(value) / scales
    # One number is one number, unless standardisation has stretched the columns differently.
    return converted[0] if not isinstance(value, list) and len(set(scales)) == 1 else converted


def _check_one_unit(name: str, value: float, columns: tuple[AbstractColumn, ...], source: Source, at: int) -> None:
    if len({column.unit for column in columns}) > 1:
        units = ", ".join(f"{column.name} in {column.unit or 'its own unit'}" for column in columns)
        one_each = ", ".join(["…"] * len(columns))
        source.fail(
            f"{name}={value:g} is one number for columns in different units ({units}): give one for each, "
            f"{name}=[{one_each}], or choose columns, columns={columns[0].name!r}",
            at,
        )


def _first_period(columns: tuple[AbstractColumn, ...]) -> Any:
    """Where an unwritten period starts: a year of dates counted in years, a day of hours, else a standard deviation."""
    units = {"years": 1.0, "days": 7.0, "hours": 24.0, "seconds": 60.0}
    starts = [units[column.unit] / column.scale if column.unit else 1.0 for column in columns]
    return np.array(starts) if len(columns) > 1 else starts[0]


def _check_thin_plate(options: dict[str, Any], width: int, source: Source, at: int) -> None:
    order = options.get("order", 2.0)
    if isinstance(order, float) and 2 * order <= width:
        source.fail(
            f"thinplate of order {order:g} is for at most {int(2 * order - 1)} columns, not {width}: raise the order", at
        )
