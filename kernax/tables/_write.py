"""Tables into files, which are replaced in one step."""

import csv
import io
import os
from typing import IO, Any

import numpy as np

from kernax.io._file import whole_file
from kernax.tables._dates import time_text
from kernax.tables._read import TableError

ENDINGS = (".csv", ".parquet", ".pq", ".feather", ".arrow")
"""The endings of files that tables are written to."""


def csv_text(columns: dict[str, Any]) -> str:
    """Columns as CSV; numbers in all their digits, missing values as nothing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(values) for values in columns.values()), strict=True))
    return out.getvalue()


def write_table(path: str | os.PathLike, columns: dict[str, Any]) -> None:
    """Write a table to a file, in the format that its ending says.

    **Arguments:**

    - `path`: the file, which ends in `.csv`, `.parquet`, `.pq`, `.feather` or `.arrow`. It is replaced in one step.
    - `columns`: the columns by name.

    **Returns:**

    `None`. Raises `TableError` if the file cannot be written, or if its name has another ending.
    """
    kind = os.path.splitext(os.fspath(path))[1].lower()
    if kind not in ENDINGS:
        raise TableError(f"{os.fspath(path)}: tables are written as {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.")
    try:
        with whole_file(path) as file:
            _write(file, kind, columns)
    except OSError as error:
        raise TableError(f"{os.fspath(path)}: cannot be written ({error.strerror or error}).") from None


def _write(file: IO[bytes], kind: str, columns: dict[str, Any]) -> None:
    if kind == ".csv":
        file.write(csv_text(columns).encode())
        return
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    table = pyarrow.table({name: _arrow(values) for name, values in columns.items()})
    if kind in (".parquet", ".pq"):
        pyarrow.parquet.write_table(table, file)
    else:
        pyarrow.feather.write_feather(table, file)


def _cells(values: Any) -> list:
    values = np.asarray(values)
    if values.dtype.kind == "f":
        return ["" if value != value else repr(value) for value in values.tolist()]
    if values.dtype.kind == "M":
        return ["" if np.isnat(v) else time_text(v) for v in values]
    return ["" if value is None else value for value in values.tolist()]


def _arrow(values: Any) -> Any:
    """Text that is all numbers, as of a CSV file, becomes numbers, if nothing is lost: `007` stays text."""
    import pyarrow

    values = np.asarray(values)
    if values.dtype != object:
        return pyarrow.array(values)
    texts = [None if value is None or value == "" else str(value) for value in values]
    numbers = [None if text is None else _number(text) for text in texts]
    if any(number is None and text is not None for number, text in zip(numbers, texts, strict=True)):
        return pyarrow.array(texts)
    return pyarrow.array(numbers)


def _number(text: str) -> int | float | None:
    """The number that a text is; None for other text, and for numbers whose text would be lost."""
    try:
        if "." in text or "e" in text.lower():
            return float(text)
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and abs(number) <= 2**53 else None
