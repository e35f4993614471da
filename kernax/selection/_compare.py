"""The choices of the ridge by all criteria, in one table."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.model import Conditioned, Model
from kernax.model._checks import check_model_and_data, model_of
from kernax.selection._discrepancy import mean_squared_residual
from kernax.selection._leave_one_out import loo_mse
from kernax.selection._likelihood import log_marginal_likelihood
from kernax.selection._ridge_path import fitted_norm
from kernax.selection._select import SELECTORS, RidgeChoice, choose, spectral
from kernax.selection._smoother import effective_degrees_of_freedom, gcv
from kernax.solvers import result_name, throw_unless


class SelectorTable(Mapping[str, RidgeChoice]):
    """The choices of `kx.compare_selectors`, by the name of the criterion: a mapping. Print it to compare them.

    The attribute `rows` has the numbers of the printed table.

    **Arguments:**

    - `choices`: a dict of [`kernax.selection.RidgeChoice`][].
    - `note`: a remark that is printed below the table.
    """

    def __init__(self, choices: dict[str, RidgeChoice], note: str):
        self.choices = choices
        self.note = note
        self.rows = [_row(choice) for choice in choices.values()]

    def __getitem__(self, by: str) -> RidgeChoice:
        return self.choices[by]

    def __iter__(self) -> Iterator[str]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    def __str__(self):
        head = list(self.rows[0])
        cells = [[_cell(row[name]) for name in head] for row in self.rows]
        widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
        lines = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in [head, *cells]]
        return "\n".join([*lines, self.note])

    __repr__ = __str__


def compare_selectors(
    model: Model | Any,
    data: Data,
    *,
    ridges: Any = None,
    folds: Any = None,
    key: Key[Array, ""] | None = None,
    noise_variance: Any = None,
    verbose: bool = True,
) -> SelectorTable:
    """Choose the ridge by every criterion that kernax has, print a table and return it.

    All criteria use one eigendecomposition. Each row of the table shows the ridge that a criterion chose, and all other
    criteria at that ridge: degrees of freedom, mean squared residual, norm of the fit, leave-one-out error, GCV and
    likelihood. A criterion without an answer shows its status. Not for use inside `jit`.

    **Arguments:**

    - `model`: the kernel and a noise, or a `kx.Fit`; its noise is only used as the default of `noise_variance`.
    - `data`: the rows to choose by.
    - `ridges`: the grid that brackets the optimum, `None` for one that suits the data.
    - `folds`: a number of folds, or a fold number for each row; 10 by default, or one for each row if there are fewer.
    - `key`: random key that assigns rows to folds; without it, folds are contiguous blocks of rows.
    - `noise_variance`: the known noise variance, for the discrepancy principle.
    - `verbose`: whether to print the table.

    **Returns:**

    A table. `table["gcv"]` is the [`kernax.selection.RidgeChoice`][] of that criterion.
    """
    model = model_of(model)
    check_model_and_data(model, data, "compare_selectors")
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((model, data))):
        raise TypeError("compare_selectors cannot be traced, since it prints numbers: use select_ridge inside jit.")
    c = spectral(model, data, "compare_selectors")
    throw_unless(("singular",), c.result, "conditioning")
    variance = model.noise if noise_variance is None else noise_variance
    if folds is None:
        folds = max(2, min(10, int(np.sum(np.asarray(data.mask)))))

    # Without noise there is no variance that the residual could be compared with.
    known = noise_variance is not None or float(model.noise) > 0
    note = "(discrepancy is left out: it needs noise_variance=, because the model's own noise is 0)"
    if known:
        whose = "the model's noise" if noise_variance is None else "as given"
        note = f"(discrepancy looks for a mean residual² of {float(variance):.4g}, {whose})"
    bys = [by for by in SELECTORS if by != "discrepancy" or known]
    choices = choose(
        c, *bys, ridges=ridges, folds=folds, key=key, rule="best_mean_score", noise_variance=variance, throw=False
    )
    table = SelectorTable({choice.by: choice for choice in choices}, note)
    if verbose:
        print(table)
    return table


@compiled
def _measures(c: Conditioned) -> list[Array]:
    norm = (fitted_norm(c) ** 2).sum() ** 0.5
    return [effective_degrees_of_freedom(c), mean_squared_residual(c), norm, loo_mse(c), gcv(c), log_marginal_likelihood(c)]


def _row(choice: RidgeChoice) -> dict[str, Any]:
    names = ("dof", "mean residual²", "norm", "loo", "gcv", "log likelihood")
    measures = map(float, _measures(choice.conditioned))
    numbers = dict(zip(names, measures, strict=True))
    return {"by": choice.by, "ridge": float(choice.ridge), **numbers, "status": result_name(choice.result)}


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
