"""The demonstration: weekly CO₂ at Mauna Loa, fitted with a composed kernel and forecast. `python -m kernax.demo`."""

from kernax.demo._co2 import Series
from kernax.demo._co2 import load as load_co2

__all__ = ["Series", "load_co2"]
