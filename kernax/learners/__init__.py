"""Learners other than the kernel model.

Linear ones on explicit features (least squares, ridge, lasso); kernel machines of other losses (support vectors, smooth
losses, Gaussian processes seen through a likelihood); committees (AdaBoost, bagging, boosted residuals).
"""

from kernax.learners._adaboost import AdaBoost, adaboost, rounds_for
from kernax.learners._bagging import Bagged, bagged
from kernax.learners._classes import LatentClasses, SoftmaxGP
from kernax.learners._dictionary import Dictionary
from kernax.learners._features import FourierFeatures, PolynomialFeatures, random_fourier_features
from kernax.learners._laplace import GPClassifier, LaplaceGP, LatentGP
from kernax.learners._lasso import LassoFit, LassoPath, lasso, lasso_path
from kernax.learners._likelihoods import Bernoulli, NegativeBinomial, Ordinal, Softmax, StudentT
from kernax.learners._linear import LeastSquaresFit, RidgeFit, least_squares, ridge
from kernax.learners._linear_thresholds import LinearThresholds
from kernax.learners._losses import AbstractLoss, Huber, Logistic, Poisson, SmoothQuantile, Squared, SquaredHinge
from kernax.learners._members import AbstractMembers
from kernax.learners._one_against_one import OneAgainstOne, one_against_one
from kernax.learners._one_against_rest import OneAgainstRest, one_against_rest
from kernax.learners._residual_boosting import Boosted, boosted
from kernax.learners._smooth_machine import KernelMachine, SmoothMachine
from kernax.learners._stumps import Stump, Stumps
from kernax.learners._support_vectors import SVC, SVR, SupportVectors, support_vectors
from kernax.learners._trees import Tree, Trees
from kernax.learners._validation import holdout_loss, kfold_loss
from kernax.learners._votes import majority_vote

__all__ = [
    "SVC",
    "SVR",
    "AbstractLoss",
    "AbstractMembers",
    "AdaBoost",
    "Bagged",
    "Bernoulli",
    "Boosted",
    "Dictionary",
    "FourierFeatures",
    "GPClassifier",
    "Huber",
    "KernelMachine",
    "LaplaceGP",
    "LassoFit",
    "LassoPath",
    "LatentClasses",
    "LatentGP",
    "LeastSquaresFit",
    "LinearThresholds",
    "Logistic",
    "NegativeBinomial",
    "OneAgainstOne",
    "OneAgainstRest",
    "Ordinal",
    "Poisson",
    "PolynomialFeatures",
    "RidgeFit",
    "SmoothMachine",
    "SmoothQuantile",
    "Softmax",
    "SoftmaxGP",
    "Squared",
    "SquaredHinge",
    "StudentT",
    "Stump",
    "Stumps",
    "SupportVectors",
    "Tree",
    "Trees",
    "adaboost",
    "bagged",
    "boosted",
    "holdout_loss",
    "kfold_loss",
    "lasso",
    "lasso_path",
    "least_squares",
    "majority_vote",
    "one_against_one",
    "one_against_rest",
    "random_fourier_features",
    "ridge",
    "rounds_for",
    "support_vectors",
]
