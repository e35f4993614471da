"""Plain advice where something looks wrong. Thresholds are wide: advice that is often wrong is not read."""

from statistics import NormalDist
from typing import Any

import numpy as np

from kernax.means import Zero
from kernax.model import Conditioned
from kernax.reports._changes import along_columns, terms
from kernax.reports._parameters import Names, lengthscales
from kernax.reports._report import Parameter
from kernax.reports._scores import Scores

_SMALL = 0.1
"""A change that is this share of the targets' deviation is next to none."""
_OUTLIER = 4.5
"""Standard deviations beyond which a row is an outlier, up to about a thousand rows; more rows are further by chance."""
_CHANCE = 0.007
"""How many of all rows would be that far by chance."""
_MISSED = 0.02
"""By how much the coverage of intervals may be off: with many rows chance explains less than matters."""
_MOST_NAMED = 3
_TINY = 1e-11
"""A variance so near the floor of variances and noises, 1e-15, that these cannot be small beside it."""


def on_bounds(parameters: list[Parameter], num_columns: int) -> list[str]:
    """What parameters at an end of their range usually mean."""
    return [f"{p.name} is at its {p.bound} bound: {_meaning(p, num_columns)}." for p in parameters if p.bound]


def _meaning(parameter: Parameter, num_columns: int) -> str:
    kind = parameter.name.rsplit(".", 1)[-1].split("[")[0]
    if kind in ("variance", "variances") and parameter.name.startswith("noise."):
        kind = "part of the noise" if ".parts[" in parameter.name else "noise"
    if kind == "lengthscale" and parameter.bound == "upper" and num_columns > 1:
        return (
            "the column may be irrelevant to this part of the kernel (leave it out and compare the leave-one-out scores), "
            "or the range too narrow (kx.with_bijector)"
        )
    if parameter.has_own_range:
        return "widen its range (kx.with_bijector), unless it is meant to end there"
    match kind, parameter.bound:
        case "correlation", "upper":
            return "the categories are almost the same; leave the column out and compare the leave-one-out scores"
        case "correlation", "lower":
            return "different categories are treated as independent; a separate fit of each gives the same"
        case "lengthscale", "lower":
            return "rows are treated as independent; look for a wrong column or start from a longer one (kx.initialise)"
        case "variance", "lower":
            return "this part of the kernel explains nothing; leave it out"
        case "part of the noise", "lower":
            return "the other parts of the noise explain all of it; leave this one out"
        case "noise", "lower":
            return (
                "the fit goes through every target; if the targets are not exact, look for duplicates, give a prior "
                "(kx.with_prior) or a floor (kx.with_bijector)"
            )
        case "noise" | "part of the noise", "upper":
            return "the model treats all variation as noise; check the scale of the targets and the kernel"
    return "widen its range (kx.with_bijector), hold it (kx.freeze), or give it a prior (kx.with_prior)"


def on_columns(c: Conditioned, names: Names) -> list[str]:
    """Columns and parts of the kernel that make next to no difference."""
    if names.columns is None or names.parts is not None:
        return []
    counts = np.asarray(c.data.mask)
    x, targets = np.asarray(c.data.x, float)[counts], np.asarray(c.data.y, float)[counts]
    ranges, said = np.ptp(x, axis=0), []
    constant = [names.columns[i] for i in np.flatnonzero(ranges == 0)] if len(x) > 1 else []
    if constant:
        said.append(f"column {', '.join(constant)} is constant and carries no information; leave it out.")
    said += _on_neighbours(c, names, x)
    spread = np.sqrt(np.mean(np.var(targets, axis=0)))
    if not spread > 0:
        return said
    flat = [term for term in terms(c) if term.change < _SMALL * min(spread, term.size) and term.size > 2 * _SMALL * spread]
    for term in flat:
        said.append(
            f"{term.name} hardly varies over the data: it acts as a constant; give the model a mean (kx.means.Constant) "
            "instead, start from a shorter lengthscale (kx.initialise), or use more restarts."
        )
    changes = along_columns(c) if len(names.columns) > 1 and not flat else None
    if changes is None:
        return said
    for i in np.flatnonzero(ranges > 0):
        if changes[i] < _SMALL * spread:
            said.append(
                f"column {names.columns[i]} may be irrelevant: over its whole range the model changes by "
                f"{changes[i] / spread:.2g} standard deviations of the targets; leave it out and compare the "
                "leave-one-out scores."
            )
    return said


def _on_neighbours(c: Conditioned, names: Names, x: np.ndarray) -> list[str]:
    """A single column whose rows are farther apart than the kernel reaches."""
    if x.shape[1] != 1 or len(np.unique(x)) < 2:
        return []
    gap = np.median(np.diff(np.unique(x[:, 0])))
    return [
        f"{scale.name} is {scale.value / gap:.2g} of the usual distance between neighbouring rows, so they are nearly "
        "independent, and predictions between them fall back to the mean; start from a longer one (kx.initialise)."
        for scale in lengthscales(c.model, names)
        if scale.value < 0.2 * gap
    ]


