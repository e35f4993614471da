"""Inputs, targets, and a mask of the rows that count."""

from kernax.data._data import Data

__all__ = ["Data"]
