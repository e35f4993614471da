"""Names in messages: lists of them, and the one that was probably meant."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def nearest(name: Any, known: Iterable[Any]) -> str:
    """` Did you mean 'x'?` with the known name that is spelled most like this one, or nothing."""
    by_lower = {str(other).lower(): str(other) for other in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def listed(names: Sequence[Any], most: int = 20) -> str:
    """Names in quotes, the first of many."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
