"""scikit-learn's own checks, for every estimator."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from kernax import sklearn as ks


@parametrize_with_checks(
    [
        ks.KernelRidge(),
        ks.GaussianProcessRegressor(),
        ks.GaussianProcessClassifier(),
        ks.SupportVectorRegressor(),
        ks.SupportVectorClassifier(),
        ks.AdaBoostClassifier(),
        ks.Lasso(),
    ]
)
def test_check(estimator, check):
    check(estimator)
