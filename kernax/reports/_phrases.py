"""A kernel in a few words: "a smooth trend with a time scale of 12 years"."""

import re
from typing import Any, NamedTuple

import numpy as np

from kernax import kernels
from kernax.reports._parameters import Names

_TREND = 0.25
"""A lengthscale of at least this share of a column's range makes a trend."""
_MOST_NAMED = 4
_TIMES = ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
_WITH_UNIT = re.compile(r"(.+) \((.+)\)")
_WAVES = (kernels.Periodic, kernels.Cosine, kernels.SHO)
_LABELS = (kernels.Categorical, kernels.Coregion, kernels.Hamming)


class Seen(NamedTuple):
    """What a kernel sees of a row."""

    columns: list[int] | None
    """Columns of the data; `None` if it sees something else."""
    part: str | None
    """The part of a structure that it sees."""
    names: Names
    ranges: np.ndarray | None
    """The range of each column of the data, in the model's units."""

    def only(self, *places: int) -> "Seen":
        """The same, but fewer columns."""
        return self._replace(columns=None if self.columns is None else [self.columns[k] for k in places])


def phrase(kernel: Any, seen: Seen) -> str:
    """What functions of a kernel look like, in a few words."""
    match kernel:
        case kernels.Scale() | kernels.OfFunctionals() | kernels.RandomFeatures() | kernels.ZeroMean():
            return phrase(kernel.kernel, seen)
        case kernels.Select():
            return phrase(kernel.kernel, _selected(kernel, seen))
        case kernels.Product():
            return _product(kernel, seen)
        case kernels.Sum():
            return ", plus ".join(phrase(part, seen) for part in kernel.kernels)
        case kernels.Constant():
            return "a constant level"
        case kernels.White():
            return "white noise"
        case kernels.Linear():
            if _width(seen) == 1:
                return f"a straight line{_of(seen).replace(' of ', ' along ')}"
            return f"a linear function{_of(seen)}"
        case kernels.Polynomial():
            return f"a polynomial of degree {kernel.degree}{_of(seen)}"
        case kernels.Periodic():
            return f"a pattern{_of(seen)} that repeats every {_lengths(kernel.period, seen)}"
        case kernels.Cosine():
            return f"a sine wave{_of(seen)} with a period of {_lengths(kernel.period, seen)}"
        case kernels.SHO():
            return f"a damped oscillation{_of(seen)} with a period of {_lengths(kernel.period, seen)}"
        case kernels.CubicSpline():
            return f"a smooth curve{_of(seen)} (a cubic spline)"
        case kernels.ThinPlate():
            return f"a smooth surface{_of(seen)} (a thin-plate spline)"
        case kernels.AbstractStationary():
            return f"a {_smoothness(kernel)} {_noun(kernel, seen)}{_of(seen)} with {_scales(kernel, seen)}"
        case kernels.Gibbs():
            return f"a smooth variation{_of(seen)} whose lengthscale differs from place to place"
        case kernels.ChangePoint():
            at = _lengths(kernel.location, seen.only(kernel.column)) if seen.names.x_scales is None else "a point"
            return f"{phrase(kernel.before, seen)}, which becomes at {at} {phrase(kernel.after, seen)}"
        case kernels.SpectralMixture():
            return f"a mixture of waves{_of(seen)}"
        case kernels.Additive():
            known = " and ".join("single columns" if q == 1 else f"{q} columns" for q in kernel.orders)
            return f"a sum of {'effects' if kernel.orders == (1,) else 'interactions'} of {known}"
        case kernels.OrthogonalAdditive():
            return _effect(kernel, seen)
        case kernels.Categorical() | kernels.Coregion():
            return f"a level for each {_labels(kernel)}"
        case kernels.Hamming():
            return f"a level for each combination of categories{_of(seen)}"
        case kernels.Graph():
            return f"a variation over the nodes of a graph{_of(seen)}"
        case kernels.AbstractNetwork() | kernels.ArcCosine():
            return f"a function of an infinitely wide network{_of(seen)}"
        case kernels.Warp():
            is_sphere = isinstance(kernel.transform, kernels.LatitudeLongitude)
            return "a variation over the sphere" if is_sphere else "a variation of transformed inputs"
        case kernels.FeatureMap():
            return "a combination of given features"
    return f"a component with the kernel {type(kernel).__name__}"


def _product(kernel: Any, seen: Seen) -> str:
    """The factor that says most of the shape, and what the others do to it."""
    factors = [_unwrapped(part, seen) for part in kernel.kernels]
    factors.sort(key=lambda factor: _rank(factor[0]))
    (head, of_head), others = factors[0], factors[1:]
    words = phrase(head, of_head)
    for other, of_other in others:
        if isinstance(other, kernels.Coregion):
            words += ", shared between the tasks"
        elif isinstance(other, _LABELS):
            words += f", different for each {_labels(other)}"
        elif isinstance(head, _WAVES) and isinstance(other, kernels.AbstractStationary):
            along = "" if of_other.columns == of_head.columns else _of(of_other)
            words += f" and changes over {_scales(other, of_other)}{along}"
        elif isinstance(other, kernels.Linear) and _width(of_other) == 1:
            words += f", whose size grows{_of(of_other).replace(' of ', ' with ')}"
        elif not isinstance(other, kernels.Constant):
            words += f", times {phrase(other, of_other)}"
    return words


