"""The columns of tables of every kind, whole or in pieces.

pandas, polars and pyarrow are imported by whoever has a table of theirs; only reading a file imports pyarrow here.
"""

import datetime
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class Columns(NamedTuple):
    """What every kind of table comes down to: the names, and of each the values as an array or as Python's own."""

    names: list
    values: Callable[[Any], np.ndarray]
    keys: Callable[[Any], list]


class Wanted(NamedTuple):
    """The columns that make datasets: each a name, or several of them."""

    by: Any
    x: Any
    y: Any

    @property
    def columns(self) -> list:
        return list(dict.fromkeys([*listed(self.by), *listed(self.x), *listed(self.y)]))

    @property
    def numbers(self) -> list:
        return [*listed(self.x), *listed(self.y)]

    def groups_in(self, columns: Columns, offset: int) -> list:
        """The group of each row of a table, or of a piece of one that begins at row `offset`."""
        by = [columns.keys(name) for name in listed(self.by)]
        for name, keys in zip(listed(self.by), by, strict=True):
            missing = [i for i, key in enumerate(keys) if key is None or key != key]
            if missing:
                raise ValueError(
                    f"column {name!r} names no group in {len(missing)} of the rows {offset} to {offset + len(keys) - 1} "
                    f"(first: row {offset + missing[0]}): drop them, or fill them in."
                )
        _check_lengths(listed(self.by), by)
        return list(zip(*by, strict=True)) if is_several(self.by) else by[0]

    def numbers_in(self, columns: Columns, offset: int, keys: list | None = None) -> tuple[np.ndarray, np.ndarray]:
        """x and y, likewise; as many as there are `keys`, if these are given."""
        x, y = ([as_numbers(columns.values(n), n, offset) for n in listed(names)] for names in (self.x, self.y))
        _check_lengths(self.numbers, [*x, *y], {} if keys is None else {listed(self.by)[0]: len(keys)})
        dtype = np.float32 if all(values.dtype == np.float32 for values in (*x, *y)) else np.float64
        inputs = np.stack(x, axis=1, dtype=dtype, casting="unsafe")
        targets = np.stack(y, axis=1, dtype=dtype, casting="unsafe") if is_several(self.y) else y[0].astype(dtype)
        return inputs, targets


def _check_lengths(names: list, columns: list, known: Mapping[Any, int] = types.MappingProxyType({})) -> None:
    sizes = {**known, **{name: len(values) for name, values in zip(names, columns, strict=True)}}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the columns differ in length: {sizes}.")


def is_several(names: Any) -> bool:
    """Whether columns are named in a list."""
    return isinstance(names, list | tuple)


def listed(names: Any) -> list:
    """Columns in a list, also if there is one."""
    return list(names) if is_several(names) else [names]


def as_numbers(values: np.ndarray, name: Any, offset: int) -> np.ndarray:
    """A column of numbers, NaN where one is missing; of anything else, the first row that is none is named."""
    if values.ndim != 1:
        raise ValueError(f"column {name!r} has shape {values.shape}: it must be one number a row.")
    if values.dtype.kind in "biuf":
        return values
    is_time = values.dtype.kind in "mM"
    numbers = np.full(len(values), np.nan)
    text, plain = None, values.tolist()
    for i, value in enumerate([] if is_time else plain):
        if value is None:
            continue
        is_time = isinstance(value, datetime.date | datetime.time | datetime.timedelta)
        try:
            numbers[i] = float(value)
        except (TypeError, ValueError):
            text = i
            break
        if text is None and isinstance(value, str | bytes):
            text = i
    if is_time:
        raise ValueError(
            f"column {name!r} holds dates or times, and kernax takes numbers: convert it first, "
            "for example to days since the first observation."
        )
    if text is not None:
        raise ValueError(
            f"column {name!r} has {plain[text]!r} in row {offset + text}, and kernax takes numbers: convert it first."
        )
    return numbers


def whole(table: Any) -> Columns | None:
    """The columns of a table in memory; None for what is to be read in pieces."""
    if isinstance(table, Mapping):
        return Columns(list(table), lambda name: _unmasked(table[name]), lambda name: _plain(table[name]))
    if is_a(table, "pandas", "DataFrame"):
        return Columns(list(table.columns), lambda name: _pandas_values(table[name]), lambda name: _pandas_keys(table[name]))
    if is_a(table, "polars", "DataFrame"):
        return Columns(list(table.columns), lambda name: table[name].to_numpy(), lambda name: table[name].to_list())
    if is_a(table, "pyarrow", "Table"):
        return arrow(table)
    return None


def _plain(values: Any) -> list:
    """A column of a dict as Python's own values."""
    if isinstance(values, list | tuple):
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    values = _unmasked(values)
    # Nanoseconds have no Python type: NumPy would give integers.
    return (values.astype("M8[us]") if values.dtype.kind == "M" else values).tolist()


def _unmasked(values: Any) -> np.ndarray:
    """An array; what a masked one hides is missing."""
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    hidden = np.ma.getmaskarray(values)
    if values.dtype.kind in "biuf":
        return np.where(hidden, np.nan, values.data)
    if values.dtype.kind in "mM":
        return values.filled("NaT")
    plain = np.array(values.data, dtype=object)
    plain[hidden] = None
    return plain


