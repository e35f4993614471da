"""What a search for a kernel gives back."""

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.data import Data
from kernax.fitting import Fit, predict_many
from kernax.model import Model, condition
from kernax.posterior import Prediction
from kernax.reports import describe
from kernax.solvers import FailedError

_SHOWN = 10
"""Rows of a table that are printed."""


class Tried(NamedTuple):
    """One structure that was fitted."""

    expression: str
    """Such as `linear + rbf * periodic`."""
    score: float
    """Smaller is better."""
    log_likelihood: float
    """`log p(y)` of the fit."""
    num_parameters: int
    """How many parameters were fitted."""
    model: Model
    """The fitted model."""
    result: str
    """How the fit ended."""
    seconds: float
    """The time of this structure: its share, by steps, of the time of the fits computed together. The first fits include
    compilation."""


@dataclasses.dataclass(frozen=True, repr=False)
class KernelSearch:
    """The result of a kernel search: the structures that were tried, and the best fits.

    `print` shows a table, and the best structure in words, with a sentence for each of its summands.
    """

    by: str
    """The criterion: `"bic"` or `"loo"`."""
    tried: tuple[Tried, ...]
    """All structures that could be fitted, the best first."""
    fits: tuple[Fit[Model], ...]
    """The fits that are kept, the best first."""
    weights: Float[np.ndarray, " kept"]
    """Their weights in `predict`."""
    ended: str
    """Why the search ended: `"no better"` (all changes of the best structures were tried), or `"interrupted"` by Ctrl-C."""
    data: Data
    """The dataset."""
    lanes: tuple[Model, ...] = dataclasses.field(default=(), repr=False)
    """The kept models in one form, so that one compiled program serves all."""

    @property
    def best(self) -> Fit[Model]:
        """The fit with the best score."""
        return self.fits[0]

    def describe(self, *, columns: Sequence[str] | None = None, target: str | None = None) -> list[str]:
        """The best model in words, with a sentence for each summand of its kernel: see [`kernax.reports.describe`][].

        **Arguments:**

        - `columns`: names of the columns. A unit in brackets, `"time (years)"`, is used for lengthscales and periods.
        - `target`: the name of the target.

        **Returns:**

        A list of sentences. The model is conditioned on the data for them, O(n³).
        """
        return describe(condition(self.best.model, self.data), columns=columns, target=target)

    @functools.cached_property
    def _in_words(self) -> list[str]:
        """The sentences that `print` shows; the model itself if it cannot be described, such as one that failed."""
        try:
            return self.describe()
        except (FailedError, ValueError, TypeError):
            return [repr(self.best.model)]

    def predict(self, x: Any, *, noisy: bool = False) -> Prediction:
        """Mean and variance of the mixture of the kept models, each conditioned on the data.

        The variance is that of the mixture, so it also includes the differences between the models.

        **Arguments:**

        - `x`: new inputs, `(m, d)`.
        - `noisy`: predict observations, not the function.

        **Returns:**

        A `Prediction`, with the `result` of the best model. The variance has the shape of the mean.
        """
        own = (self.data.x, self.data.y, self.data.mask)
        parts = predict_many(list(self.lanes), [own] * len(self.lanes), [x] * len(self.lanes), noisy=noisy)
        means, variances = jnp.stack([p.mean for p in parts]), jnp.stack([p.variance for p in parts])
        mean = _weighted(self.weights, means)
        spread = _weighted(self.weights, (means - mean) ** 2)
        variance = _weighted(self.weights, variances)
        variance = variance[:, None] + spread if spread.ndim > variance.ndim else variance + spread
        return Prediction(mean, variance, jnp.sum(jnp.stack([p.num_clamped for p in parts])), parts[0].result)

    def table(self) -> dict[str, list[Any]]:
        """A dict of columns with one entry for each structure, for example for `pandas.DataFrame(search.table())`."""
        best = self.tried[0].score
        return {
            "expression": [one.expression for one in self.tried],
            self.by: [one.score for one in self.tried],
            "difference": [one.score - best for one in self.tried],
            "log_likelihood": [one.log_likelihood for one in self.tried],
            "num_parameters": [one.num_parameters for one in self.tried],
            "weight": [*self.weights.tolist(), *[0.0] * (len(self.tried) - len(self.weights))],
            "kernel": [repr(one.model.kernel) for one in self.tried],
            "noise": [float(one.model.noise) for one in self.tried],
            "result": [one.result for one in self.tried],
            "seconds": [one.seconds for one in self.tried],
        }

    def __repr__(self):
        columns = self.table()
        del columns["kernel"], columns["noise"]
        columns["weight"] = [f"{weight:.3f}" for weight in columns["weight"]]
        head = f"{len(self.tried)} structures by {self.by.upper()} (ended: {self.ended})"
        sentences = "\n".join(f"  {sentence}" for sentence in self._in_words)
        return f"{head}\n{_lines(columns)}\nbest: {self.tried[0].expression}\n{sentences}"


class KernelSearches(Mapping[Hashable, KernelSearch]):
    """The kernel searches of many datasets, by name, or by number if they have no names. `print` shows the best of each."""

    def __init__(self, searches: dict[Hashable, KernelSearch], failed: dict[Hashable, str]):
        self.searches = searches
        self.failed = failed
        """The datasets for which no structure could be fitted, each with its status."""

    def __getitem__(self, key: Hashable) -> KernelSearch:
        if key in self.failed:
            raise KeyError(f"no structure could be fitted to {key!r}: {self.failed[key]}.")
        return self.searches[key]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.searches)

    def __len__(self) -> int:
        return len(self.searches)

    def table(self) -> dict[str, list[Any]]:
        """Columns with one entry for each dataset: its best structure and how clearly it is the best."""
        return {
            "dataset": list(self.searches),
            "expression": [one.tried[0].expression for one in self.searches.values()],
            "score": [one.tried[0].score for one in self.searches.values()],
            "weight": [float(one.weights[0]) for one in self.searches.values()],
            "structures": [len(one.tried) for one in self.searches.values()],
            "ended": [one.ended for one in self.searches.values()],
        }

    def __repr__(self):
        failed = f", {len(self.failed)} failed: see .failed" if self.failed else ""
        columns = self.table()
        columns["weight"] = [f"{weight:.3f}" for weight in columns["weight"]]
        return f"{len(self)} datasets{failed}\n{_lines(columns)}"


def weights_of(scores: Float[np.ndarray, " kept"], by: str) -> Float[np.ndarray, " kept"]:
    """Weights in proportion to `exp(-BIC/2)`, which approximates p(y), or to the leave-one-out density."""
    scale = 0.5 if by == "bic" else 1.0
    raw = np.exp(-scale * (scores - scores.min()))
    return raw / raw.sum()


def _weighted(weights: np.ndarray, values: Array) -> Array:
    return jnp.tensordot(jnp.asarray(weights, values.dtype), values, axes=1)


def _lines(columns: dict[str, list[Any]]) -> str:
    """The first rows of a table as text."""
    number = len(next(iter(columns.values())))
    more = f"\nand {number - _SHOWN} more: see .table()" if number > _SHOWN else ""
    cells = [[name.replace("_", " "), *map(_cell, values[:_SHOWN])] for name, values in columns.items()]
    widths = [max(map(len, column)) for column in cells]
    is_text = [name in ("expression", "dataset", "result", "ended") for name in columns]
    rows = zip(*cells, strict=True)
    return (
        "\n".join(
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, is_text, strict=True)
            ).rstrip()
            for row in rows
        )
        + more
    )


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
