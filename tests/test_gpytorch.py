"""Parity with GPyTorch, if it is installed: `pip install torch gpytorch` (PyTorch is too large for the `test` extra).

Each of these formulas is also tested against NumPy or finite differences elsewhere.
"""

import itertools

import numpy as np
import pytest

import kernax as kx
from kernax import kernels
from tests.tables import points

torch = pytest.importorskip("torch", reason="PyTorch is too large for the test extra")
gpytorch = pytest.importorskip("gpytorch", reason="GPyTorch needs PyTorch, which is too large for the test extra")

X, Z = points(7), points(5, seed=3)


def gram(peer, x, z=None):
    with torch.no_grad():
        return peer(torch.as_tensor(x), None if z is None else torch.as_tensor(z)).to_dense().numpy()


def test_coregion():
    rng = np.random.default_rng(17)
    loadings, own = rng.normal(size=(3, 2)), np.array([0.3, 0.8, 0.1])
    tasks, others = np.array([2, 0, 1, 1, 2]), np.array([1, 0, 2])
    peer = gpytorch.kernels.IndexKernel(num_tasks=3, rank=2).double()
    peer.covar_factor.data, peer.var = torch.as_tensor(loadings), torch.as_tensor(own)
    ours = kernels.Coregion(3, 2, loadings=loadings, variances=own, key=None).gram(tasks, others)
    np.testing.assert_allclose(ours, gram(peer, tasks, others), rtol=1e-12)


# GPyTorch 1.15 has `j + 4j` for `j² + 4j` in its polynomial of smoothness 2.
@pytest.mark.parametrize(("smoothness", "columns"), [*itertools.product((0, 1, 3), (2, 5))])
def test_wendland(smoothness, columns):
    x, z = np.random.default_rng(0).normal(size=(2, 6, columns))
    lengthscale = np.linspace(1.5, 3.0, columns)
    peer = gpytorch.kernels.PiecewisePolynomialKernel(q=smoothness, ard_num_dims=columns).double()
    peer.lengthscale = torch.as_tensor(lengthscale)
    ours = kernels.Wendland(lengthscale, smoothness, columns)(x, z)
    np.testing.assert_allclose(ours, gram(peer, x, z), rtol=1e-10, atol=1e-13)


def test_spectral_mixture():
    x, z = X[:, :1], Z[:, :1]
    weight, frequency, bandwidth = np.array([0.6, 1.1]), np.array([0.4, 1.3]), np.array([0.2, 0.1])
    peer = gpytorch.kernels.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=1).double()
    peer.mixture_weights, peer.mixture_means = torch.as_tensor(weight), torch.as_tensor(frequency.reshape(2, 1, 1))
    peer.mixture_scales = torch.as_tensor(bandwidth.reshape(2, 1, 1))
    ours = kernels.SpectralMixture(weight, frequency, bandwidth)(x, z)
    np.testing.assert_allclose(ours, gram(peer, x, z), rtol=1e-10, atol=1e-13)


def test_values_and_gradients():
    peer = gpytorch.kernels.RBFKernelGrad(ard_num_dims=2).double()
    peer.lengthscale = torch.tensor([0.7, 1.9], dtype=torch.float64)
    rows = kx.observe.gradients(X, np.zeros(7), np.zeros((7, 2))).x
    ours = kernels.OfFunctionals(kx.RBF(lengthscale=[0.7, 1.9]))(rows)
    np.testing.assert_allclose(ours, gram(peer, X), atol=1e-12)
