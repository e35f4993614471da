"""What an expression needs to know of the columns that a kernel sees."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class AbstractColumn(Protocol):
    """A column of numbers or of categories, such as [`kernax.tables.Column`][]."""

    @property
    def name(self) -> str:
        """What an expression calls it."""
        ...

    @property
    def unit(self) -> str | None:
        """The unit of its numbers if they are dates: `years`, `days`, `hours` or `seconds`."""
        ...

    @property
    def scale(self) -> float:
        """The number by which its values were divided."""
        ...

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the categories."""
        ...

    @property
    def is_category(self) -> bool:
        """Whether it holds categories."""
        ...


class PlainColumn(NamedTuple):
    """A column of numbers that was not standardised."""

    name: str
    unit: str | None = None
    scale: float = 1.0
    levels: tuple[str, ...] = ()
    is_category: bool = False


def numbers_key(columns: Sequence[AbstractColumn]) -> str:
    """The key of the numbers in rows that also have categories: `x`, unless a category has that name."""
    key = "x"
    while any(column.is_category and column.name == key for column in columns):
        key += "_"
    return key
