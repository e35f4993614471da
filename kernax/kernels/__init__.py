"""What similarity is: kernels, their algebra, and kernels on a view of the inputs."""

from kernax.kernels._activations import AbstractActivation, Erf, GaussianPair, ReLU
from kernax.kernels._algebra import Constant, Power, Product, Scale, Sum
from kernax.kernels._dot_product import Linear, Polynomial
from kernax.kernels._inputs import FeatureMap, Select, Warp
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import Coordinate, MarkovProcess
from kernax.kernels._network import NNGP, NTK, AbstractNetwork, ArcCosine
from kernax.kernels._oscillator import SHO
from kernax.kernels._periodic import Cosine, Periodic
from kernax.kernels._random_features import RandomFeatures
from kernax.kernels._spline import CubicSpline, ThinPlate
from kernax.kernels._stationary import RBF, AbstractStationary, Matern12, Matern32, Matern52, RationalQuadratic
from kernax.kernels._trends import AbstractTrend, PolynomialTrend, as_trend, joined_trends

__all__ = [
    "NNGP",
    "NTK",
    "RBF",
    "SHO",
    "AbstractActivation",
    "AbstractKernel",
    "AbstractNetwork",
    "AbstractStationary",
    "AbstractTrend",
    "ArcCosine",
    "Constant",
    "Coordinate",
    "Cosine",
    "CubicSpline",
    "Erf",
    "FeatureMap",
    "GaussianPair",
    "Linear",
    "MarkovProcess",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "PolynomialTrend",
    "Power",
    "Product",
    "RandomFeatures",
    "RationalQuadratic",
    "ReLU",
    "Scale",
    "Select",
    "Sum",
    "ThinPlate",
    "Warp",
    "as_trend",
    "joined_trends",
]
