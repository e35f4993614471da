"""Dates as numbers: a count of a stated unit since a stated day."""

import datetime
import re

import numpy as np

UNITS = {"years": 365.25 * 86400e6, "days": 86400e6, "hours": 3600e6, "seconds": 1e6}
"""Microseconds of each unit. A year is 365.25 days, so that every year is as long as another."""

ISO = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?( ?(Z|[+-]\d{2}(:?\d{2})?))?)?)?", re.IGNORECASE)
"""ISO 8601 dates and times, also of days that do not exist."""
OTHER = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[/.]\d{1,2}[/.]\d{1,2}")
"""Dates that can be read in two ways."""
_EPOCH = datetime.datetime(1970, 1, 1)
FIRST, LAST = (np.datetime64(day, "us").astype(np.int64) for day in ("0001-01-02", "9999-12-30"))
"""The days that can be written, in microseconds since 1970."""


def microseconds(text: str) -> tuple[int, bool] | None:
    """Microseconds since 1970 (in UTC, if the text has a zone) and whether it has one; None if the day does not exist."""
    if not ISO.fullmatch(text):
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


def time_text(time: np.datetime64) -> str:
    """The day, with the time of day if it is not midnight."""
    return str(time).removesuffix("T00:00:00.000000").removesuffix(".000000")
