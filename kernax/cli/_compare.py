"""`kernax compare`: learners side by side on one table."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from kernax.cli import _console as console
from kernax.cli import _options as options
from kernax.tables import compare_table, write_table


def compare(
    data: options.Data,
    target: options.Target,
    kernel: options.Kernel = "matern52",
    folds: Annotated[int, typer.Option("--folds", min=2, help="Number of folds of the cross-validation.")] = 5,
    methods: Annotated[str | None, options.option("--methods", help="Only these, as gp,lasso,svr. (default: all)")] = None,
    task: Annotated[
        Literal["regression", "classification"] | None,
        options.option(
            "--task",
            help="Regression or classification. (default: classification of text and booleans, regression of numbers)",
        ),
    ] = None,
    noise: options.Noise = None,
    solver: Annotated[
        str | None,
        options.option(
            "--solver",
            help="For gp and krr_… on more than 5,000 rows: auto, cholesky, low_rank, …, as in fit. (default: cholesky)",
        ),
    ] = None,
    *,
    reading: dict[str, Any],
    float32: options.Float32 = False,
    json: options.Json = False,
    output: options.Table = None,
) -> None:
    """Cross-validate kernax's learners on a table, with the same folds for all.

    As in `kernax fit`, targets of text and booleans are classified. All kernel methods have the kernel of a maximum
    likelihood fit; krr_… differ in how the ridge is chosen.
    """
    console.check_output(output, [data], options.TABLES)
    chosen: dict[str, Any] = {"kernel": kernel, "folds": folds, "methods": methods, "task": task, "noise": noise}
    dtype = console.set_precision(float32)
    with _growing_table(console.shows_progress(json)) as told:
        answer = compare_table(data, target, solver=solver, dtype=dtype, **told, **chosen, **reading)
    if output is not None:
        write_table(output, {name: [row[name] for row in answer.rows] for name in answer.rows[0]})
    console.notes(answer.notes, quiet=json)
    if json:
        about = {"task": answer.task, "rows": answer.num_rows, "folds": folds}
        console.print_json(about | {"notes": answer.notes, "methods": answer.rows})
    else:
        console.print_table(f"{answer.task} of {target}: {answer.num_rows} rows, {folds} folds", answer.rows)
    if all(row["status"] != "ok" for row in answer.rows):
        console.note("no method gave an answer.")
        raise typer.Exit(console.NUMERICAL)


@contextlib.contextmanager
def _growing_table(wanted: bool) -> Iterator[dict[str, Any]]:
    """Options of `compare_table` for a table on standard error that grows, with a bar for the method that runs."""
    if not wanted:
        yield {}
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    rows: list[dict[str, Any]] = []
    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task, shown = bar.add_task("begin", total=None), lambda: Group(console.as_table("", rows), bar) if rows else bar

    with Live(console=Console(stderr=True), get_renderable=shown, transient=True):

        def tell(method: str, done: int, of: int) -> None:
            if done == 0:
                bar.reset(task, total=of, description=method)
            bar.update(task, completed=done)

        yield {"tell": tell, "finished": rows.append}
