"""`kernax fit`: a table becomes a model in a file."""

from typing import Annotated, Any

import numpy as np
import typer

from kernax.cli import _options as options
from kernax.cli._console import (
    INTERRUPTED,
    check_output,
    note,
    notes,
    print_json,
    print_table,
    say,
    set_precision,
    shows_progress,
)
from kernax.io import save
from kernax.solvers import as_code, result_name, result_text
from kernax.tables import Column, TableFit, fit_table


def fit(
    data: options.Data,
    target: options.Target,
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    kernel: options.Kernel = "matern52",
    select: options.Select = "likelihood",
    noise: options.Noise = None,
    likelihood: options.Likelihood = None,
    solver: options.Solver = "auto",
    restarts: options.Restarts = 0,
    missing: options.Missing = "error",
    date_unit: options.DateUnit = None,
    categories: options.Categories = None,
    max_levels: options.MaxLevels = 50,
    sample: options.Sample = None,
    seed: options.Seed = 0,
    max_steps: options.MaxSteps = 500,
    float32: options.Float32 = False,
    json: options.Json = False,
    no_cache: options.NoCache = False,
    output: Annotated[str, typer.Option("--output", "-o", help="Where the model goes.")] = "model.kx",
) -> None:
    """Fit a model to a table and save it.

    Dates become numbers, text becomes categories, columns are standardised, and predictions come back in the table's units.
    A target of text or booleans is classified.
    """
    check_output(output, [data])
    dtype = set_precision(float32)
    fitted = fit_table(
        data,
        target,
        columns=columns,
        ignore=ignore or (),
        kernel=kernel,
        select=select,
        noise=noise,
        likelihood=likelihood,
        solver=solver,
        restarts=restarts,
        missing=missing,
        date_unit=date_unit,
        categories=categories or (),
        max_levels=max_levels,
        sample=sample,
        seed=seed,
        dtype=dtype,
        max_steps=max_steps,
        progress=shows_progress(json),
    )
    save(output, fitted)
    result = result_name(fitted.fit.result)
    notes(fitted.notes, quiet=json)
    if json:
        print_json(summary(fitted) | {"output": output})
    else:
        print_table("columns", column_rows(fitted))
        say(f"\n{fitted.report()}\n\n{fitted.data.n} rows of {data} → {output}")
        if result not in ("successful", "interrupted"):
            note(result_text(fitted.fit.result))
    if result == "interrupted":
        note(f"interrupted: {output} holds the best model so far.")
        raise typer.Exit(INTERRUPTED)


def column_rows(fitted: Any) -> list[dict[str, Any]]:
    """How each column is read, for a table."""
    return [
        {
            "column": column.name,
            "role": "target" if column is fitted.target else "input",
            "read as": f"{column.unit} since {column.origin}" if column.is_date else "number",
            "mean": column.shown(column.centre),
            "sd": f"{column.scale:.4g}{f' {column.unit}' if column.is_date else ''}",
            "from": column.shown(column.low),
            "to": column.shown(column.high),
        }
        if not column.is_category
        else {
            "column": column.name,
            "role": "target" if column is fitted.target else "input",
            "read as": _categories(column),
        }
        | dict.fromkeys(("mean", "sd", "from", "to"), "–")
        for column in (*fitted.columns, fitted.target)
    ]


def _categories(column: Column) -> str:
    """How many categories there are, and the first of them."""
    shown = ", ".join(column.levels[:_MOST_LEVELS]) + (", …" if len(column.levels) > _MOST_LEVELS else "")
    return f"{len(column.levels)} categories: {shown}"


def summary(fitted: TableFit) -> dict[str, Any]:
    """What there is to know about a fit, for JSON."""
    own, report = fitted.fit, fitted.report().as_dict()
    return {
        "rows": fitted.data.n,
        "target": fitted.target.name,
        "columns": [{key: getattr(c, key) for key in _FIELDS} for c in (*fitted.columns, fitted.target)],
        "kernel": fitted.kernel,
        "selected_by": fitted.selected_by,
        "likelihood": fitted.likelihood,
        "result": result_name(own.result),
        "value": float(own.value),
        "steps": int(own.num_steps),
        "parameters": report["parameters"],
        "advice": report["advice"],
        "noise_sd": _noise_sd(fitted),
        "solver": None if own.solver is None else as_code(own.solver),
        "loo_rmse": report["entries"].get("leave-one-out RMSE"),
        "accuracy": report["entries"].get("cross-validated accuracy"),
        "log_loss": report["entries"].get("cross-validated log loss"),
        "notes": fitted.notes,
    }


def _noise_sd(fitted: TableFit) -> float | None:
    noise = getattr(fitted.fit.model, "noise", None)
    return None if noise is None else float(np.sqrt(float(noise)) * fitted.target.scale)


_FIELDS = ("name", "kind", "unit", "origin", "centre", "scale", "low", "high", "levels")
_MOST_LEVELS = 6
