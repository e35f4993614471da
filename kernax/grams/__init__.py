"""The kernel matrix over rows, unevaluated: a Gram answers products, the diagonal, some rows, or all of it."""

from kernax.grams._choice import gram_of
from kernax.grams._gram import AbstractGram, Gram, MatrixGram, masked
from kernax.grams._kronecker import KroneckerGram, along_axes

__all__ = ["AbstractGram", "Gram", "KroneckerGram", "MatrixGram", "along_axes", "gram_of", "masked"]
