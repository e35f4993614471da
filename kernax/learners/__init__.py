"""Learners beside the kernel model: linear ones on explicit features (least squares, ridge, lasso)."""

from kernax.learners._features import FourierFeatures, PolynomialFeatures, random_fourier_features
from kernax.learners._lasso import LassoFit, LassoPath, lasso, lasso_path
from kernax.learners._linear import LeastSquaresFit, RidgeFit, least_squares, ridge

__all__ = [
    "FourierFeatures",
    "LassoFit",
    "LassoPath",
    "LeastSquaresFit",
    "PolynomialFeatures",
    "RidgeFit",
    "lasso",
    "lasso_path",
    "least_squares",
    "random_fourier_features",
    "ridge",
]
