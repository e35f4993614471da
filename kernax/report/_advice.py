"""Plain advice where something looks wrong. Thresholds are wide: advice that is often wrong is not read."""

from typing import Any

import numpy as np

from kernax.means import Zero
from kernax.model import Conditioned
from kernax.report._parameters import Lengthscale, Names, lengthscales
from kernax.report._report import Parameter
from kernax.report._scores import Scores

_FAR = 10.0
"""A lengthscale this many times the range of its column: along it, the function is as good as a straight line."""
_OUTLIER = 4.5
_MOST_NAMED = 3


def on_bounds(parameters: list[Parameter]) -> list[str]:
    """What parameters at an end of their range usually mean."""
    return [f"{p.name} is at its {p.bound} bound: {_meaning(p)}." for p in parameters if p.bound]


def _meaning(parameter: Parameter) -> str:
    kind = parameter.name.rsplit(".", 1)[-1].split("[")[0]
    match kind, parameter.bound:
        case "lengthscale", "upper":
            return "the column may be irrelevant; leave it out and compare the leave-one-out scores"
        case "lengthscale", "lower":
            return "rows no longer inform each other; look for a wrong column or start from a longer one (kx.initialise)"
        case "variance", "lower":
            return "this part of the kernel explains nothing; leave it out"
        case "noise", "lower":
            return (
                "the fit goes through every row; if the targets are not exact, look for duplicates, give a prior "
                "(kx.with_prior) or a floor (kx.with_bijector)"
            )
        case "noise", "upper":
            return "all is taken for noise; look at the scale of the targets and at the kernel"
    return "widen its range (kx.with_bijector), hold it (kx.freeze), or give it a prior (kx.with_prior)"


def on_lengthscales(c: Conditioned, names: Names) -> list[str]:
    """Lengthscales that do not fit the spread of their columns."""
    if names.columns is None:
        return []
    x = np.asarray(c.data.x, float)[np.asarray(c.data.mask)]
    ranges, said = np.ptp(x, axis=0), []
    constant = [names.columns[i] for i in np.flatnonzero(ranges == 0)] if len(x) > 1 else []
    if constant:
        said.append(f"column {', '.join(constant)} is constant: it has nothing to tell; leave it out.")
    parts: dict[str, list[tuple[Lengthscale, float]]] = {}
    for scale in lengthscales(c.model, names):
        if scale.column is not None and ranges[scale.column] > 0:
            kernel = scale.name.rpartition("lengthscale")[0].rstrip(".")
            parts.setdefault(kernel, []).append((scale, scale.value / ranges[scale.column]))
    for kernel, of_columns in parts.items():
        far = [(scale, times) for scale, times in of_columns if times > _FAR]
        if len(far) == len(of_columns):
            said.append(
                f"{kernel} hardly varies over the data (its lengthscales are more than {_FAR:.0f} times the ranges of its "
                "columns): it stands for a constant; give the model a mean (kx.means.Constant) instead, or more restarts."
            )
            continue
        for scale, times in far:
            said.append(
                f"{scale.name} is {times:.0f} times the range of its column: the column may be irrelevant; leave it out and "
                "compare the leave-one-out scores."
            )
    if len(names.columns) == 1 and len(x) > 1 and ranges[0] > 0:
        gap = np.median(np.diff(np.unique(x[:, 0])))
        said += [
            f"{scale.name} is {scale.value / gap:.2g} of the usual distance between neighbouring rows: they hardly inform "
            "each other, and predictions between them fall back to the mean; start from a longer one (kx.initialise)."
            for scale in lengthscales(c.model, names)
            if scale.value < 0.2 * gap
        ]
    return said


def on_numbers(c: Conditioned, condition_number: float) -> list[str]:
    """Rounding and jitter."""
    said, eps = [], np.finfo(c.data.dtype).eps
    if condition_number * eps > 0.01:
        wider = " or compute in float64" if c.data.dtype == np.float32 else ""
        said.append(
            f"the condition number, about {condition_number:.0e}, leaves few digits of the answers right: raise the noise"
            f"{wider}."
        )
    if c.jitter > 0:
        said.append(
            f"a jitter of {float(c.jitter):.2g} was needed: rows nearly repeat each other for this kernel; raise the noise, "
            "take out duplicates, or use a rougher kernel (Matern52 for RBF)."
        )
    return said


def on_scores(c: Conditioned, found: Scores) -> list[str]:
    """Bad predictions, intervals that do not hold what they promise, and outliers."""
    said, n = [], len(found.standardised)
    if found.explained < 0.1:
        said.append(
            "left out, rows are predicted hardly better than by the mean of the targets: try other columns, another kernel, "
            "or more restarts."
        )
    missed = 0.95 - found.coverage[0.95]
    if missed * n > 1 + 3 * np.sqrt(n * 0.95 * 0.05):
        said.append(
            f"the 95 % intervals cover only {100 * found.coverage[0.95]:.0f} % of the rows left out: they are too narrow; "
            "outliers, or a kernel that is too smooth or too sure, are usual reasons."
        )
    if found.coverage[0.5] - 0.5 > 3 * np.sqrt(0.25 / n) + 1 / n and missed < 0.02:
        said.append(
            f"the 50 % intervals cover {100 * found.coverage[0.5]:.0f} % of the rows left out: they are too wide; outliers "
            "that raise the noise are a usual reason, and so is an objective that does not judge the variances (kx.loo_mse)."
        )
    far = np.argsort(-np.abs(found.standardised))[:_MOST_NAMED]
    far = far[np.abs(found.standardised[far]) > _OUTLIER]
    if len(far):
        named = ", ".join(f"{found.rows[i]} ({found.standardised[i]:+.1f})" for i in far)
        said.append(
            f"rows far from what the others say, in standard deviations: {named}: look at them, or use a loss that forgives "
            "outliers (learners.Huber)."
        )
    targets = np.asarray(c.data.y, float)[np.asarray(c.data.mask)]
    level, spread = np.mean(targets), np.std(targets)
    if isinstance(c.model.mean, Zero) and not c.model.kernel.is_conditional and abs(level) > 3 * spread > 0:
        said.append(
            f"the targets are {level:.4g} on average and vary by {spread:.2g}, but the model expects 0 far from the data: "
            "give it a mean, kx.means.Constant(0.0)."
        )
    return said


def on_support(share: float, at_bound: float, is_regression: bool) -> list[str]:
    """Support vector machines that support nearly everything."""
    if is_regression and share > 0.9:
        return [
            "nearly every row is a support vector: epsilon is below the noise; a larger one is sparser and often no worse."
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
        return ["only one start reached this value: there may be a better one still; add restarts."]
    return []


def on_fits(fits: Any, table: dict[str, np.ndarray]) -> list[str]:
    """Many fits: what to do about those that failed or hit a bound."""
    said, failed = [], np.flatnonzero(fits.failed)
    if len(failed):
        named = ", ".join(repr(fits.keys[i]) for i in failed[:_MOST_NAMED]) + (", …" if len(failed) > _MOST_NAMED else "")
        said.append(
            f"{len(failed)} did not end successful ({named}): look at fits[fits.failed].table(), or try them again with "
            "kx.refit_many(fits, datasets, restarts=2)."
        )
    hit = np.sum(table["at_bound"] != "")
    if hit > 0.2 * len(fits):
        said.append(
            f"{hit} ended at a bound: a prior (kx.with_prior) keeps parameters that the data do not determine in range."
        )
    return said
