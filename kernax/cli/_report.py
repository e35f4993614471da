"""`kernax report`: a model as one page."""

from typing import Annotated

import typer

from kernax.cli import _options as options
from kernax.cli._console import check_output, say, set_precision
from kernax.cli._predict import load_model
from kernax.io._file import whole_file


def report(
    model: options.Model,
    output: Annotated[str, typer.Option("--output", "-o", help="Output file.")] = "report.html",
    no_cache: options.NoCache = False,
) -> None:
    """Write one self-contained HTML page about a model, or about many: numbers, pictures and advice."""
    check_output(output, [model], (".html", ".htm"))
    set_precision(False)
    text = load_model(model).report().to_html()
    with whole_file(output) as file:
        file.write(text.encode())
    say(f"{model} → {output}")
