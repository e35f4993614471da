"""The UCI sets, split 0, standardised by the training part.

Each file `<name>.npz` holds `x` (n, d), `y` (n,) and `test_mask` (n, splits). They are not part of the repository.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._options import Options


class Split(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(folder: Path, name: str) -> Split:
    with np.load(folder / f"{name}.npz") as file:
        x, y, test = file["x"], file["y"], file["test_mask"][:, 0]
    (x, x_test), (y, y_test) = _standardised(x[~test], x[test]), _standardised(y[~test], y[test])
    return Split(x, y, x_test, y_test)


def available(options: Options, names: tuple[str, ...]) -> list[str]:
    """Those sets whose files are there; says what is missing and how to name the folder."""
    found = [name for name in names if options.data is not None and (options.data / f"{name}.npz").is_file()]
    missing = [f"{name}.npz" for name in names if name not in found]
    if missing:
        where = "no folder was named" if options.data is None else f"not in {options.data}"
        print(f"skipped, {where}: {', '.join(missing)}. Name their folder with --data DIR or in KERNAX_DATA.")
    return found


def _standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return (train - mean) / scale, (test - mean) / scale
