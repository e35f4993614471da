"""Kernels (covariance functions), their sums and products, and kernels of parts or maps of the inputs."""

from kernax.kernels._activations import AbstractActivation, Erf, GaussianPair, ReLU
from kernax.kernels._additive import Additive
from kernax.kernels._algebra import Constant, Power, Product, Scale, Sum
from kernax.kernels._categories import Categorical, Hamming, Tanimoto
from kernax.kernels._coregion import ICM, LCM, Coregion
from kernax.kernels._dot_product import Linear, Polynomial
from kernax.kernels._functionals import OfFunctionals
from kernax.kernels._graph import Graph, Spectrum
from kernax.kernels._input_distributions import NormalInputs, PointInputs, as_inputs, uniform_inputs
from kernax.kernels._inputs import FeatureMap, Select, Warp
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import Coordinate, MarkovProcess
from kernax.kernels._matern import Matern
from kernax.kernels._names import parameter_names
from kernax.kernels._network import NNGP, NTK, AbstractNetwork, ArcCosine
from kernax.kernels._orthogonal import OrthogonalAdditive, ZeroMean
from kernax.kernels._oscillator import SHO
from kernax.kernels._periodic import Cosine, Periodic
from kernax.kernels._random_features import RandomFeatures
from kernax.kernels._spectral_mixture import SpectralMixture
from kernax.kernels._sphere import LatitudeLongitude, Sphere
from kernax.kernels._spline import CubicSpline, ThinPlate
from kernax.kernels._stationary import RBF, AbstractStationary, Matern12, Matern32, Matern52, RationalQuadratic
from kernax.kernels._trends import AbstractTrend, PolynomialTrend, as_trend, joined_trends
from kernax.kernels._varying import ChangePoint, Gibbs
from kernax.kernels._wendland import Wendland
from kernax.kernels._white import White

__all__ = [
    "ICM",
    "LCM",
    "NNGP",
    "NTK",
    "RBF",
    "SHO",
    "AbstractActivation",
    "AbstractKernel",
    "AbstractNetwork",
    "AbstractStationary",
    "AbstractTrend",
    "Additive",
    "ArcCosine",
    "Categorical",
    "ChangePoint",
    "Constant",
    "Coordinate",
    "Coregion",
    "Cosine",
    "CubicSpline",
    "Erf",
    "FeatureMap",
    "GaussianPair",
    "Gibbs",
    "Graph",
    "Hamming",
    "LatitudeLongitude",
    "Linear",
    "MarkovProcess",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "NormalInputs",
    "OfFunctionals",
    "OrthogonalAdditive",
    "Periodic",
    "PointInputs",
    "Polynomial",
    "PolynomialTrend",
    "Power",
    "Product",
    "RandomFeatures",
    "RationalQuadratic",
    "ReLU",
    "Scale",
    "Select",
    "SpectralMixture",
    "Spectrum",
    "Sphere",
    "Sum",
    "Tanimoto",
    "ThinPlate",
    "Warp",
    "Wendland",
    "White",
    "ZeroMean",
    "as_inputs",
    "as_trend",
    "joined_trends",
    "parameter_names",
    "uniform_inputs",
]
