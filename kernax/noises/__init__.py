"""Noise as a function of the row: one number, one per row, one per group, or a module of your own."""

from kernax.noises._noises import PerGroup, as_noise, check_noise, is_common, is_per_row, noise_at, noise_values

__all__ = ["PerGroup", "as_noise", "check_noise", "is_common", "is_per_row", "noise_at", "noise_values"]
