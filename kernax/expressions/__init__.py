"""The language of kernels: text such as `rbf + 2 * periodic(period=1)` becomes a kernel."""

from kernax.expressions._build import Built, build_kernel, has_level, parse_kernel, written_values
from kernax.expressions._columns import AbstractColumn, numbers_key
from kernax.expressions._syntax import KernelExpressionError

__all__ = [
    "AbstractColumn",
    "Built",
    "KernelExpressionError",
    "build_kernel",
    "has_level",
    "numbers_key",
    "parse_kernel",
    "written_values",
]
