"""The options that several commands share."""

from typing import Annotated, Literal

import typer

from kernax.cli._cache import leave_cache

Data = Annotated[str, typer.Argument(help="A CSV or Parquet file; its first line names the columns.", show_default=False)]
Target = Annotated[str, typer.Option("--target", "-t", help="The column to predict.", show_default=False)]
Columns = Annotated[
    str | None,
    typer.Option("--columns", "-c", help="Columns to learn from, as a,b,c. (default: all others)", show_default=False),
]
Ignore = Annotated[
    str | None, typer.Option("--ignore", "--drop", help="Columns to leave out, as a,b,c.", show_default=False)
]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        "-k",
        help="Such as 'rbf + periodic(period=1) * matern32': sums, products, powers and numbers, in the columns' units.",
    ),
]
Select = Annotated[
    Literal["likelihood", "loo", "gcv", "kfold", "loo_density"], typer.Option("--select", help="What to minimise.")
]
Noise = Annotated[
    float | None, typer.Option("--noise", help="The variance of the target's noise, if it is known.", show_default=False)
]
Likelihood = Annotated[
    Literal["normal", "student-t", "poisson", "negative-binomial", "bernoulli", "softmax"] | None,
    typer.Option(
        "--likelihood",
        help="Of the target: student-t for outliers, poisson and negative-binomial for counts, bernoulli and softmax for "
        "classes. (default: by the target)",
        show_default=False,
    ),
]
Solver = Annotated[
    str,
    typer.Option(
        "--solver",
        help="auto (what suits the table), cholesky, eigh, state_space, vecchia, low_rank or cg; with options: "
        "vecchia:neighbours=50.",
    ),
]
Restarts = Annotated[int, typer.Option("--restarts", min=0, help="Random starts beside the first.")]
Missing = Annotated[Literal["error", "drop"], typer.Option("--missing", help="What to do with rows that lack a value.")]
DateUnit = Annotated[
    Literal["years", "days", "hours", "seconds"] | None,
    typer.Option("--date-unit", help="Count dates in these. (default: by their span)", show_default=False),
]
Categories = Annotated[
    str | None,
    typer.Option(
        "--categories",
        help="Columns of numbers to read as categories, as a,b,c. Text always is.",
        show_default=False,
    ),
]
MaxLevels = Annotated[int, typer.Option("--max-levels", min=1, help="The most categories that a column may have.")]
Sample = Annotated[
    int | None, typer.Option("--sample", min=2, help="Learn from so many rows, drawn at random.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of restarts, draws and folds.")]
MaxSteps = Annotated[int, typer.Option("--max-steps", min=1, help="Steps of the optimiser at the most.")]
Float32 = Annotated[bool, typer.Option("--float32", help="Compute in 32 bits instead of 64.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]
NoCache = Annotated[
    bool, typer.Option("--no-cache", callback=leave_cache, help="Keep no compiled programs for the next command.")
]
