"""Reports of everything that has seen data."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.fitting import Fit, Fits
from kernax.fitting._fits import NUM_FACTS
from kernax.kernels._names import kernel_labels
from kernax.learners import SVR, SupportVectors
from kernax.learners._machines import AbstractExpansion
from kernax.model import AbstractModel, Conditioned, Model, condition
from kernax.reports import _advice
from kernax.reports._condition import condition_estimate
from kernax.reports._page import Table
from kernax.reports._parameters import Names, described_parameters, names_of
from kernax.reports._pictures import pictures_of_many, pictures_of_model
from kernax.reports._report import Entry, Parameter, Report
from kernax.reports._scores import scores
from kernax.reports._sentences import parts_of, percent_of
from kernax.selection import log_marginal_likelihood
from kernax.solvers import as_code, is_usable, result_name, result_text

_MOST_COMPONENTS = 12
"""Summands up to which the components of a kernel are described."""
_OF_THE_OBJECTIVE = ("value", "gradient_norm", "jitter")
"""Columns of a table of fits that are in the units of the objective, not in those of a parameter."""
_MOST_PRODUCTS = 10_000
"""Rows up to which the condition number is estimated: that takes dozens of products with the kernel matrix."""


def report(
    of: Any,
    data: Data | None = None,
    *,
    columns: Sequence[str] | None = None,
    target: str | None = None,
    scales: Any = None,
) -> Report:
    """Describe a fit, a conditioned model, a machine, many fits, or a model of a table.

    The report says how the computation ended and lists the parameters with their units, the quality of leave-one-out
    predictions, and advice where something looks wrong. Print it, or leave it at the end of a notebook cell.

    **Arguments:**

    - `of`: a `Fit`, `Fits`, a `Conditioned`, a kernel machine that was conditioned on data, or a result of
      `kx.tables.fit_table` or `kx.tables.fit_table_many`. A `Fit` is conditioned once more on its data with its solver
      (O(n³) by default). The condition number is left out for more than 10,000 rows.
    - `data`: the dataset of a `Fit` that does not hold its own: one of many fits, or one made inside `jit`. Not used for
      anything else.
    - `columns`: names of the input columns, one for each; `x[0]`, `x[1]`, … by default, or `x` for a single
      column and for many fits.
    - `target`: the name of the target; `y` by default.
    - `scales`: if x and y were standardised, `(x_scales, y_scale)`: the numbers they were divided by. Parameters, errors and
      densities are then given in the original units. `None` in place of `x_scales` if only the target was standardised.

    **Returns:**

    A `Report`. Raises `ValueError` inside `jit`, `grad` and `vmap`, and for a batch, and `TypeError` for anything else that
    cannot be described.
    """
    if any(not is_concrete(leaf) for leaf in jax.tree.leaves(of)):
        raise ValueError("report describes finished numbers: call it outside jit, grad and vmap.")
    if np.ndim(getattr(getattr(of, "result", None), "_value", 0)) and not isinstance(of, Fits):
        raise ValueError("report describes one dataset, but this is a batch of them: choose one, or use kx.fit_many's Fits.")
    if isinstance(of, Fits):
        names, table = names_of(None, columns, target, scales), of.table()
        columns_of_parameters = zip(list(table)[NUM_FACTS:], scalars_of(of, names), strict=True)
        converted = {name: table[name] * float(one.value) for name, one in columns_of_parameters}
        return report_of_fits(of, table | converted, names)
    if isinstance(of, Fit):
        data = of.data if data is None else data
        c = None if data is None else condition(of.model, data, of.solver, throw=False)
        names = names_of(data, columns, target, scales)
        return report_of_fit(of, c, names, *_called(columns, target, names))
    if isinstance(of, Conditioned | AbstractExpansion):
        names = names_of(of.data, columns, target, scales)
        return _of_conditioned(of, names, *_called(columns, target, names))
    if hasattr(of, "report"):  # a model of a table knows its own names and units
        return of.report()
    raise TypeError(f"report needs a Conditioned, a machine, a Fit or Fits, got {type(of).__name__}.")


def _called(columns: Sequence[str] | None, target: str | None, names: Names) -> tuple[Any, Any]:
    """What pictures call columns and target: they are drawn in the numbers of the model."""
    if columns is not None and names.x_scales is not None:
        columns = [f"{name} (standardised)" for name in columns]
    if names.y_scale != 1.0 or names.looks_standardised:
        target = f"{target or 'y'} (standardised)"
    return columns, target


def report_of_fit(fit: Fit[Any], c: Any, names: Names, columns: Any = None, target: Any = None) -> Report:
    """A fit, and what its model says of its data; `c` is the model conditioned on them, `None` without data.

    `columns` and `target` are what pictures call them: names, or `kx.tables.Column`.
    """
    starts = np.asarray(fit.start_values)
    scaled = " (of standardised numbers)" if names.scaled else ""
    entries = [
        _result(fit.result),
        Entry("objective", f"{float(fit.value):.6g}{scaled} after {int(fit.num_steps)} evaluations", float(fit.value)),
        Entry(
            "gradient",
            f"{float(fit.gradient_norm):.2g} (largest component, of unconstrained parameters)",
            float(fit.gradient_norm),
        ),
    ]
    if len(starts) > 1:
        near = int(np.sum(starts <= float(fit.value) + 1e-3 * max(1.0, abs(float(fit.value)))))
        failed = int(np.sum(~np.isfinite(starts)))
        entries.append(Entry("starts", f"{len(starts)}, of which {near} reached this value and {failed} failed"))
    parameters = described_parameters(fit.model, names, True)
    bounds = _advice.on_bounds(parameters, len(names.columns or ()))
    advice = [*_on_result(fit.result), *_advice.on_starts(starts, float(fit.value)), *bounds]
    # A model that is conditioned without success has said why in the result of the fit already.
    if c is not None and bool(_has_numbers(c)):
        found, more = _seen(c, names)
        entries, advice = entries + found, advice + more
    else:
        entries.append(Entry("jitter", f"{float(fit.jitter):.3g}", float(fit.jitter)))
    draw = functools.partial(pictures_of_model, c, columns, target, fit=fit)
    title, sentences = f"{_kind(fit.model)}, fitted", tuple(dict.fromkeys(advice))
    return Report(title, tuple(entries), tuple(parameters), sentences, draw=draw)


def _of_conditioned(c: Any, names: Names, columns: Any, target: Any) -> Report:
    found, advice = _seen(c, names) if bool(_has_numbers(c)) else ([], [])
    shown = described_parameters(c.model, names, False)
    advice = [*_on_result(c.result), *advice]
    draw = functools.partial(pictures_of_model, c, columns, target)
    title, entries = f"{_kind(c.model)}, conditioned on data", (_result(c.result), *found)
    return Report(title, entries, tuple(shown), tuple(advice), draw=draw)


def _seen(c: Any, names: Names) -> tuple[list[Entry], list[str]]:
    """What a model that has seen data says: entries and advice."""
    count = int(np.sum(np.asarray(c.data.mask)))
    rows = Entry("rows", f"{count} of {c.data.n}, {c.data.dtype}", count)
    found, advice = _of_model(c, names) if isinstance(c, Conditioned) else _of_machine(c)
    return [rows, *_on_units(names), *found], advice


def _on_units(names: Names) -> list[Entry]:
    """What was standardised, and which units the numbers have."""
    if names.scaled:
        return [Entry("units", f"{_were_standardised(names)}; numbers with a unit in [ ] are converted back")]
    if names.looks_standardised:
        return [Entry("units", "the target has mean 0 and standard deviation 1: numbers are of the standardised target")]
    return []


def _of_model(c: Conditioned, names: Names) -> tuple[list[Entry], list[str]]:
    outputs = int(np.prod(c.data.y.shape[1:]))
    likelihood, jitter = map(float, _likelihood_and_jitter(c))
    evidence = likelihood - int(np.sum(np.asarray(c.data.mask))) * outputs * math.log(names.y_scale)
    scaled = ", of standardised numbers" if names.scaled else ""
    added = f" (added to the diagonal beyond the noise{scaled})" if jitter > 0 else ""
    of_density = f" (density in 1/[{names.target}] per row)" if names.target else ""
    entries = [
        Entry("solver", as_code(c.solver)),
        Entry("jitter", f"{jitter:.3g}{added}", jitter),
    ]
    advice = _advice.on_jitter(jitter)
    if c.data.n <= _MOST_PRODUCTS:
        number = float(condition_estimate(c))
        entries.append(Entry("condition number", f"about {number:.1e}", number))
        advice = [*_advice.on_rounding(c, number), *advice]
    if np.isfinite(evidence):
        entries.append(Entry("log marginal likelihood", f"{evidence:.6g}{of_density}", evidence))
    entries += _components(c, names)
    if not np.isfinite(np.asarray(c.data.y)).all():
        return [*entries, Entry("targets", "left out when it was saved")], advice
    advice = [*_advice.on_columns(c, names), *advice]
    left_out = scores(c)
    if left_out is None:
        return entries, advice
    rmse, density = left_out.rmse * names.y_scale, left_out.log_density - math.log(names.y_scale)
    explained = f"{left_out.explained:.4g}" if np.isfinite(left_out.explained) else "–, because the targets do not vary"
    entries += [
        Entry("leave-one-out RMSE", f"{rmse:.4g} [{names.target}]", rmse),
        Entry("leave-one-out R²", explained, left_out.explained),
        Entry("leave-one-out log density", f"{density:.4g}{of_density}", density),
    ]
    for level, share in left_out.coverage.items():
        entries.append(Entry(f"in {100 * level:.0f} % intervals", f"{100 * share:.1f} % of the rows left out", share))
    return entries, advice + _advice.on_scores(c, left_out, names)


def _were_standardised(names: Names) -> str:
    return f"{names.scaled} {'was' if names.scaled == 'the target' else 'were'} standardised"


@compiled
def _has_numbers(c: Any) -> Any:
    return is_usable(c.result)


@compiled
def _likelihood_and_jitter(c: Conditioned) -> tuple[Any, Any]:
    """By one program: operation after operation, compiling them takes several times as long."""
    return log_marginal_likelihood(c), c.jitter


def _components(c: Conditioned, names: Names) -> list[Entry]:
    """How much each summand of the kernel contributes to the posterior mean, over some rows of the data."""
    number = len(c.model.kernel.summands())
    if not 2 <= number <= _MOST_COMPONENTS or c.data.gaps is not None or c.system.expansion(c.solution) is None:
        return []
    return [
        Entry(
            f"component {i + 1}",
            f"{part.words}: {percent_of(part.share)}, varies by {part.spread:.3g} [{names.target}]",
            part.spread,
        )
        for i, part in enumerate(parts_of(c, names).summands)
    ]


def _of_machine(c: Any) -> tuple[list[Entry], list[str]]:
    entries, advice = [], []
    if getattr(c.model, "intercept", False):
        entries.append(Entry("intercept", f"{float(c.intercept):.6g}", float(c.intercept)))
    if isinstance(c, SupportVectors):
        support, bound = int(c.num_support), int(np.sum(np.asarray(c.at_bound)))
        entries += [
            Entry("support vectors", f"{support}, of which {bound} at their bound", support),
            Entry("training objective", f"{float(c.objective):.6g}", float(c.objective)),
            Entry("duality gap", f"{float(c.duality_gap):.2g}", float(c.duality_gap)),
            Entry("KKT residual", f"{float(c.kkt_residual):.2g}", float(c.kkt_residual)),
        ]
        count = max(int(c.data.count), 1)
        advice = _advice.on_support(support / count, bound / count, isinstance(c.model, SVR))
    entries.append(Entry("jitter", f"{float(c.jitter):.3g}", float(c.jitter)))
    return entries, advice


def report_of_fits(fits: Fits, table: dict[str, np.ndarray], names: Names | None = None) -> Report:
    """Many fits, with the parameters as they stand in `table`; `names` has the units that they are given in."""
    usable = np.isfinite(np.asarray(fits.value))
    names = names_of(None, None, None, None) if names is None else names
    units = _units_of_table(fits, table, names)
    scaled = " (standardised)" if names.scaled else ""
    kinds, counts = np.unique(fits.result_names, return_counts=True)
    ended = sorted(zip(counts.tolist(), kinds, strict=True), reverse=True)
    entries = [
        Entry("datasets", f"{len(fits)}, of {_range(table['rows'])} rows", len(fits)),
        Entry("results", ", ".join(f"{count} {name}" for count, name in ended), {name: count for count, name in ended}),
        Entry("evaluations", f"{_range(table['num_steps'])}, {int(table['num_steps'].sum())} in all"),
        Entry("jitter", f"added in {np.sum(table['jitter'] > 0)} fits", int(np.sum(table["jitter"] > 0))),
        Entry("at a bound", f"{np.sum(table['at_bound'] != '')} fits", int(np.sum(table["at_bound"] != ""))),
    ]
    if names.scaled:
        of_fits = "objective, gradient and jitter are of standardised numbers, parameters are converted back"
        entries.append(Entry("units", f"{_were_standardised(names)}; {of_fits}"))
    if usable.any():
        entries += [_quartiles(name, table[name][usable], units[name]) for name in list(table)[NUM_FACTS:]]
    spreads = {_with_unit(name, units[name]): values[usable] for name, values in list(table.items())[NUM_FACTS:]}
    shown = {
        f"{name}{scaled}" if name in _OF_THE_OBJECTIVE else _with_unit(name, units.get(name, "")): values
        for name, values in table.items()
    }
    every = Table("All fits", shown, can_be_searched=True)
    draw = functools.partial(pictures_of_many, spreads)
    return Report("many fits", tuple(entries), advice=tuple(_advice.on_fits(fits, table)), tables=(every,), draw=draw)


def _result(result: Any) -> Entry:
    return Entry("result", result_name(result))


def _on_result(result: Any) -> list[str]:
    return [] if result_name(result) == "successful" else [result_text(result)]


def _kind(model: AbstractModel) -> str:
    """Such as `Gaussian process: matern52 kernel`, or `SVR: (rbf + linear) kernel`."""
    kind = "Gaussian process" if isinstance(model, Model) else type(model).__name__
    return f"{kind}: {kernel_labels(model.kernel)[()]} kernel"


def _units_of_table(fits: Fits, table: dict[str, np.ndarray], names: Names) -> dict[str, str]:
    """The unit of each column of parameters; no units if the columns are not those of the model."""
    columns = list(table)[NUM_FACTS:]
    units = [one.unit for one in scalars_of(fits, names)]
    return dict(zip(columns, units, strict=True)) if len(units) == len(columns) else dict.fromkeys(columns, "")


def scalars_of(fits: Fits, names: Names) -> list[Parameter]:
    """Each parameter with a column in the table of fits: its unit, and as its value the factor that converts to that."""
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape[1:]) if eqx.is_array(leaf) else leaf, fits.model)
    described = described_parameters(ones, names, False, most_entries=2**31)
    return [one for one in described if not isinstance(one.value, str)]


def _with_unit(name: str, unit: str) -> str:
    return f"{name} [{unit}]" if unit else name


def _range(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    return f"{values.min()} to {values.max()}" if values.min() < values.max() else str(values.min())


def _quartiles(name: str, values: np.ndarray, unit: str) -> Entry:
    numbers = np.quantile(values, [0.25, 0.5, 0.75])
    shown = ", ".join(f"{value:.4g}" for value in numbers)
    return Entry(name, f"{_with_unit(shown, unit)} (quartiles)", numbers.tolist())
