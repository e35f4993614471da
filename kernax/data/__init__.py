"""Inputs, targets, and a mask of the rows that count; one dataset, many, or the groups of a table."""

from kernax.data._data import Data
from kernax.data._gaps import Gaps, needs_same_rows, refuse_gaps
from kernax.data._host import Group
from kernax.data._long import long
from kernax.data._many import stack
from kernax.data._parquet import from_parquet
from kernax.data._tables import Groups, groups

__all__ = ["Data", "Gaps", "Group", "Groups", "from_parquet", "groups", "long", "needs_same_rows", "refuse_gaps", "stack"]
