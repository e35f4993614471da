"""Inputs, targets, and a mask of the rows that count; one dataset, many, or the groups of a table."""

from kernax.data._data import Data
from kernax.data._many import Group, stack
from kernax.data._tables import Groups, groups

__all__ = ["Data", "Group", "Groups", "groups", "stack"]
