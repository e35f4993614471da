"""A progress bar for long eager fits, if tqdm is installed."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(wanted: bool, total: int) -> Iterator[Callable[[int, float], None]]:
    """Yields a function to call with the steps just made and the best value so far."""
    if not wanted:
        yield lambda steps, value: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm.") from error
    with tqdm(total=total, unit="step", desc="fit") as bar:

        def show(steps: int, value: float) -> None:
            bar.set_postfix(value=f"{value:.6g}")
            bar.update(steps)

        yield show
