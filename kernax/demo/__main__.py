"""`python -m kernax.demo`: fit CO₂ up to 1998, report the fit, forecast to 2010, and check against what was measured."""

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np

import kernax as kx
from kernax.demo import _co2
from kernax.demo._picture import check_matplotlib, draw


def main() -> None:
    """The main job of the README."""
    parser = argparse.ArgumentParser(prog="python -m kernax.demo", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("co2_forecast.png"), help="where the picture goes")
    parser.add_argument("--until", type=float, default=1998.0, help="train on the weeks before this year")
    parser.add_argument("--every", type=int, default=2, help="train on every so many weeks")
    arguments = parser.parse_args()
    # A condition number of 1e5 leaves float32 two digits.
    with jax.enable_x64(True):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Fit, report, check and draw."""
    check_matplotlib()
    series = _co2.load()
    training = series.between(0, arguments.until).every(max(1, arguments.every))
    heldout = series.between(arguments.until, np.inf)
    if len(training.year) < 100 or len(heldout.year) == 0:
        sys.exit(
            f"--until {arguments.until:g} --every {arguments.every} leaves too little data: the series is 1958 to 2001."
        )
    print(f"{len(series.year)} weeks of CO₂ at Mauna Loa; training on {len(training.year)} before {arguments.until:g}.")

    begun = time.monotonic()
    fitted, c = _co2.fit(training, progress=sys.stderr.isatty())
    if fitted.result == kx.Result.interrupted:
        raise KeyboardInterrupt
    seconds = time.monotonic() - begun
    print(f"\n{kx.report(fitted, columns=['years'], target='ppm')}\n\n{seconds:.1f} seconds, compilation included\n")

    check = _co2.forecast(c, heldout.year)
    error = heldout.ppm - check.mean
    inside = np.mean(np.abs(error) < 1.96 * check.sd)
    print(
        f"held out, {arguments.until:g} to 2001: RMSE {np.sqrt(np.mean(error**2)):.2f} ppm; "
        f"{100 * inside:.0f} % of {len(error)} weeks lie inside the 95 % band"
    )
    future = _co2.forecast(c, np.linspace(series.year[0], 2010, 2000))
    draw(arguments.output, training, heldout, future, check)
    print(f"forecast for January 2010: {future.mean[-1]:.1f} ± {future.sd[-1]:.1f} ppm\npicture: {arguments.output}")


if __name__ == "__main__":
    main()
