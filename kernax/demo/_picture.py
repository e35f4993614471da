"""The forecast as a picture."""

import importlib.util
from pathlib import Path

from kernax.demo._co2 import Forecast, Series


def check_matplotlib() -> None:
    """Say before the work what is missing after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("the picture needs matplotlib: pip install matplotlib.")


def draw(path: Path, training: Series, heldout: Series, future: Forecast, check: Forecast) -> None:
    """The whole series with its forecast above, the held-out years closer up below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (whole, close) = plt.subplots(2, 1, figsize=(9, 8), layout="constrained")
    for axes, forecast in ((whole, future), (close, check)):
        axes.fill_between(
            forecast.year,
            forecast.mean - 1.96 * forecast.sd,
            forecast.mean + 1.96 * forecast.sd,
            color="tab:blue",
            alpha=0.25,
            linewidth=0,
            label="95 % band",
        )
        axes.plot(forecast.year, forecast.mean, color="tab:blue", linewidth=0.9, label="posterior mean")
        axes.plot(heldout.year, heldout.ppm, ".", color="tab:orange", markersize=2.5, label="held out")
        axes.set_ylabel("CO₂ [ppm]")
    whole.plot(training.year, training.ppm, ".", color="black", markersize=1.5, label="training")
    whole.axvline(training.year[-1], color="grey", linewidth=0.8, linestyle=":")
    whole.set_title("Weekly CO₂ at Mauna Loa and its forecast")
    close.set_title("The held-out years")
    close.set_xlabel("year")
    whole.legend(loc="upper left")
    close.legend(loc="upper left")
    figure.savefig(path, dpi=130)
    plt.close(figure)
