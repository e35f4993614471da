"""The kernel matrix over rows, unevaluated: a Gram answers products, the diagonal, some rows, or all of it."""

from kernax.grams._choice import gram_of
from kernax.grams._gram import AbstractGram, Gram, MatrixGram, masked
from kernax.grams._kronecker import KroneckerGram, along_axes, by_columns, summed_by_columns

__all__ = [
    "AbstractGram",
    "Gram",
    "KroneckerGram",
    "MatrixGram",
    "along_axes",
    "by_columns",
    "gram_of",
    "masked",
    "summed_by_columns",
]
