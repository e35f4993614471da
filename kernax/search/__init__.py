"""The search for a kernel: which sum of products of base kernels suits the data."""

from kernax.search._found import KernelSearch, KernelSearches, Tried
from kernax.search._search import search_kernel, search_kernel_many

__all__ = ["KernelSearch", "KernelSearches", "Tried", "search_kernel", "search_kernel_many"]