def _pandas_values(series: Any) -> np.ndarray:
    kind = series.dtype.kind
    if kind in "iu" and not series.hasnans:
        return series.to_numpy(dtype=np.dtype(f"{kind}8"))  # a float has no room for every integer
    if kind == "b":
        return series.to_numpy(dtype=object, na_value=None) if series.hasnans else series.to_numpy(dtype=bool)
    if kind in "iuf":
        single = kind == "f" and series.dtype.itemsize == 4
        return series.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)
    return series.to_numpy() if kind in "mM" else series.to_numpy(dtype=object, na_value=None)


def _pandas_keys(series: Any) -> list:
    return [None if missing else key for key, missing in zip(series.tolist(), series.isna(), strict=True)]


def arrow(table: Any) -> Columns:
    """The columns of a table of pyarrow."""

    def values(name: Any) -> np.ndarray:
        column = table.column(name)
        # pyarrow's own conversion of a dictionary column puts a value where one is missing.
        return (column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column).to_numpy()

    return Columns(list(table.column_names), values, lambda name: table.column(name).to_pylist())


def stream(table: Any, names: list, numbers: list, rows: int) -> tuple[list, Callable[[], Iterator[Columns]], str]:
    """What is read in pieces of at most `rows` rows: all its columns, how to begin reading `names`, and its own name.

    `numbers` are those of the names whose columns are to be numbers.
    """
    columns, batches, source = _batches(table, names, numbers, rows)
    return columns, functools.partial(_pieces, batches, rows), source  # all partials, which can be pickled


def _pieces(batches: Callable[[], Iterable[Any]], rows: int) -> Iterator[Columns]:
    import pyarrow

    for batch in batches():
        for start in range(0, batch.num_rows, rows):
            yield arrow(pyarrow.Table.from_batches([batch.slice(start, rows)]))


def _batches(table: Any, names: list, numbers: list, rows: int) -> tuple[list, Callable[[], Iterable[Any]], str]:
    if is_a(table, "pyarrow", "RecordBatchReader"):
        return table.schema.names, _once(table), "a reader"
    if is_a(table, "pyarrow.dataset", "Dataset"):
        # Of many files, one at a time; within a file pyarrow reads ahead as it likes.
        options = {"columns": names, "batch_size": rows, "batch_readahead": 1, "fragment_readahead": 1}
        return table.schema.names, functools.partial(table.to_batches, **options), "a dataset"
    if not isinstance(table, str | os.PathLike):
        raise TypeError(
            "table must be a pandas or polars frame, a pyarrow table, dataset or reader, a dict of columns, or a path, "
            f"got {type(table).__name__}."
        )
    path = os.fspath(table)
    try:
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path!r} needs pyarrow: pip install pyarrow") from error
    match os.path.splitext(path)[1].lower():
        case ".parquet" | ".pq":
            columns, batches = (
                pyarrow.parquet.read_schema(path).names,
                functools.partial(_parquet_batches, path, names, rows),
            )
        case ".arrow" | ".feather":
            columns = pyarrow.ipc.open_file(path).schema.names
            batches = functools.partial(_arrow_batches, path)
        case ".csv":
            columns, batches = pyarrow.csv.open_csv(path).schema.names, functools.partial(_csv_batches, path, names, numbers)
        case _:
            raise ValueError(f"{path!r} is not a type of file that kernax reads: write .parquet, .arrow, .feather or .csv.")
    return columns, batches, path


def _once(reader: Any) -> Callable[[], Iterator[Any]]:
    unread = [reader]

    def batches() -> Iterator[Any]:
        if not unread:
            raise ValueError("this reader has already been read, which is possible only once: make a new one.")
        yield from unread.pop()

    return batches


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


def _csv_batches(path: str, names: list, numbers: list) -> Iterator[Any]:
    """Batches with x and y as float64, whatever the first rows look like."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.csv

    compute: Any = pyarrow.compute  # its functions are made at run time
    options = pyarrow.csv.ConvertOptions(
        include_columns=names,
        # Read as text and converted here: pyarrow's own conversion does not say in which row it failed.
        column_types={name: pyarrow.string() for name in numbers},
        strings_can_be_null=True,
        null_values=[""],
    )
    absent = pyarrow.array(["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None"])
    offset = 0
    try:
        for batch in pyarrow.csv.open_csv(path, convert_options=options):
            for name in dict.fromkeys(numbers):
                at = batch.schema.get_field_index(name)
                text = compute.utf8_trim_whitespace(batch.column(at))
                text = compute.if_else(compute.is_in(text, absent), None, text)
                try:
                    batch = batch.set_column(at, name, text.cast(pyarrow.float64()))
                except pyarrow.ArrowInvalid:
                    as_numbers(text.to_numpy(zero_copy_only=False), name, offset)  # raises, and says where
            offset += batch.num_rows
            yield batch
    except pyarrow.ArrowInvalid as error:
        raise ValueError(
            f"{path}: {error}. pyarrow guesses the type of a CSV column from its first rows: "
            "write the file as parquet, or load it whole."
        ) from error


def is_a(table: Any, module: str, name: str) -> bool:
    """Whether `table` is of that class, without importing its library: who holds one has imported it."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(table, getattr(loaded, name))
