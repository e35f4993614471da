"""Parquet files that do not fit into memory, as rows in a file of plain numbers."""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernax._bars import tqdm
from kernax.data._columns import as_numbers, whole
from kernax.data._data import Data
from kernax.data._tables import check_columns

_FORMAT = 1


def from_parquet(
    path: str | os.PathLike | Sequence[str | os.PathLike],
    x: Sequence[str],
    y: str | Sequence[str],
    *,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> Data:
    """A dataset from Parquet files that need not fit into memory.

    The columns of x are written, one row group after another, as plain numbers to a file, in which they stay (see
    `kx.Data`): at most one row group is in memory, and the targets. The numbers are float32 if all columns are, else
    float64.

    **Arguments:**

    - `path`: a Parquet file, or several with the same columns.
    - `x`: the names of the input columns.
    - `y`: the name of the target column, or a list of names for several outputs.
    - `folder`: where to write, and where a later call finds what was written if files and columns are the same. A temporary
      folder, deleted when the process ends, if not given.
    - `progress`: show a bar over row groups; needs tqdm.

    **Returns:**

    A `Data`. Raises `ValueError` with the file, the row group and the column if a number is missing or not finite, or if a
    column holds something else.
    """
    if isinstance(x, str) or not x or not y:
        raise ValueError(f"x must be a list of columns, and y a column or a list of columns; got x={x!r}, y={y!r}.")
    outputs = [y] if isinstance(y, str) else list(y)
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(each) for each in path]
    source = {"format": _FORMAT, "x": list(x), "y": outputs, "files": [_identity(each) for each in paths]}
    if folder is None:
        folder = tempfile.mkdtemp(prefix="kernax-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = Path(folder)
    if _known(place) != source:
        _write(place, source, paths, list(x), outputs, progress)
    targets = np.load(place / "y.npy")
    return Data(np.load(place / "x.npy", mmap_mode="r"), targets[:, 0] if isinstance(y, str) else targets)


def _identity(path: Path) -> list[Any]:
    """What tells a file from another, or from itself before a change."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    facts = path.stat()
    return [str(path.resolve()), facts.st_size, facts.st_mtime_ns]


def _known(place: Path) -> Any:
    """What the files of a folder were written from; `None` if the folder is empty."""
    if place.exists() and not place.is_dir():
        raise ValueError(f"folder must be a folder, but {place} is a file.")
    place.mkdir(parents=True, exist_ok=True)
    own = {"source.json", "x.npy", "y.npy"}
    foreign = [entry.name for entry in place.iterdir() if entry.name not in own and not entry.name.endswith(".tmp")]
    if foreign:
        raise ValueError(f"{place} holds other files ({foreign[0]}, …): give an empty folder.")
    if not all((place / name).exists() for name in own):
        return None
    try:
        return json.loads((place / "source.json").read_text())
    except ValueError:
        return None


def _write(place: Path, source: Any, paths: list[Path], inputs: list[str], outputs: list[str], progress: bool) -> None:
    (place / "source.json").unlink(missing_ok=True)
    files = [_opened(path, [*inputs, *outputs]) for path in paths]
    try:
        dtype = np.dtype("float32" if all(_is_single(file, [*inputs, *outputs]) for file in files) else "float64")
        n = sum(file.metadata.num_rows for file in files)
        targets = np.empty((n, len(outputs)), dtype)
        with _replacing(place / "x.npy") as out:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (n, len(inputs))}
            np.lib.format.write_array_header_1_0(out, header)
            begin = 0
            for columns in _row_groups(files, paths, [*inputs, *outputs], progress):
                rows = len(columns[0])
                out.write(np.stack(columns[: len(inputs)], axis=1, dtype=dtype, casting="unsafe").tobytes())
                targets[begin : begin + rows] = np.stack(columns[len(inputs) :], axis=1)
                begin += rows
    finally:
        for file in files:
            file.close()
    with _replacing(place / "y.npy") as out:
        np.save(out, targets)
    # Last: what is there with this file is complete.
    with _replacing(place / "source.json") as out:
        out.write(json.dumps(source).encode())


def _opened(path: Path, names: list[str]) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path} needs pyarrow: pip install pyarrow") from error
    try:
        # By default pyarrow reads ahead, and may hold much of a file in memory.
        file = pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file ({error}).") from error
    try:
        check_columns(names, file.schema_arrow.names)
    except ValueError as error:
        file.close()
        raise ValueError(f"{path}: {error}") from None
    return file


def _is_single(file: Any, names: list[str]) -> bool:
    return all(str(file.schema_arrow.field(name).type) == "float" for name in names)


def _row_groups(files: list[Any], paths: list[Path], names: list[str], progress: bool) -> Iterator[list[np.ndarray]]:
    """The columns of one row group after another, as finite numbers."""
    total = sum(file.metadata.num_row_groups for file in files)
    with tqdm()(total=total, unit="row group", desc="reading") if progress else contextlib.nullcontext() as bar:
        for path, file in zip(paths, files, strict=True):
            offset = 0
            for number in range(file.metadata.num_row_groups):
                table = whole(file.read_row_group(number, columns=names))
                try:
                    columns = [_finite(as_numbers(table.values(name), name, offset), name, offset) for name in names]
                except ValueError as error:
                    raise ValueError(f"{path}, row group {number}: {error}") from None
                offset += len(columns[0])
                yield columns
                if bar is not None:
                    bar.update()


def _finite(values: np.ndarray, name: str, offset: int) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(
            f"column {name!r} is missing, NaN or infinite in {len(bad)} of {len(values)} rows (first: row "
            f"{offset + bad[0]}): drop these rows, or fill them in."
        )
    return values


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A file that takes the place of another when it is complete. Who has opened the other one keeps it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
