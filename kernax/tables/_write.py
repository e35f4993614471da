"""Tables into files, whole or not at all."""

import contextlib
import csv
import io
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernax.tables._errors import TableError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[str]:
    """Yields the name of a temporary file beside `path`, which takes its place if nothing goes wrong."""
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.", suffix=".part")
    except OSError as error:
        raise TableError(f"{path}: cannot be written ({error.strerror}).") from None
    os.close(handle)
    try:
        yield temporary
        # mkstemp's file is for its owner alone; this one is to be as readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def csv_text(columns: dict[str, Any]) -> str:
    """Columns as CSV; numbers in all their digits, missing values as nothing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_cells(values) for values in columns.values()), strict=True))
    return out.getvalue()


def write_table(path: str | os.PathLike, columns: dict[str, Any]) -> None:
    """A CSV file, or a Parquet file if the name ends so."""
    kind = os.path.splitext(os.fspath(path))[1].lower()
    if kind not in (".csv", ".parquet", ".pq"):
        raise TableError(f"{os.fspath(path)}: tables are written as .csv or .parquet.")
    with whole_file(path) as temporary:
        if kind == ".csv":
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                file.write(csv_text(columns))
        else:
            import pyarrow
            import pyarrow.parquet

            table = pyarrow.table({name: _arrow(values) for name, values in columns.items()})
            pyarrow.parquet.write_table(table, temporary)


def _cells(values: Any) -> list:
    values = np.asarray(values)
    if values.dtype.kind == "f":
        return ["" if value != value else repr(value) for value in values.tolist()]
    if values.dtype.kind == "M":
        return ["" if np.isnat(v) else str(v).removesuffix("T00:00:00.000000").removesuffix(".000000") for v in values]
    return ["" if value is None else value for value in values.tolist()]


def _arrow(values: Any) -> Any:
    """Text that is all numbers, as of a CSV file, becomes numbers."""
    import pyarrow

    values = np.asarray(values)
    if values.dtype != object:
        return pyarrow.array(values)
    with contextlib.suppress(ValueError, TypeError):
        return pyarrow.array([None if value is None else float(value) for value in values])
    return pyarrow.array([None if value is None else str(value) for value in values])
