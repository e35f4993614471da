"""Progress bars, if tqdm is installed."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any


def tqdm() -> Any:
    """The class of bars; `ImportError` says how to get it."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm.") from error
    return tqdm


@contextlib.contextmanager
def progress_bar(wanted: bool, total: int, title: str = "fit") -> Iterator[Callable[..., None]]:
    """Yields `show(evaluations, value)`, to be called with the evaluations just made and the best value so far.

    With `earlier=True` they were made by a run that was interrupted, so they say nothing about the time of an evaluation.
    Most fits end long before `total` evaluations, so no share of them is shown: only how long the rest can take at most.
    """
    if not wanted:
        yield lambda evaluations, value, earlier=False: None
        return
    shown = "{desc}: {n_fmt} evaluations in {elapsed}{postfix}"
    with tqdm()(total=total, desc=title, miniters=1, bar_format=shown, postfix="compiling") as bar:
        best, first = math.inf, None

        def show(evaluations: int, value: float, earlier: bool = False) -> None:
            nonlocal best, first
            best = min(best, value if math.isfinite(value) else math.inf)
            done, elapsed, time = bar.n + evaluations, bar.format_dict["elapsed"], ""
            if not earlier and first is None:
                first = done, elapsed  # compilation included, so not a time of evaluations
            elif first is not None and done > first[0]:
                each = (elapsed - first[1]) / (done - first[0])
                time = f"{each:.2g} s each, at most {bar.format_interval(each * max(total - done, 0))} left, "
            bar.set_postfix_str(f"{time}value={best:.6g}", refresh=False)
            bar.update(evaluations)

        yield show


@contextlib.contextmanager
def many_bar(wanted: bool, total: int | None, title: str = "fit_many") -> Iterator[Callable[..., None]]:
    """Yields a function to call with how many datasets have just ended, and for fits how many of those have failed.

    Shows the rate, and the time left if the number of datasets is known.
    """
    if not wanted:
        yield lambda done, failed=None: None
        return
    with tqdm()(total=total, unit="dataset", desc=title) as bar:
        all_failed = 0

        def show(done: int, failed: int | None = None) -> None:
            nonlocal all_failed
            if failed is not None:
                all_failed += failed
                bar.set_postfix(failed=all_failed, refresh=False)
            bar.update(done)

        yield show