def _unwrapped(kernel: Any, seen: Seen) -> tuple[Any, Seen]:
    while isinstance(kernel, kernels.Scale | kernels.Select):
        seen = _selected(kernel, seen) if isinstance(kernel, kernels.Select) else seen
        kernel = kernel.kernel
    return kernel, seen


def _rank(kernel: Any) -> int:
    """The smaller, the more a factor says of the shape of a product."""
    kinds = {0: _WAVES, 1: kernels.AbstractStationary, 3: kernels.Linear, 4: _LABELS, 5: kernels.Constant}
    return next((rank for rank, kind in kinds.items() if isinstance(kernel, kind)), 2)


def _selected(kernel: Any, seen: Seen) -> Seen:
    if kernel.columns is not None:
        return seen.only(*kernel.columns)
    return seen._replace(columns=None, part=kernel.key if kernel.axis is None else f"axis {kernel.axis}")


def _effect(kernel: Any, seen: Seen) -> str:
    if kernel.subset is None:
        return f"a sum of effects of columns and their interactions up to order {kernel.order}"
    if not kernel.subset:
        return "a constant level"
    if len(kernel.subset) > 1:
        return f"the interaction{_of(seen.only(*kernel.subset))}"
    alone = seen.only(*kernel.subset)
    inner = kernel.kernels[kernel.subset[0]].kernel.kernel
    scale = f" (with {_scales(inner, alone)})" if isinstance(inner, kernels.AbstractStationary) else ""
    return f"the effect{_of(alone) or ' of the column'} alone{scale}"


def _labels(kernel: Any) -> str:
    """What a kernel of labels has a level for."""
    if isinstance(kernel, kernels.Coregion):
        return "task"
    key = getattr(kernel, "key", None)
    return "category" if key is None else f"category of {key}"


def _smoothness(kernel: Any) -> str:
    match kernel:
        case kernels.RBF() | kernels.RationalQuadratic():
            return "smooth"
        case kernels.Matern12():
            return "rough"
        case kernels.Matern32():
            return "slightly rough"
        case kernels.Matern52():
            return "fairly smooth"
    if isinstance(kernel, kernels.Matern):
        return "rough" if kernel.nu <= 1 else "slightly rough" if kernel.nu <= 2 else "fairly smooth"
    return "continuous"


def _noun(kernel: Any, seen: Seen) -> str:
    if _width(seen) != 1 or seen.ranges is None or seen.columns is None:
        return "variation"
    return "trend" if np.max(np.asarray(kernel.lengthscale)) >= _TREND * seen.ranges[seen.columns[0]] else "variation"


def _scales(kernel: Any, seen: Seen) -> str:
    """The lengthscales in words."""
    several = np.ndim(kernel.lengthscale) == 1 and np.size(kernel.lengthscale) > 1
    unit = _name_and_unit(seen, 0)[1] if _width(seen) == 1 else ""
    kind = "a time scale" if unit in _TIMES else "a lengthscale"
    many = " on many scales around it" if isinstance(kernel, kernels.RationalQuadratic) else ""
    return f"{'lengthscales' if several else kind} of {_lengths(kernel.lengthscale, seen)}{many}"


def _lengths(value: Any, seen: Seen) -> str:
    """One length, or one for each column, in the units of the columns."""
    values = np.asarray(value, float)
    if values.size == 1:
        return _length(float(values.ravel()[0]), seen, 0 if _width(seen) == 1 else None)
    shown = [f"{_length(float(entry), seen, k)}{_along(seen, k)}" for k, entry in enumerate(values)]
    if len(shown) <= _MOST_NAMED:
        return _joined(shown)
    order = np.argsort([_in_units(float(entry), seen, k)[0] for k, entry in enumerate(values)])
    return f"{shown[order[0]]} to {shown[order[-1]]}"


def _length(value: float, seen: Seen, k: int | None) -> str:
    value, is_known = _in_units(value, seen, k)
    if not is_known:
        return f"{value:.3g} standardised units"
    unit = "" if k is None else _name_and_unit(seen, k)[1]
    shown = f"{value:.3g}"
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}".rstrip()


def _in_units(value: float, seen: Seen, k: int | None) -> tuple[float, bool]:
    """A length in the column's own units, if that can be told."""
    scales = seen.names.x_scales
    if scales is None:
        return value, True
    if seen.columns is None:
        return value, False
    if k is None:
        own = scales[seen.columns]
        return (value * float(own[0]), True) if np.all(own == own[0]) else (value, False)
    return value * float(scales[seen.columns[k]]), True


def _name_and_unit(seen: Seen, k: int) -> tuple[str, str]:
    """A column named `time (years)` has the name "time" and the unit "years"."""
    if seen.columns is None or seen.names.columns is None:
        return "", ""
    name = seen.names.columns[seen.columns[k]]
    found = _WITH_UNIT.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def _along(seen: Seen, k: int) -> str:
    name = _name_and_unit(seen, k)[0]
    return f" ({name})" if name else ""


def _of(seen: Seen) -> str:
    """Which part of the row it is a function of; nothing if that is clear."""
    if seen.part is not None:
        return f" of {seen.part}"
    if seen.columns is None or seen.names.columns is None or len(seen.names.columns) == 1:
        return ""
    if len(seen.columns) > _MOST_NAMED:
        which = "all " if len(seen.columns) == len(seen.names.columns) else ""
        return f" of {which}{len(seen.columns)} columns"
    return f" of {_joined([_name_and_unit(seen, k)[0] for k in range(len(seen.columns))])}"


def _width(seen: Seen) -> int:
    return 0 if seen.columns is None else len(seen.columns)


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
