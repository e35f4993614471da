"""What inputs and targets are called in a picture, and in which units they are drawn."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from kernax.rows import take

_LONGEST = 40


class Quantity(NamedTuple):
    """A name, and how the numbers of a model become those of the table: `centre + scale * value`."""

    name: str
    label: str
    centre: float = 0.0
    scale: float = 1.0
    times: Callable[[np.ndarray], np.ndarray] | None = None
    """For a column of dates: its numbers as `datetime64`."""
    levels: tuple[str, ...] | None = None
    """For a column of categories: their names."""

    def restored(self, values: Any) -> np.ndarray:
        """Numbers of the model in the table's units."""
        return self.centre + self.scale * np.asarray(values, np.float64)

    def placed(self, axis: Any, values: Any) -> np.ndarray:
        """Numbers of the model as matplotlib places them along an axis, which then shows dates or categories."""
        restored = self.restored(values)
        if self.levels is not None:
            axis.set_ticks(np.arange(len(self.levels)), self.levels)
            if len(self.levels) > 6 and axis.axis_name == "x":
                axis.set_tick_params(rotation=45)
        if self.times is None:
            return restored
        locator = AutoDateLocator(maxticks=8)
        axis.set_major_locator(locator)
        axis.set_major_formatter(ConciseDateFormatter(locator))
        return self.times(restored)


def quantity(of: Any, default: str) -> Quantity:
    """What a picture calls a column: a name, or a `kx.tables.Column`, which also has units."""
    if of is None:
        return Quantity(default, default)
    if isinstance(of, str):
        return Quantity(plain(of), plain(of))
    label = of.name if of.is_date else of.label
    levels = tuple(plain(level) for level in of.levels) if _is_category(of) else None
    return Quantity(plain(of.name), plain(label), of.centre, of.scale, of.times if of.is_date else None, levels)


def _is_category(of: Any) -> bool:
    return bool(getattr(of, "is_category", False))


def plain(text: str) -> str:
    """Text as it is, cut if it is long: dollar signs would begin a formula."""
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return text.replace("$", r"\$")


class Inputs:
    """The inputs of a dataset as a table of columns, whatever the structure of its rows.

    An array of shape `(n, d)` is d columns, one of shape `(n,)` is one; a dict of arrays has the columns of each. Columns of
    integers are categories.
    """

    def __init__(self, c: Any, columns: Sequence[Any] | None):
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(take(c.data.x))
        arrays = [np.asarray(leaf) for _, leaf in leaves]
        if any(leaf.ndim not in (1, 2) for leaf in arrays):
            shapes = ", ".join(str(leaf.shape) for leaf in arrays)
            raise ValueError(f"this picture needs rows of numbers, and the data's inputs have shape {shapes}.")
        self._shapes = [(leaf.shape[1:], leaf.dtype) for leaf in arrays]
        parts = [leaf if leaf.ndim == 2 else leaf[:, None] for leaf in arrays]
        values = np.concatenate([part.astype(np.float64) for part in parts], axis=1)
        names, integer = [], []
        for (path, _), part in zip(leaves, parts, strict=True):
            key = str(getattr(path[-1], "key", getattr(path[-1], "idx", "x"))) if path else "x"
            count = part.shape[1]
            names += [key] if count == 1 else [f"{key}[{i}]" for i in range(count)]
            integer += [part.dtype.kind in "iu"] * count
        if columns is not None and len(columns) != len(names):
            raise ValueError(
                f"columns has {len(columns)} names, and the data has {len(names)} columns: give a name to each."
            )
        order = _order(names, integer, columns)
        self._places = np.argsort(order)
        counts = np.asarray(c.data.mask)
        self.values = values[:, order][counts]
        """The columns, in the order of `columns`, of the rows that count."""
        self.rows = np.flatnonzero(counts)
        """The numbers of these rows."""
        self.quantities = []
        for i, place in enumerate(order):
            found = quantity(None if columns is None else columns[i], names[place])
            if integer[place] and found.levels is None:
                found = found._replace(levels=tuple(str(k) for k in range(int(self.values[:, i].max()) + 1)))
            self.quantities.append(found)

    def usual(self) -> np.ndarray:
        """The median of each column; of categories, the most frequent."""
        return np.array(
            [
                np.median(values) if of.levels is None else np.bincount(values.astype(int)).argmax()
                for of, values in zip(self.quantities, self.values.T, strict=True)
            ]
        )

    def of(self, values: np.ndarray) -> Any:
        """Rows as the model takes them, from a matrix with the columns of `values`."""
        values, start, leaves = values[:, self._places], 0, []
        for shape, dtype in self._shapes:
            width = shape[0] if shape else 1
            part = values[:, start : start + width].astype(dtype)
            leaves.append(jnp.asarray(part if shape else part[:, 0]))
            start += width
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    def number(self, column: int | str) -> int:
        """A column by its number or its name."""
        names = [one.name for one in self.quantities]
        if isinstance(column, str):
            if plain(column) not in names:
                raise ValueError(f"the data has no column {column!r}: its columns are {', '.join(names)}.")
            return names.index(plain(column))
        if not -len(names) <= column < len(names):
            raise ValueError(f"the data has no column {column}: it has {len(names)} columns, counted from 0.")
        return int(column) % len(names)


def _order(names: list[str], integer: list[bool], columns: Sequence[Any] | None) -> list[int]:
    """Where each of the given columns is among those of the rows: categories by their name, numbers in their order."""
    if columns is None or not any(_is_category(of) for of in columns):
        return list(range(len(names)))
    numbers = iter(i for i, is_integer in enumerate(integer) if not is_integer)
    return [names.index(of.name) if _is_category(of) else next(numbers) for of in columns]
