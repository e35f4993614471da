"""`kernax compare`: learners side by side on one table."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from kernax.cli import _options as options
from kernax.cli._console import NUMERICAL, check_output, note, notes, print_json, print_table, set_precision, shows_progress
from kernax.tables import compare_table, write_table


def compare(
    data: options.Data,
    target: options.Target,
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    kernel: options.Kernel = "matern52",
    folds: Annotated[int, typer.Option("--folds", min=2, help="Folds of the cross-validation.")] = 5,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these, as gp,lasso,svr. (default: all)", show_default=False)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="regression or classification. (default: by the target)", show_default=False),
    ] = None,
    noise: options.Noise = None,
    solver: Annotated[
        str | None,
        typer.Option(
            "--solver",
            help="For gp and krr_… on more than 5,000 rows: auto, cholesky, low_rank, …, as in fit. (default: cholesky)",
            show_default=False,
        ),
    ] = None,
    missing: options.Missing = "error",
    date_unit: options.DateUnit = None,
    categories: options.Categories = None,
    max_levels: options.MaxLevels = 50,
    sample: options.Sample = None,
    seed: options.Seed = 0,
    float32: options.Float32 = False,
    json: options.Json = False,
    no_cache: options.NoCache = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The table as a .csv or .parquet file.", show_default=False)
    ] = None,
) -> None:
    """Cross-validate kernax's learners on a table, with the same folds for all.

    All kernel methods have the kernel of a maximum likelihood fit; krr_… differ in how the ridge is chosen.
    """
    check_output(output, [data], (".csv", ".parquet", ".pq"))
    if task not in (None, "regression", "classification"):
        raise typer.BadParameter(f"--task is regression or classification, got {task!r}.")
    dtype = set_precision(float32)
    with _bar(shows_progress(json)) as tell:
        answer = compare_table(
            data,
            target,
            columns=columns,
            ignore=ignore or (),
            kernel=kernel,
            folds=folds,
            methods=methods,
            task=task,  # pyright: ignore[reportArgumentType]
            noise=noise,
            solver=solver,
            missing=missing,  # pyright: ignore[reportArgumentType]
            date_unit=date_unit,
            categories=categories or (),
            max_levels=max_levels,
            sample=sample,
            seed=seed,
            dtype=dtype,
            tell=tell,
        )
    if output is not None:
        write_table(output, {name: [row[name] for row in answer.rows] for name in answer.rows[0]})
    notes(answer.notes, quiet=json)
    if json:
        print_json(
            {"task": answer.task, "rows": answer.num_rows, "folds": folds, "notes": answer.notes, "methods": answer.rows}
        )
    else:
        print_table(f"{answer.task} of {target}: {answer.num_rows} rows, {folds} folds", answer.rows)
    if all(row["status"] != "ok" for row in answer.rows):
        note("no method gave an answer.")
        raise typer.Exit(NUMERICAL)


@contextlib.contextmanager
def _bar(wanted: bool) -> Iterator[Callable[[str, int, int], None]]:
    if not wanted:
        yield lambda method, done, of: None
        return
    from tqdm import tqdm

    with tqdm(desc="compare", unit="fold") as bar:

        def tell(method: str, done: int, of: int) -> None:
            bar.total = of
            bar.set_postfix_str(method, refresh=False)
            bar.update(done - bar.n)

        yield tell
