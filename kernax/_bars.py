"""Progress bars, if tqdm is installed."""

import contextlib
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
def progress_bar(wanted: bool, total: int, title: str = "fit") -> Iterator[Callable[[int, float], None]]:
    """Yields a function to call with the steps just made and the best value so far."""
    if not wanted:
        yield lambda steps, value: None
        return
    with tqdm()(total=total, unit="step", desc=title) as bar:

        def show(steps: int, value: float) -> None:
            bar.set_postfix(value=f"{value:.6g}")
            bar.update(steps)

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
