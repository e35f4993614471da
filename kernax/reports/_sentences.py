"""The parts of a model in sentences, with the share of the variance that each explains."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from kernax.model import Conditioned
from kernax.model._checks import check_conditioned
from kernax.posterior import components
from kernax.reports._parameters import Names, names_of
from kernax.reports._phrases import Seen, phrase
from kernax.rows import take

_MOST_ROWS = 500
"""Rows at which the components of a kernel are evaluated."""
_OVERLAP = 1.25
"""If the variances of the components add up to more than this times that of their sum, or less than its inverse, they are
far from independent of each other over the data."""


class Part(NamedTuple):
    """A summand of a kernel, in words, with its share of the variance and its deviation over the data."""

    words: str
    share: float
    spread: float


class Parts(NamedTuple):
    """The summands of a kernel, and what else the variance of the targets is made of."""

    summands: list[Part]
    rest: Part
    """The mean function and the model's trend."""
    left: float
    """The share of what the model leaves: noise, and what it does not explain. NaN if the targets are not known."""
    overlap: float
    """The sum of the parts' own variances, divided by the variance of their sum."""


def describe(c: Any, *, columns: Sequence[str] | None = None, target: str | None = None, scales: Any = None) -> list[str]:
    """The parts of a model in words: what each summand of the kernel is, and how much of the variance it explains.

    The share of a component with the values `g_j` at the rows of the data is `Cov(g_j, y) / Var(y)`. The shares of all
    components, of the mean function and of the residuals `y - f` add up to 100 %. Components that rise and fall together
    have a part of their covariance each, and a component that works against the others can have a negative share. A sentence
    says so if their own variances are far from adding up to that of their sum: the shares then depend on how the model
    divides the function. (The effects of an `OrthogonalAdditive` kernel are uncorrelated over its own distribution of
    inputs; for shares over that, see [`kernax.sensitivity`][].)

    The components are evaluated at up to 500 rows of the data.

    **Arguments:**

    - `c`: a model conditioned on data, with a solver that offers components (`Cholesky`, `Eigh`, `StateSpace`, `CG`).
    - `columns`: names of the columns. A unit in brackets, `"time (years)"`, is used for lengthscales and periods.
    - `target`: the name of the target.
    - `scales`: `(x_scales, y_scale)`, the numbers that columns and target were divided by, so that lengths are in the
      original units.

    **Returns:**

    A list of sentences: the components with the largest share first, then what is left.
    """
    check_conditioned(c)
    names = names_of(c.data, columns, target, scales)
    parts = parts_of(c, names)
    has_targets = np.isfinite(parts.left)
    whole = f"the variance of {names.target}" if has_targets else "the variance of the posterior mean"
    shown = sorted(parts.summands, key=lambda part: -part.share)
    if abs(parts.rest.share) > 5e-3:
        shown.append(parts.rest)
    said = [_sentence(f"{part.words} {_explains(part.share)} {whole}") for part in shown]
    if has_targets:
        said.append(_sentence(f"{_percent(parts.left)} is left: noise, and what the model does not explain"))
    if len(shown) > 1 and not 1 / _OVERLAP <= parts.overlap <= _OVERLAP:
        how = "partly cancel each other" if parts.overlap > 1 else "rise and fall together"
        said.append(
            f"The components {how}: their own variances add up to {_percent(parts.overlap)} of the variance of their sum, "
            "so the shares depend on how the model divides the function between them."
        )
    return said


def parts_of(c: Conditioned, names: Names) -> Parts:
    """The summands of a kernel in words, with their shares of the variance over some rows of the data."""
    counts = np.flatnonzero(np.asarray(c.data.mask))
    rows = counts[:: max(1, -(-len(counts) // _MOST_ROWS))]
    found = components(c, take(c.data.x, rows))
    values = np.asarray(found.mean, float).reshape(len(found.names), len(rows), -1)
    every = np.concatenate([values, np.asarray(found.rest, float).reshape(1, len(rows), -1)])
    every = every - every.mean(axis=1, keepdims=True)
    function = every.sum(axis=0)
    targets = np.asarray(c.data.y, float)[rows].reshape(len(rows), -1)
    has_targets = bool(np.isfinite(targets).all())
    targets = targets - targets.mean(axis=0) if has_targets else function
    variance, of_function = np.mean(targets**2), np.mean(function**2)
    shares = np.mean(every * targets, axis=(1, 2)) / variance if variance > 0 else np.zeros(len(every))
    own = np.mean(every**2, axis=(1, 2))
    spreads = np.sqrt(own) * names.y_scale
    seen = _seen(c, names)
    words = [*(phrase(kernel, seen) for kernel in c.model.kernel.summands()), "the mean function"]
    parts = [Part(text, float(share), float(spread)) for text, share, spread in zip(words, shares, spreads, strict=True)]
    left = float(np.mean((targets - function) * targets) / variance) if has_targets and variance > 0 else float("nan")
    return Parts(parts[:-1], parts[-1], left, float(own.sum() / of_function) if of_function > 0 else 1.0)


def percent_of(share: float) -> str:
    """A share in words, for a line of a report."""
    return f"{_percent(share)} of the variance"


def _seen(c: Conditioned, names: Names) -> Seen:
    x = take(c.data.x)
    if names.columns is None or not isinstance(x, jax.Array):
        return Seen(None, None, names, None)
    known = np.asarray(x, float)[np.asarray(c.data.mask)]
    ranges = np.ptp(known, axis=0) if len(known) else np.zeros(known.shape[1])
    return Seen(list(range(known.shape[1])), None, names, ranges)


def _explains(share: float) -> str:
    return "explains none of" if abs(share) < 1e-9 else f"explains {_percent(share)} of"


def _percent(share: float) -> str:
    if 0 < abs(share) < 0.005:
        return "less than 1 %"
    return f"{100 * share:.0f} %"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."
