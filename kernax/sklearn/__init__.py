"""Estimators for scikit-learn (extra `sklearn`), thin over the functions of kernax.

They work in pipelines, grid searches and cross-validation, take NumPy arrays and data frames, and pickle. A kernel is an
instance (`kernax.RBF()`), never a name, and never changed: `fit` keeps a new one in `kernel_`. What the functions of kernax
return is kept too (`conditioned_`, `fit_`, `machine_`), so that all of kernax can be asked of a fitted estimator.

- **Shapes.** JAX compiles a program for each shape, which takes longer than a small fit. Rows are therefore padded to a few
  counts (32, 128, 256, then steps of an eighth or less) behind a mask, and columns with zeros that kernels of distances and
  inner products do not see. Answers stay the same, and folds of cross-validation, grid searches and predictions of any
  length find programs that are there already. `conditioned_`, `machine_` and `machines_` keep the rows of padding.
- **Precision.** With `jax.config.update("jax_enable_x64", True)` before anything else, all is computed and returned in
  float64. That is recommended: kernel matrices are ill-conditioned. Otherwise JAX has float32 only; kernax says so once if
  it is handed float64, and predictions are float32. What is pickled in float64 goes on in float64 wherever it is loaded, and
  so do the workers of `n_jobs=2`, which know nothing of the settings of JAX.
- **Failure.** Wrong inputs raise ValueError or TypeError; a fit without a usable answer raises `kernax.FailedError`, which
  says what to do, and leaves the estimator not fitted. A fit that ended before its optimum gives a ConvergenceWarning.
- **Weights.** A row of `sample_weight` 2 counts as two, and one of weight 0 as none; in a Gaussian process, it has half the
  noise.
"""

try:
    import sklearn  # noqa: F401  (optional: said before the files below fail to find it)
except ImportError as error:
    raise ImportError("kernax.sklearn needs scikit-learn: pip install scikit-learn.") from error

from kernax.sklearn._adaboost import AdaBoostClassifier
from kernax.sklearn._gp_classifier import GaussianProcessClassifier
from kernax.sklearn._gp_regressor import GaussianProcessRegressor
from kernax.sklearn._kernel_ridge import KernelRidge
from kernax.sklearn._lasso import Lasso
from kernax.sklearn._support_vectors import SupportVectorClassifier, SupportVectorRegressor

__all__ = [
    "AdaBoostClassifier",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "KernelRidge",
    "Lasso",
    "SupportVectorClassifier",
    "SupportVectorRegressor",
]
