"""`kernax predict` and `kernax report`: what a saved model says."""

import os
from typing import Annotated

import typer

from kernax.cli import _console as console
from kernax.cli import _options as options
from kernax.io import FileError, load
from kernax.io._file import whole_file
from kernax.tables import ManyTableFits, TableError, TableFit, read_table
from kernax.tables._table_fit import check_level


def predict(
    model: options.Model,
    data: Annotated[str, typer.Argument(help="A file of a table with the model's columns.", show_default=False)],
    output: options.ToTable = None,
    level: options.Level = 0.95,
    function: Annotated[
        bool, typer.Option("--function", help="Intervals for the function instead of new observations.")
    ] = False,
    only: Annotated[bool, typer.Option("--only", help="Write only the new columns.")] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Prefix for the new columns.")] = "",
    missing: options.Missing = "error",
    json: options.Json = False,
) -> None:
    """Predict the rows of a table: mean, sd, lower and upper in the target's units, or classes and their probabilities."""
    console.check_output(None if output == "-" else output, [data, model], options.TABLES)
    check_level(level)
    console.set_precision(False)
    fitted = _loaded(model)
    table = read_table(data)
    new = {name: f"{prefix}{name}" for name in fitted.prediction_names}
    taken = [name for name in new.values() if name in table.columns]
    if taken and not only:
        raise TableError(
            f"{data}: the column {taken[0]!r} exists already: give --prefix, or --only to write only the new columns."
        )
    answers, kept, notes = fitted.predict_rows(table, level, noisy=not function, missing=missing, model_name=model)
    columns = ({} if only else table.taken(kept).copied()) | {new[name]: values for name, values in answers.items()}
    sentence = f"{len(kept)} predictions of {fitted.target.name}"
    console.deliver(columns, output, {"rows": len(kept), "level": level}, notes, sentence, json)


def report(model: options.Model, output: options.Output = "report.html") -> None:
    """Write one self-contained HTML page about a model, or about many: numbers, pictures and advice."""
    console.check_output(output, [model], (".html", ".htm"))
    console.set_precision(False)
    text = _loaded(model).report().to_html()
    with whole_file(output) as file:
        file.write(text.encode())
    typer.echo(f"{model} → {output}")


def _loaded(path: str) -> TableFit | ManyTableFits:
    """The model in a file. Raises `FileError` that says what else the file is."""
    if os.path.isdir(path):
        raise FileError(f"{path}: this is a folder; give the file of a model.")
    value = load(path)
    if not isinstance(value, TableFit | ManyTableFits):
        raise FileError(f"{path}: holds a {type(value).__name__}, not a model that `kernax fit` or `kernax fit-many` saved.")
    return value
