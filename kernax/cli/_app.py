"""The commands of `kernax`."""

import gc
import os
import sys
from typing import Annotated

import typer

from kernax.cli import _compare, _fit, _forecast, _many, _saved
from kernax.cli import _options as options
from kernax.cli._cache import use_cache
from kernax.cli._console import INTERRUPTED, check_output, guarded

app = typer.Typer(
    name="kernax",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Run the command that the process was called with."""
    use_cache()
    gc.freeze()  # what was imported stays until the end: the collector need not look at it again
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # JAX may still be compiling in threads of its own, and an interpreter taken down around them may crash.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def _version(wanted: bool) -> None:
    if wanted:
        from kernax import __version__

        typer.echo(f"kernax {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    no_cache: options.NoCache = False,
) -> None:
    """Gaussian processes and kernel ridge regression for tables."""


def demo(
    output: options.Output = "co2_forecast.png",
    until: Annotated[float, typer.Option("--until", help="Train on the weeks before this year.")] = 1998.0,
    every: Annotated[int, typer.Option("--every", min=1, help="Use only every n-th week for training.")] = 2,
) -> None:
    """Fit and forecast weekly CO₂ at Mauna Loa, with a picture."""
    import argparse
    from pathlib import Path

    import jax

    from kernax.demo import __main__ as demonstration

    check_output(output, [])
    try:
        with jax.enable_x64(True):
            demonstration.run(argparse.Namespace(output=Path(output), until=until, every=every))
    except SystemExit as error:
        raise ValueError(str(error)) from None


for name, command in {
    "demo": demo,
    "fit": _fit.fit,
    "predict": _saved.predict,
    "fit-many": _many.fit_many,
    "forecast": _forecast.forecast,
    "compare": _compare.compare,
    "report": _saved.report,
}.items():
    app.command(name)(guarded(options.expanded(command)))
