"""Dates as numbers: a count of a stated unit since a stated day."""

import datetime
import re
from typing import Any

import numpy as np

from kernax.tables._errors import TableError

UNITS = {"years": 365.25 * 86400e6, "days": 86400e6, "hours": 3600e6, "seconds": 1e6}
"""Microseconds of each unit. A year is 365.25 days, so that every year is as long as another."""

_ISO = re.compile(
    r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?( ?(Z|[+-]\d{2}(:?\d{2})?))?)?)?", re.IGNORECASE
)
_OTHER = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[/.]\d{1,2}[/.]\d{1,2}")
_EPOCH = datetime.datetime(1970, 1, 1)
FIRST, LAST = (np.datetime64(day, "us").astype(np.int64) for day in ("0001-01-02", "9999-12-30"))
"""The days that can be written, in microseconds since 1970."""


def looks_like_date(text: str) -> bool:
    """Whether this is written as an ISO 8601 date or time, even if the day does not exist."""
    return _ISO.fullmatch(text) is not None


def looks_like_other_date(text: str) -> bool:
    """Whether this is a date in a spelling that can be read in two ways."""
    return _OTHER.fullmatch(text.split(" ")[0]) is not None


def microseconds(text: str) -> tuple[int, bool] | None:
    """Microseconds since 1970 (in UTC, if the text has a zone) and whether it has one; None if the day does not exist."""
    if not looks_like_date(text):
        return None
    text = f"{text}-01" if len(text) == 7 else text.upper().replace(" +", "+").replace(" -", "-").replace(" Z", "Z")
    # More digits than microseconds are cut off, as Python's reader does.
    try:
        time = datetime.datetime.fromisoformat(text)
        zoned = time.tzinfo is not None
        if zoned:
            time = time.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (time - _EPOCH) // datetime.timedelta(microseconds=1), zoned


def choose_unit(times: np.ndarray) -> str:
    """The largest unit of which the times span two or more."""
    span = float(times.max() - times.min()) if len(times) else 0.0
    return next((unit for unit, length in UNITS.items() if span >= 2 * length), "seconds")


def check_unit(unit: Any) -> None:
    if unit is not None and unit not in UNITS:
        raise TableError(f"the unit of dates must be one of {', '.join(UNITS)}, got {unit!r}.")


def iso(time: float) -> str:
    """The day, and the time of day if it is not midnight, of microseconds since 1970."""
    moment = _EPOCH + datetime.timedelta(microseconds=int(time))
    return moment.date().isoformat() if moment.time() == datetime.time() else moment.isoformat()
