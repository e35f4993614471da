"""Progress bars, if tqdm is installed."""

from typing import Any


def tqdm() -> Any:
    """The class of bars; `ImportError` says how to get it."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm.") from error
    return tqdm
