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
from kernax.tables._write import ENDINGS as TABLES  # noqa: F401  (the endings of files that tables are written to)

FILE = "A .csv, .parquet or .feather file"


def option(*names: str, help: str, **more: Any) -> Any:
    """An option of which no default is shown, unless its help text says one."""
    return typer.Option(*names, help=help, show_default=False, **more)


Data = Annotated[
    str, typer.Argument(help="A CSV, TSV, Parquet, Arrow or Feather file with named columns.", show_default=False)
]
Model = Annotated[str, typer.Argument(help="A file from `kernax fit` or `kernax fit-many`.", show_default=False)]
Target = Annotated[str, option("--target", "-t", help="The column to predict.")]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        "-k",
        help="Such as 'rbf + periodic(period=1) * matern32': sums, products, powers and numbers, in the columns' units.",
    ),
]
Noise = Annotated[float | None, option("--noise", help="The variance of the target's noise, if it is known.")]
Missing = Annotated[Literal["error", "drop"], typer.Option("--missing", help="What to do with rows that lack a value.")]
Float32 = Annotated[bool, typer.Option("--float32", help="Compute in 32 bits instead of 64.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
NoCache = Annotated[
    bool, typer.Option("--no-cache", callback=leave_cache, help="Do not use the cache of compiled programs.")
]
Level = Annotated[float, typer.Option("--level", help="Probability of the intervals.")]
Output = Annotated[str, typer.Option("--output", "-o", help="Output file.")]
ToTable = Annotated[str | None, option("--output", "-o", help=f"{FILE}. (default: standard output)")]
Table = Annotated[str | None, option("--output", "-o", help=f"{FILE} for the scores.")]

_READING = {
    "columns": Annotated[
        str | None, option("--columns", "-c", help="Columns to learn from, as a,b,c. (default: all others)")
    ],
    "ignore": Annotated[str | None, option("--ignore", "--drop", help="Columns to leave out, as a,b,c.")],
    "missing": Missing,
    "date_unit": Annotated[
        Literal["years", "days", "hours", "seconds"] | None,
        option("--date-unit", help="The unit in which dates are counted. (default: by their span)"),
    ],
    "categories": Annotated[
        str | None,
        option(
            "--categories", help="Columns of numbers to read as categories, as a,b,c. Text columns always are categories."
        ),
    ],
    "max_levels": Annotated[int, typer.Option("--max-levels", min=1, help="Maximum number of categories in a column.")],
    "sample": Annotated[int | None, option("--sample", min=2, help="Use only this many random rows.")],
    "seed": Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed for restarts, sampling and folds.")
    ],
}
_FITTING = {
    "kernel": (Kernel, DEFAULT_KERNEL),
    "select": (
        Annotated[
            Literal["likelihood", "loo", "gcv", "kfold", "loo_density"],
            typer.Option("--select", help="The criterion to minimise."),
        ],
        "likelihood",
    ),
    "noise": (Noise, None),
    "solver": (
        Annotated[
            str,
            typer.Option(
                "--solver",
                help="auto (suits the table), cholesky, eigh, state_space, vecchia, low_rank or cg; with options: "
                "vecchia:neighbours=50.",
            ),
        ],
        "auto",
    ),
    "restarts": (Annotated[int, typer.Option("--restarts", min=0, help="Number of additional random starts.")], 0),
    "max_steps": (Annotated[int, typer.Option("--max-steps", min=1, help="Maximum number of optimiser steps.")], 500),
    "checkpoint": (
        Annotated[
            str | None,
            option("--checkpoint", help="A folder for intermediate results: the same command resumes an interrupted one."),
        ],
        None,
    ),
}
GROUPS: dict[str, dict[str, tuple[Any, Any]]] = {
    "reading": {field.name: (_READING[field.name], field.default) for field in dataclasses.fields(Reading)},
    "fitting": _FITTING,
}
"""Options that a command takes together: the annotation and the default of each."""


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with `--no-cache`, whose parameters `reading` and `fitting` are dicts of options."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = GROUPS.get(name, {name: (parameter.annotation, parameter.default)})
        for own, (kind, default) in group.items():
            shown = None if default == () else default
            parameters.append(inspect.Parameter(own, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=kind))

    parameters.append(inspect.Parameter("no_cache", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=NoCache))

    @functools.wraps(command)
    def inner(no_cache: bool = False, **given: Any) -> Any:
        for group in GROUPS.keys() & inspect.signature(command).parameters.keys():
            kinds = GROUPS[group].items()
            given[group] = {own: default if (value := given.pop(own)) is None else value for own, (_, default) in kinds}
        return command(**given)

    inner.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    inner.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return inner