def on_rounding(c: Conditioned, condition_number: float) -> list[str]:
    """A matrix so ill-conditioned that rounding shows."""
    if condition_number * np.finfo(c.data.dtype).eps <= 0.01:
        return []
    wider = " or compute in float64" if c.data.dtype == np.float32 else ""
    return [f"the condition number, about {condition_number:.0e}, leaves few correct digits: raise the noise{wider}."]


def on_jitter(jitter: float) -> list[str]:
    """A matrix that had to be changed."""
    if not jitter > 0:
        return []
    return [
        f"a jitter of {jitter:.2g} was needed: some rows are nearly the same to this kernel; raise the noise, "
        "remove duplicate rows, or use a rougher kernel (Matern52 for RBF)."
    ]


def on_scores(c: Conditioned, found: Scores, names: Names) -> list[str]:
    """Bad predictions, intervals that are not calibrated, and outliers."""
    said, n = [], len(found.standardised)
    if found.explained < 0.1:
        said.append(
            "leave-one-out predictions are hardly better than the mean of the targets: start from values that suit the "
            "data (kx.initialise), or try other columns or another kernel."
        )
    missed = 0.95 - found.coverage[0.95]
    if missed > _MISSED and missed * n > 1 + 3 * np.sqrt(n * 0.95 * 0.05):
        said.append(
            f"the 95 % intervals cover only {100 * found.coverage[0.95]:.0f} % of the rows left out: they are too narrow; "
            "usual reasons are outliers, or a kernel that is too smooth."
        )
    if found.coverage[0.5] - 0.5 > max(_MISSED, 3 * np.sqrt(0.25 / n) + 1 / n) and missed < 0.02:
        said.append(
            f"the 50 % intervals cover {100 * found.coverage[0.5]:.0f} % of the rows left out: they are too wide; usual "
            "reasons are outliers that raise the noise, and an objective that ignores the variances (kx.loo_mse)."
        )
    far = np.argsort(-np.abs(found.standardised))[:_MOST_NAMED]
    far = far[np.abs(found.standardised[far]) > max(_OUTLIER, NormalDist().inv_cdf(1 - _CHANCE / (2 * n)))]
    if len(far):
        rows = found.rows if names.lines is None else names.lines[found.rows]
        named = ", ".join(f"{rows[i]} ({found.standardised[i]:+.1f})" for i in far)
        said.append(
            f"{'rows' if names.lines is None else 'lines'} far from their leave-one-out prediction, in standard deviations: "
            f"{named}: check them, or use a loss that is robust to outliers (learners.Huber)."
        )
    targets = np.asarray(c.data.y, float)[np.asarray(c.data.mask)]
    level, spread = np.mean(targets), np.std(targets)
    if spread == 0:
        said.append("all targets are equal, so there is nothing to learn.")
    elif spread**2 < _TINY:
        said.append(
            f"the standard deviation of the targets is only {spread:.2g}, and variances have a lower limit: multiply the "
            "targets so that it is about 1."
        )
    if isinstance(c.model.mean, Zero) and c.system.num_free == 0 and abs(level) > 3 * spread > 0:
        said.append(
            f"the targets have mean {level:.4g} and standard deviation {spread:.2g}, but the model expects 0 far from the "
            "data: give it a mean, kx.means.Constant(0.0)."
        )
    return said


def on_support(share: float, at_bound: float, is_regression: bool) -> list[str]:
    """Support vector machines that support nearly everything."""
    if is_regression and share > 0.9:
        return [
            "nearly every row is a support vector: epsilon is smaller than the noise; with a larger one there are fewer "
            "support vectors, often without a loss of accuracy."
        ]
    if not is_regression and at_bound > 0.8:
        return [
            "nearly every row is at its bound: the classes overlap under this kernel, or C is too small; try a larger C."
        ]
    return []


def on_starts(values: np.ndarray, best: float) -> list[str]:
    """Starts that end in different places."""
    near = np.sum(values <= best + 1e-3 * max(1.0, abs(best)))
    if len(values) >= 3 and near == 1:
        return ["only one start reached this value, so there may be a better optimum; use more restarts."]
    return []


def on_fits(fits: Any, table: dict[str, np.ndarray]) -> list[str]:
    """Many fits: what to do about those that failed or hit a bound."""
    said, failed = [], np.flatnonzero(fits.failed)
    if len(failed):
        named = ", ".join(repr(fits.keys[i]) for i in failed[:_MOST_NAMED]) + (", …" if len(failed) > _MOST_NAMED else "")
        said.append(
            f"{len(failed)} fits did not end successful ({named}): see fits[fits.failed].table(), or fit them again with "
            "kx.fitting.refit_many(fits, datasets, restarts=2)."
        )
    hit = np.sum(table["at_bound"] != "")
    if hit > 0.2 * len(fits):
        said.append(
            f"{hit} fits have a parameter at a bound: if the data do not determine it, give it a prior (kx.with_prior)."
        )
    return said
