"""Noise as a function of the row: per group, measured, dependent on the inputs, your own module; and sums of them."""

from kernax.noises._heteroscedastic import Anchors, Heteroscedastic, Interpolant
from kernax.noises._noises import as_noise, check_noise, is_common, is_per_row, noise_at, noise_values
from kernax.noises._of_rows import Known, PerGroup
from kernax.noises._sums import AbstractNoise, Constant, Sum

__all__ = [
    "AbstractNoise",
    "Anchors",
    "Constant",
    "Heteroscedastic",
    "Interpolant",
    "Known",
    "PerGroup",
    "Sum",
    "as_noise",
    "check_noise",
    "is_common",
    "is_per_row",
    "noise_at",
    "noise_values",
]
