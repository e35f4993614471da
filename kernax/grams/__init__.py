"""Grams: kernel matrices over rows that are not evaluated until products, the diagonal, rows or all of it are needed."""

from kernax.grams._choice import gram_of
from kernax.grams._gram import AbstractGram, Gram, MatrixGram, masked
from kernax.grams._grown import GrownGram, grown
from kernax.grams._kronecker import KroneckerGram, ScaledGram, along_axes, by_columns, summed_by_columns
from kernax.grams._low_rank import AbstractFeatures, LowRankGram, OwnFeatures
from kernax.grams._stored import StoredGram

__all__ = [
    "AbstractFeatures",
    "AbstractGram",
    "Gram",
    "GrownGram",
    "KroneckerGram",
    "LowRankGram",
    "MatrixGram",
    "OwnFeatures",
    "ScaledGram",
    "StoredGram",
    "along_axes",
    "by_columns",
    "gram_of",
    "grown",
    "masked",
    "summed_by_columns",
]
