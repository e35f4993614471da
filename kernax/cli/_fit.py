"""`kernax fit`: a table becomes a model in a file."""

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
import typer

from kernax.cli import _console as console
from kernax.cli import _options as options
from kernax.io import save
from kernax.solvers import as_code, result_name, result_text
from kernax.tables import TableFit, fit_table
from kernax.tables._report import column_rows


def fit(
    data: options.Data,
    target: options.Target,
    fitting: dict[str, Any],
    likelihood: Annotated[
        Literal["normal", "student-t", "poisson", "negative-binomial", "bernoulli", "softmax"] | None,
        options.option(
            "--likelihood",
            help="Of the target: student-t for outliers, poisson and negative-binomial for counts, bernoulli and softmax "
            "for classes. (default: softmax or bernoulli for text and booleans, normal for numbers)",
        ),
    ] = None,
    *,
    reading: dict[str, Any],
    float32: options.Float32 = False,
    json: options.Json = False,
    output: options.Output = "model.kx",
) -> None:
    """Fit a model to a table and save it.

    Dates become numbers, text becomes categories, columns are standardised, and predictions come back in the table's units.
    A target of text or booleans is classified, and so is one that --categories names.
    """
    console.check_output(output, [data])
    dtype, progress = console.set_precision(float32), console.shows_progress(json)
    fitted = fit_table(data, target, likelihood=likelihood, dtype=dtype, progress=progress, **reading, **fitting)
    save(output, fitted)
    result = result_name(fitted.fit.result)
    console.notes(fitted.notes, quiet=json)
    if json:
        console.print_json(summary(fitted) | {"output": output})
    else:
        console.print_table("columns", column_rows(fitted))
        typer.echo(f"\n{fitted.report()}\n\n{fitted.data.n} rows of {data} → {output}")
        if result not in ("successful", "interrupted"):
            console.note(result_text(fitted.fit.result))
    if result == "interrupted":
        console.note(f"interrupted: {output} holds the best model so far.")
        raise typer.Exit(console.INTERRUPTED)


def summary(fitted: TableFit) -> dict[str, Any]:
    """A fit as data, for JSON."""
    own, report = fitted.fit, fitted.report().as_dict()
    entries, noise = report["entries"], getattr(own.model, "noise", None)
    return {
        "rows": fitted.data.n,
        "target": fitted.target.name,
        "columns": [dataclasses.asdict(column) for column in (*fitted.columns, fitted.target)],
        "kernel": fitted.kernel,
        "selected_by": fitted.selected_by,
        "likelihood": fitted.likelihood,
        "result": result_name(own.result),
        "value": float(own.value),
        "steps": int(own.num_steps),
        "parameters": report["parameters"],
        "advice": report["advice"],
        "noise_sd": None if noise is None else float(np.sqrt(float(noise)) * fitted.target.scale),
        "solver": None if own.solver is None else as_code(own.solver),
        "loo_rmse": entries.get("leave-one-out RMSE"),
        "accuracy": entries.get("cross-validated accuracy"),
        "log_loss": entries.get("cross-validated log loss"),
        "notes": fitted.notes,
    }
