"""A readable account of a model that has seen data, or of a fit."""

from typing import Any

import jax
import numpy as np

from kernax._arrays import is_concrete
from kernax.fitting import Fit, Fits
from kernax.learners import SupportVectors
from kernax.learners._machines import AbstractExpansion
from kernax.model import AbstractModel, Conditioned
from kernax.parameters import parameter_name, parameters
from kernax.selection import log_marginal_likelihood, loo_mse
from kernax.solvers import Result


def report(of: Any) -> str:
    """Lines to print of a `Conditioned`, a machine, a `Fit` or `Fits`: what was asked, how it ended, what to watch.

    For a `Conditioned` it costs a few solves and the inverse's diagonal.
    """
    if any(not is_concrete(leaf) for leaf in jax.tree.leaves(of)):
        raise ValueError("report describes finished numbers: call it outside jit, grad and vmap.")
    if isinstance(of, Fit):
        return _report_fit(of)
    if isinstance(of, Fits):
        return _report_fits(of)
    if isinstance(of, Conditioned):
        return _report_conditioned(of)
    if isinstance(of, AbstractExpansion):
        return _report_machine(of)
    raise TypeError(f"report wants a Conditioned, a machine, a Fit or Fits, got {type(of).__name__}.")


def _report_conditioned(c: Conditioned) -> str:
    lines = [
        ("rows", f"{int(c.data.count)} of {c.data.n}, {c.data.dtype}"),
        ("solver", repr(c.solver)),
        ("result", Result[c.result]),
        ("noise", _values(np.asarray(c.model.noise))),
        ("jitter", f"{float(c.jitter):.3g}" + (" (added to the diagonal beyond the noise)" if c.jitter > 0 else "")),
    ]
    if bool(c.ok):
        scale = float(np.sqrt(np.asarray(loo_mse(c))))
        number = float(c.factor.condition_estimate())
        worn = number * np.finfo(c.data.dtype).eps > 0.01
        lines += [
            (
                "condition number",
                f"about {number:.1e}" + (" (few digits of the answers are right: raise the noise)" if worn else ""),
            ),
            ("log marginal likelihood", f"{float(log_marginal_likelihood(c)):.6g}"),
            ("leave-one-out RMSE", f"{scale:.4g}"),
        ]
    return _table(f"{type(c.model.kernel).__name__} conditioned on data", lines, c.model)


def _report_machine(c: AbstractExpansion) -> str:
    lines = [
        ("rows", f"{int(c.data.count)} of {c.data.n}, {c.data.dtype}"),
        ("result", Result[c.result]),
        ("intercept", f"{float(c.intercept):.6g}" if c.model.intercept else "none"),
    ]
    if isinstance(c, SupportVectors):
        lines += [
            ("support vectors", f"{int(c.num_support)}, of which {int(np.sum(np.asarray(c.at_bound)))} at their bound"),
            ("objective", f"{float(c.objective):.6g}, duality gap {float(c.duality_gap):.2g}"),
            ("KKT residual", f"{float(c.kkt_residual):.2g}"),
        ]
    lines.append(("jitter", f"{float(c.jitter):.3g}"))
    return _table(f"{type(c.model).__name__} trained on data", lines, c.model)


def _report_fit(fit: Fit) -> str:
    starts = np.asarray(fit.start_values)
    lines = [
        ("result", Result[fit.result]),
        ("objective", f"{float(fit.value):.6g} after {int(fit.num_steps)} evaluations"),
        ("gradient", f"{float(fit.gradient_norm):.2g} (largest component, unconstrained)"),
        ("jitter", f"{float(fit.jitter):.3g}"),
    ]
    if len(starts) > 1:
        near = np.sum(starts <= float(fit.value) + 1e-3 * max(1.0, abs(float(fit.value))))
        failed = np.sum(~np.isfinite(starts))
        lines.append(("starts", f"{len(starts)}, of which {near} reached this value and {failed} failed"))
    return _table("fit", lines, fit.model, fit.at_bound)


def _report_fits(fits: Fits) -> str:
    table, usable = fits.table(), np.isfinite(np.asarray(fits.value))
    names, counts = np.unique(fits.result_names, return_counts=True)
    lines = [
        ("datasets", f"{len(fits)}, of {_range(table['rows'])} rows"),
        ("results", ", ".join(f"{count} {name}" for count, name in sorted(zip(counts, names, strict=True), reverse=True))),
        ("evaluations", f"{_range(table['num_steps'])}, {int(table['num_steps'].sum())} in all"),
        ("jitter", f"{np.sum(table['jitter'] > 0)} needed some"),
        ("at a bound", f"{np.sum(table['at_bound'] != '')}"),
    ]
    fitted = list(table)[8:]
    lines += [(name, f"{_quartiles(table[name][usable])} (quartiles)") for name in fitted if usable.any()]
    return _lines("fits", lines)


def _range(values: np.ndarray) -> str:
    return f"{values.min()} to {values.max()}" if len(values) else "none"


def _quartiles(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in np.quantile(values, [0.25, 0.5, 0.75]))


def _table(title: str, lines: list[tuple[str, str]], model: AbstractModel, at_bound: Any = None) -> str:
    bounds = {} if at_bound is None else dict(jax.tree_util.tree_flatten_with_path(at_bound)[0])
    for path, value in parameters(model):
        flagged = path in bounds and np.any(np.asarray(bounds[path]))
        lines.append((parameter_name(path), _values(np.asarray(value)) + ("  (at its bound)" if flagged else "")))
    return _lines(title, lines)


def _lines(title: str, lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in lines)])


def _values(value: np.ndarray) -> str:
    if value.size > 12:
        return f"{value.size} values from {value.min():.4g} to {value.max():.4g}"
    return np.array2string(value, precision=4, separator=", ", max_line_width=10**6)
