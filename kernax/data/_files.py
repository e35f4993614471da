"""Files of tables: CSV and TSV, Parquet, Arrow and Feather, read by pyarrow in pieces or whole."""

import csv
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernax._spelling import nearest
from kernax.data._columns import MISSING, as_numbers

TEXT, PARQUET, ARROW = "text", "parquet", "arrow"
_KINDS = {
    ".csv": (TEXT, ","),
    ".txt": (TEXT, ","),
    ".tsv": (TEXT, "\t"),
    ".parquet": (PARQUET, ""),
    ".pq": (PARQUET, ""),
    ".arrow": (ARROW, ""),
    ".feather": (ARROW, ""),
}
# pyarrow compares with these to the letter.
_NULLS = sorted({form(word) for word in MISSING for form in (str, str.upper, str.capitalize)} | {"NaN", "NaT", "-NaN"})


class File(NamedTuple):
    """A file of a table, of which only the names of the columns have been read. It can be pickled."""

    path: str
    kind: str
    """`text`, `parquet` or `arrow`."""
    names: list[str]
    separator: str = ""
    head: tuple[str, ...] = ()
    """Of a text file: the names of all columns, with a placeholder for each column without a name."""
    skipped: int = 0
    """Of a text file: how many lines stand before the first row."""

    def batches(self, names: Sequence[str], rows: int, as_text: Sequence[str] | None = None) -> Iterator[Any]:
        """Record batches with these columns, of about `rows` rows each.

        In a text file, the columns of `as_text` (`None` for all) remain text to the letter; pyarrow guesses the type of
        the others from the first rows.
        """
        match self.kind:
            case "parquet":
                return _parquet_batches(self.path, list(names), rows)
            case "arrow":
                return _arrow_batches(self.path)
        return _text_batches(self, list(names), names if as_text is None else as_text)

    def read(self) -> Any:
        """The whole file as a table of pyarrow; a text file as columns of text to the letter."""
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet

        match self.kind:
            case "parquet":
                return _or_value_error(self, lambda: pyarrow.parquet.read_table(self.path))
            case "arrow":
                return _or_value_error(self, lambda: pyarrow.feather.read_table(self.path))
        schema = pyarrow.schema([(name, pyarrow.string()) for name in self.names])
        return pyarrow.Table.from_batches(self.batches(self.names, 0), schema)

    def lines(self, rows: int | None = None) -> np.ndarray:
        """The line on which each row of a text file begins; faster if the number of rows is known."""
        with open(self.path, "rb") as file:
            blocks = [(block.count(b"\n"), block[-1:]) for block in iter(lambda: file.read(2**20), b"")]
        count = sum(breaks for breaks, _ in blocks) + (blocks[-1][1] != b"\n") if blocks else 0
        if rows is not None and count - self.skipped == rows:  # each row is one line
            return np.arange(self.skipped + 1, count + 1)
        return np.array([line for line, _ in _records(self)][1:], dtype=int)

    def where(self, row: int) -> str:
        """What a message calls a row: its number, its line in a text file, and the file."""
        lines = self.lines() if self.kind == TEXT else []
        line = f", line {lines[row]}" if row < len(lines) else ""
        return f"row {row}{line} of {self.path}"


def opened(path: str | os.PathLike) -> File:
    """Look up the columns of a file.

    **Arguments:**

    - `path`: a file whose name ends in `.csv`, `.txt`, `.tsv`, `.parquet`, `.pq`, `.arrow` or `.feather`.

    **Returns:**

    A `File`. Raises `FileNotFoundError` if it does not exist, `ImportError` without pyarrow, and `ValueError` if it cannot
    be read.
    """
    path = os.fspath(path)
    kind, separator = _KINDS.get(os.path.splitext(path)[1].lower(), ("", ""))
    if os.path.isdir(path):
        raise ValueError(f"{path}: this is a folder; give a file.")
    if not kind:
        raise ValueError(
            f"{path!r} is not a type of file that kernax reads: write .csv, .tsv, .parquet, .arrow or .feather."
        )
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path!r} needs pyarrow: pip install pyarrow") from error
    if not os.path.exists(path):
        folder = os.path.dirname(path) or "."
        others = os.listdir(folder) if os.path.isdir(folder) else []
        raise FileNotFoundError(f"{path}: there is no such file.{nearest(os.path.basename(path), others)}")
    file = File(path, kind, [], separator)
    match kind:
        case "parquet":
            return file._replace(names=_or_value_error(file, lambda: pyarrow.parquet.read_schema(path).names))
        case "arrow":
            return file._replace(names=_or_value_error(file, lambda: _arrow_names(path)))
    return _with_head(file)


def _or_value_error(file: File, read: Callable[[], Any]) -> Any:
    import pyarrow

    try:
        return read()
    except (pyarrow.ArrowException, OSError) as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file.path}: cannot be read as {file.kind} ({message}).") from None


def _arrow_names(path: str) -> list[str]:
    import pyarrow

    with pyarrow.OSFile(path) as file:
        return pyarrow.ipc.open_file(file).schema.names


def _parquet_batches(path: str, names: list, rows: int) -> Iterator[Any]:
    import pyarrow.parquet

    # By default pyarrow reads ahead, and all of a file of moderate size is in memory before its first group.
    with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=rows, columns=names)


