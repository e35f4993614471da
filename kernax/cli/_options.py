"""The options that several commands share."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from kernax.cli._cache import leave_cache
from kernax.tables._design import Reading
from kernax.tables._table_fit import DEFAULT_KERNEL
from kernax.tables._write import ENDINGS

_FILE = "A .csv, .parquet or .feather file"


def option(*names: str, help: str, **more: Any) -> Any:
    """An option of which no default is shown, unless its help text says one."""
    return typer.Option(*names, help=help, show_default=False, **more)


Data = Annotated[
    str, typer.Argument(help="A CSV, TSV, Parquet, Arrow or Feather file with named columns.", show_default=False)
]
Model = Annotated[str, typer.Argument(help="A file from `kernax fit` or `kernax fit-many`.", show_default=False)]
Target = Annotated[str, option("--target", "-t", help="The column to predict.")]
Columns = Annotated[str | None, option("--columns", "-c", help="Columns to learn from, as a,b,c. (default: all others)")]
Ignore = Annotated[str | None, option("--ignore", "--drop", help="Columns to leave out, as a,b,c.")]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        "-k",
        help="Such as 'rbf + periodic(period=1) * matern32': sums, products, powers and numbers, in the columns' units.",
    ),
]
Select = Annotated[
    Literal["likelihood", "loo", "gcv", "kfold", "loo_density"], typer.Option("--select", help="The criterion to minimise.")
]
Noise = Annotated[float | None, option("--noise", help="The variance of the target's noise, if it is known.")]
Likelihood = Annotated[
    Literal["normal", "student-t", "poisson", "negative-binomial", "bernoulli", "softmax"] | None,
    option(
        "--likelihood",
        help="Of the target: student-t for outliers, poisson and negative-binomial for counts, bernoulli and softmax for "
        "classes. (default: softmax or bernoulli for text and booleans, normal for numbers)",
    ),
]
Solver = Annotated[
    str,
    typer.Option(
        "--solver",
        help="auto (suits the table), cholesky, eigh, state_space, vecchia, low_rank or cg; with options: "
        "vecchia:neighbours=50.",
    ),
]
Restarts = Annotated[int, typer.Option("--restarts", min=0, help="Number of additional random starts.")]
Missing = Annotated[Literal["error", "drop"], typer.Option("--missing", help="What to do with rows that lack a value.")]
DateUnit = Annotated[
    Literal["years", "days", "hours", "seconds"] | None,
    option("--date-unit", help="The unit in which dates are counted. (default: by their span)"),
]
Categories = Annotated[
    str | None,
    option("--categories", help="Columns of numbers to read as categories, as a,b,c. Text columns always are categories."),
]
MaxLevels = Annotated[int, typer.Option("--max-levels", min=1, help="Maximum number of categories in a column.")]
Sample = Annotated[int | None, option("--sample", min=2, help="Use only this many random rows.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed for restarts, sampling and folds.")]
MaxSteps = Annotated[int, typer.Option("--max-steps", min=1, help="Maximum number of optimiser steps.")]
Checkpoint = Annotated[
    str | None,
    option("--checkpoint", help="A folder for intermediate results: the same command resumes an interrupted one."),
]
Float32 = Annotated[bool, typer.Option("--float32", help="Compute in 32 bits instead of 64.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
NoCache = Annotated[
    bool, typer.Option("--no-cache", callback=leave_cache, help="Do not use the cache of compiled programs.")
]
Level = Annotated[float, typer.Option("--level", help="Probability of the intervals.")]
ToTable = Annotated[str | None, option("--output", "-o", help=f"{_FILE}. (default: standard output)")]
Table = Annotated[str | None, option("--output", "-o", help=f"{_FILE} for the scores.")]
TABLES = ENDINGS
"""The endings of files that tables are written to."""

_READING = {
    "columns": Columns,
    "ignore": Ignore,
    "missing": Missing,
    "date_unit": DateUnit,
    "categories": Categories,
    "max_levels": MaxLevels,
    "sample": Sample,
    "seed": Seed,
}
GROUPS: dict[str, dict[str, tuple[Any, Any]]] = {
    "reading": {field.name: (_READING[field.name], field.default) for field in dataclasses.fields(Reading)},
    "fitting": {
        "kernel": (Kernel, DEFAULT_KERNEL),
        "select": (Select, "likelihood"),
        "noise": (Noise, None),
        "solver": (Solver, "auto"),
        "restarts": (Restarts, 0),
        "max_steps": (MaxSteps, 500),
        "checkpoint": (Checkpoint, None),
    },
}
"""Options that a command takes together: the annotation and the default of each."""


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with an option for each member of its parameters `reading` and `fitting`, which it gets as dicts."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in GROUPS:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for name, (kind, default) in GROUPS[parameter.name].items():
            shown = None if default == () else default
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=kind))

    @functools.wraps(command)
    def inner(**given: Any) -> Any:
        for group in GROUPS.keys() & inspect.signature(command).parameters.keys():
            taken = {name: given.pop(name) for name in GROUPS[group]}
            given[group] = {name: GROUPS[group][name][1] if value is None else value for name, value in taken.items()}
        return command(**given)

    inner.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    inner.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return inner
