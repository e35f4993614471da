"""Statistics of kernel matrices: comparing samples, testing for dependence, and principal components."""

from kernax.statistics._dependence import hsic, hsic_test
from kernax.statistics._kernel_pca import KernelPCA, kernel_pca
from kernax.statistics._two_samples import PermutationTest, mmd, mmd_test

__all__ = ["KernelPCA", "PermutationTest", "hsic", "hsic_test", "kernel_pca", "mmd", "mmd_test"]