def _arrow_batches(path: str) -> Iterator[Any]:
    import pyarrow

    with pyarrow.OSFile(path) as file:
        reader = pyarrow.ipc.open_file(file)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def _with_head(file: File) -> File:
    """The file with the names in its first line that is not blank."""
    path, separator = file.path, file.separator
    first = next(_records(file), None)
    if first is None:
        raise ValueError(f"{path}: the file is empty; the first line must contain column names.")
    with open(path, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator, strict=True)
        head = [name.strip() for name in next(record for record in reader if record and any(map(str.strip, record)))]
        skipped = reader.line_num
    for other, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
        if other != separator and len(head) == 1 and other in head[0]:
            remedy = "commas (or tabs, named .tsv)" if separator == "," else "tabs (or commas, named .csv)"
            raise ValueError(
                f"{path}: the columns seem to be separated by {called}; write it with {remedy} and decimal points."
            )
    if all(_is_number(name) for name in head):
        raise ValueError(
            f"{path}: the first line, {','.join(head)[:60]!r}, holds numbers; it must contain column names: put names "
            "above it."
        )
    return file._replace(
        names=[name for name in head if name],
        head=tuple(name or f"\0{i}" for i, name in enumerate(head)),
        skipped=skipped,
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in MISSING


def _text_batches(file: File, names: list, as_text: Sequence[str]) -> Iterator[Any]:
    import pyarrow
    import pyarrow.csv

    options = {
        "read_options": pyarrow.csv.ReadOptions(column_names=list(file.head), skip_rows=file.skipped),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=file.separator,
            newlines_in_values=True,
            invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            include_columns=names,
            column_types={name: pyarrow.string() for name in as_text},
            null_values=_NULLS,
            strings_can_be_null=False,
        ),
    }
    try:
        yield from pyarrow.csv.open_csv(file.path, **options)
    except pyarrow.ArrowInvalid as error:
        if "Could not skip initial" in str(error):  # there is nothing after the names
            return
        raise ValueError(_explained(file, error)) from error


def _explained(file: File, error: Exception) -> str:
    """What is wrong with a text file that pyarrow refuses."""
    path, width = file.path, len(file.head)
    ragged = [(line, len(record)) for line, record in _records(file) if len(record) != width]
    if not ragged:
        return (
            f"{path}: {error}. pyarrow guesses the type of a CSV column from its first rows: write the file as parquet, or "
            "load it whole."
        )
    shown = ", ".join(str(line) for line, _ in ragged[:5])
    several = len(ragged) > 1
    more = f", … ({len(ragged)} in all)" if len(ragged) > 5 else ""
    return (
        f"{path}: the first line names {width} columns, but line{'s' if several else ''} {shown}{more} "
        f"{'have' if several else 'has'} {ragged[0][1]}{' and other numbers' if several else ''} of values: add what is "
        "missing, or put values that contain the separator in quotes."
    )


def _records(file: File) -> Iterator[tuple[int, list[str]]]:
    """The line on which each record of a text file begins, and its cells; the first record names the columns.

    Blank lines are left out. Python's own reader is slower than pyarrow's, but knows its lines.
    """
    path, last, width = file.path, 0, 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=file.separator, strict=True)
            for record in reader:
                is_blank = not record or (width != 1 and len(record) == 1 and not record[0].strip())
                if not is_blank:
                    width = width or len(record)
                    yield last + 1, record
                last = reader.line_num
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; save the file in that encoding.") from None
    except csv.Error as error:
        raise ValueError(f"{path}: this is not a text table ({error}).") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}).") from None


def numeric_batches(file: File, names: Sequence[str], numbers: Sequence[str], rows: int) -> Iterator[Any]:
    """`file.batches`; in a text file the columns of `numbers` always become float64."""
    import pyarrow

    offset = 0
    for batch in file.batches(names, rows, list(numbers)):
        for name in dict.fromkeys(numbers if file.kind == TEXT else ()):
            text = without_missing_text(batch.column(name))
            try:
                batch = batch.set_column(batch.schema.get_field_index(name), name, text.cast(pyarrow.float64()))
            except pyarrow.ArrowInvalid:
                as_numbers(text.to_numpy(zero_copy_only=False), name, offset, file.where)  # raises, and says where
        offset += batch.num_rows
        yield batch


def without_missing_text(column: Any) -> Any:
    """A column of text from Arrow, without blanks around values, and null where a value is missing."""
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are made at run time
    text = compute.utf8_trim_whitespace(column)
    return compute.if_else(compute.is_in(compute.utf8_lower(text), pyarrow.array(sorted(MISSING))), None, text)


def in_pieces(batches: Callable[[], Iterator[Any]], rows: int) -> Iterator[Any]:
    """Arrow tables of at most `rows` rows."""
    import pyarrow

    for batch in batches():
        for start in range(0, batch.num_rows, rows):
            yield pyarrow.Table.from_batches([batch.slice(start, rows)])


def once(reader: Any) -> Callable[[], Iterator[Any]]:
    """A stream that can be begun only once."""
    return functools.partial(_begun, [reader])


def _begun(unread: list) -> Iterator[Any]:
    if not unread:
        raise ValueError("this reader has already been read, which is possible only once: make a new one.")
    yield from unread.pop()
