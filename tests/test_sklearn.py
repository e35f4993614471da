"""The estimators for scikit-learn, against scikit-learn's own and the functions of kernax."""

import doctest
import pickle
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import LinAlgWarning
from sklearn import ensemble, gaussian_process, kernel_ridge, linear_model, svm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import kernels
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data

import kernax as kx
from kernax import learners
from kernax import sklearn as ks
from kernax.sklearn._shapes import ignores_empty_columns, padded_count

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=30)
TWO = np.stack([Y, X[:, 0] * X[:, 1]], axis=1)
NEW = rng.normal(size=(7, 2))
WEIGHTS = rng.integers(0, 4, size=30).astype(float)
LABELS = np.array(["ant", "bee", "cow"])[np.digitize(Y, [-0.4, 0.5])]
KERNEL = 1.5 * kx.RBF(0.8)
THEIRS = kernels.ConstantKernel(1.5) * kernels.RBF(0.8)
ALL = [
    ks.KernelRidge(),
    ks.GaussianProcessRegressor(),
    ks.GaussianProcessClassifier(),
    ks.SupportVectorRegressor(),
    ks.SupportVectorClassifier(),
    ks.AdaBoostClassifier(n_estimators=5),
    ks.Lasso(),
]


def targets(estimator):
    return LABELS if hasattr(estimator, "classes_") or "Classifier" in type(estimator).__name__ else Y


def close(a, b, tolerance=1e-9):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# Kernel ridge regression


@pytest.mark.parametrize("y", [Y, TWO], ids=["one", "two"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_kernel_ridge_is_that_of_scikit_learn(y, weights):
    ours = ks.KernelRidge(kx.RBF(0.8), alpha=0.3).fit(X, y, sample_weight=weights)
    theirs = kernel_ridge.KernelRidge(kernel="rbf", gamma=0.5 / 0.8**2, alpha=0.3).fit(X, y, sample_weight=weights)
    close(ours.predict(NEW), theirs.predict(NEW))
    close(ours.dual_coef_, theirs.dual_coef_)


def test_a_ridge_is_chosen_and_its_model_can_be_asked_everything():
    ours = ks.KernelRidge(kx.RBF(0.8), select="loo").fit(X, Y)
    losses = []
    for i in range(30):
        keep = np.arange(30) != i
        losses.append((ks.KernelRidge(kx.RBF(0.8), alpha=ours.alpha_).fit(X[keep], Y[keep]).predict(X[[i]])[0] - Y[i]) ** 2)
    close(kx.loo_mse(ours.conditioned_), np.mean(losses), 1e-7)
    for c in (ours.conditioned_, ours.choice_.conditioned):
        close(kx.mean(c, NEW), ours.predict(NEW))
    for factor in (0.7, 1.3):
        other = ks.KernelRidge(kx.RBF(0.8), alpha=factor * ours.alpha_).fit(X, Y)
        assert kx.loo_mse(other.conditioned_) > kx.loo_mse(ours.conditioned_)
    with pytest.raises(ValueError, match="select must be None or one of loo"):
        ks.KernelRidge(select="best").fit(X, Y)
    with pytest.raises(ValueError, match="sample_weight"):
        ks.KernelRidge(select="loo").fit(X, Y, sample_weight=WEIGHTS)
    with pytest.raises(kx.FailedError, match=r"flat: .*KernelRidge\(alpha=…, select=None\)\.$"):
        ks.KernelRidge(select="loo").fit(X[:1], Y[:1])


def test_a_ridge_is_chosen_for_rows_of_one_weight():
    kept = WEIGHTS > 0
    ours = ks.KernelRidge(kx.RBF(0.8), select="loo").fit(X, Y, sample_weight=4.0 * kept)
    plain = ks.KernelRidge(kx.RBF(0.8), select="loo").fit(X[kept], Y[kept])
    close(ours.alpha_, 4.0 * plain.alpha_)
    theirs = kernel_ridge.KernelRidge(kernel="rbf", gamma=0.5 / 0.8**2, alpha=ours.alpha_)
    close(ours.predict(NEW), theirs.fit(X, Y, sample_weight=4.0 * kept).predict(NEW))


def test_a_ridge_below_the_jitter_is_told():
    rows = np.linspace(0, 1, 60)[:, None].astype(np.float32)
    with jax.enable_x64(False), pytest.warns(LinAlgWarning, match="more than the ridge 1e-12"):
        ks.KernelRidge(kx.RBF(1.0), alpha=1e-12).fit(rows, np.sin(rows[:, 0]))


# Gaussian processes


@pytest.mark.parametrize("normalize_y", [False, True])
@pytest.mark.parametrize("y", [Y, TWO], ids=["one", "two"])
def test_a_fixed_process_is_that_of_scikit_learn(y, normalize_y):
    ours = ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False, normalize_y=normalize_y).fit(X, y + 3)
    theirs = gaussian_process.GaussianProcessRegressor(THEIRS, alpha=0.1, optimizer=None, normalize_y=normalize_y)
    theirs.fit(X, y + 3)
    close(ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_)
    for options in ({"return_std": True}, {"return_cov": True}):
        for a, b in zip(ours.predict(NEW, **options), theirs.predict(NEW, **options), strict=True):
            assert a.shape == b.shape
            close(a, b)
    assert ours.fit_ is None
    with pytest.raises(ValueError, match="one of them"):
        ours.predict(NEW, return_std=True, return_cov=True)


def test_the_report_of_normalised_targets_is_in_the_units_of_y():
    """That of the same process without normalisation, but for its level."""
    y = 20 + 3 * Y
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    normal = ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False, normalize_y=True).fit(frame, y)
    spread = np.std(y)
    plain = kx.condition(kx.Model(spread**2 * KERNEL, 0.1 * spread**2), kx.Data(X, y - y.mean()))
    found, wanted = kx.report(normal), kx.report(plain)
    entries, expected = found.as_dict()["entries"], wanted.as_dict()["entries"]
    for name in ("leave-one-out RMSE", "leave-one-out log density", "log marginal likelihood"):
        close(entries[name], expected[name], 1e-6)
    assert entries["units"].startswith("the target was standardised")
    parameters = {p.name: p for p in found.parameters}
    close(parameters["noise"].value, 0.1 * spread**2)
    assert parameters["noise"].unit == "y²"
    # Outputs with spreads of their own have no common unit.
    two = kx.report(ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False, normalize_y=True).fit(X, TWO * [1, 5]))
    assert "[standardised y]" in str(two)
    assert "[y]" not in str(two)
    fitted = ks.GaussianProcessRegressor(normalize_y=True, max_steps=30).fit(X, y)
    assert "[standardised y]" in str(kx.report(fitted.fit_))
    close(kx.report(fitted).as_dict()["entries"]["leave-one-out RMSE"], spread * _rmse(fitted.fit_))
    with pytest.raises(NotFittedError):
        ks.GaussianProcessRegressor().report()


def _rmse(fit):
    return kx.report(fit).as_dict()["entries"]["leave-one-out RMSE"]


def test_noisy_predictions_are_those_of_a_white_kernel():
    ours = ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False).fit(X, Y)
    theirs = gaussian_process.GaussianProcessRegressor(THEIRS + kernels.WhiteKernel(0.1), optimizer=None).fit(X, Y)
    close(ours.predict(NEW, return_std=True, noisy=True)[1], theirs.predict(NEW, return_std=True)[1], 1e-7)


def test_noise_of_each_row_is_held():
    noise = np.random.default_rng(1).uniform(0.05, 0.5, size=30)
    ours = ks.GaussianProcessRegressor(KERNEL, noise=noise).fit(X, Y)
    kernel = kernels.ConstantKernel(ours.kernel_.variance) * kernels.RBF(ours.kernel_.kernel.lengthscale)
    theirs = gaussian_process.GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, Y)
    close(ours.noise_, noise)
    with pytest.raises(ValueError, match="that of new rows is unknown"):
        ours.predict(NEW, return_std=True, noisy=True)
    close(ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_)
    _, slope = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    assert np.abs(slope).max() < 1e-3


def test_a_fitted_process_is_as_good_as_that_of_scikit_learn():
    ours = ks.GaussianProcessRegressor(random_state=0).fit(X, Y)
    theirs = gaussian_process.GaussianProcessRegressor(THEIRS + kernels.WhiteKernel(0.1), random_state=0).fit(X, Y)
    assert ours.log_marginal_likelihood_value_ >= theirs.log_marginal_likelihood_value_ - 1e-6
    assert ours.fit_.num_steps > 1
    assert ours.fit_.data.x.shape[1] == ours.conditioned_.data.x.shape[1] == 2
    again = ks.GaussianProcessRegressor(restarts=2, random_state=0).fit(X, Y)
    assert again.log_marginal_likelihood_value_ >= ours.log_marginal_likelihood_value_ - 1e-6
    held = ks.GaussianProcessRegressor(KERNEL, noise=0.07, optimise="kernel").fit(X, Y)
    assert held.noise_ == pytest.approx(0.07)
    assert float(held.kernel_.variance) != 1.5
    assert float(KERNEL.variance) == 1.5


def test_draws_have_the_moments_of_the_posterior():
    ours = ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False, normalize_y=True).fit(X, TWO)
    drawn = ours.sample_y(NEW, n_samples=4000, random_state=1)
    mean, std = ours.predict(NEW, return_std=True)
    assert drawn.shape == (7, 2, 4000)
    np.testing.assert_allclose(drawn.mean(axis=2), mean, atol=6 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(axis=2), std, rtol=0.1)
    _, matrix = ours.predict(NEW, return_cov=True)
    for output in range(2):
        np.testing.assert_allclose(np.cov(drawn[:, output]), matrix[..., output], atol=0.1 * matrix[..., output].max())


def test_rows_of_a_covariance_are_padded_without_a_trace():
    ours = ks.GaussianProcessRegressor(KERNEL, noise=0.1, optimise=False).fit(X, Y)
    many = np.random.default_rng(2).normal(size=(40, 2))
    close(ours.predict(many, return_cov=True)[1][:7, :7], ours.predict(many[:7], return_cov=True)[1])
    # A point that is drawn twice has the same values.
    twice = ours.sample_y(np.concatenate([NEW, NEW]), n_samples=3)
    np.testing.assert_allclose(twice[:7], twice[7:], atol=1e-4)


@pytest.mark.parametrize("estimator", [ks.GaussianProcessRegressor(max_steps=1), ks.GaussianProcessClassifier(max_steps=1)])
def test_a_fit_that_ends_early_is_told(estimator):
    with pytest.warns(ConvergenceWarning, match="ended early.*Raise max_steps") as told:
        estimator.fit(X, targets(estimator))
    assert told[0].filename == __file__


@pytest.mark.parametrize("options", [{"optimise": False}, {"optimise": "kernel", "noise": 0.1}], ids=str)
def test_weights_of_a_process_are_repetitions_where_the_noise_is_held(options):
    check_sample_weight_equivalence_on_dense_data("ours", ks.GaussianProcessRegressor(**options))


def test_weights_of_a_process_divide_the_noise_that_is_fitted():
    ours = ks.GaussianProcessRegressor(KERNEL, noise=0.1).fit(X, Y, sample_weight=WEIGHTS)
    kept = WEIGHTS > 0
    kernel = kernels.ConstantKernel(ours.kernel_.variance) * kernels.RBF(ours.kernel_.kernel.lengthscale)

    def theirs(noise):
        alpha = noise / WEIGHTS[kept]
        return gaussian_process.GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X[kept], Y[kept])

    best = theirs(ours.noise_)
    close(ours.log_marginal_likelihood_value_, best.log_marginal_likelihood_value_)
    for one, other in zip(ours.predict(NEW, return_std=True), best.predict(NEW, return_std=True), strict=True):
        close(one, other)
    _, slope = best.log_marginal_likelihood(best.kernel_.theta, eval_gradient=True)
    assert np.abs(slope).max() < 1e-3
    for factor in (0.95, 1.05):
        assert theirs(factor * ours.noise_).log_marginal_likelihood_value_ < best.log_marginal_likelihood_value_
    assert "successful" in str(kx.report(ours.fit_))
    (_, std), (_, noisy) = ours.predict(NEW, return_std=True), ours.predict(NEW, return_std=True, noisy=True)
    close(noisy**2, std**2 + ours.noise_)
    close(np.diag(ours.predict(NEW, return_cov=True, noisy=True)[1]), noisy**2)


@pytest.mark.parametrize("labels", [Y > 0, LABELS], ids=["two", "three"])
def test_gaussian_process_classification_is_that_of_scikit_learn(labels):
    """Of two classes; scikit-learn takes several classes one against the rest, which gives similar probabilities."""
    ours = ks.GaussianProcessClassifier(KERNEL, optimise=False).fit(X, labels)
    theirs = gaussian_process.GaussianProcessClassifier(THEIRS, optimizer=None).fit(X, labels)
    # scikit-learn's integral over the posterior is right to three digits.
    several = len(ours.classes_) > 2
    close(ours.predict_proba(NEW), theirs.predict_proba(NEW), 0.1 if several else 2e-3)
    close(ours.predict_proba(NEW).sum(axis=1), 1.0)
    assert np.mean(ours.predict(X) == theirs.predict(X)) >= (0.9 if several else 1.0)
    if not several:
        close(ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_, 1e-5)
    fitted = ks.GaussianProcessClassifier(KERNEL).fit(X, labels)
    assert fitted.log_marginal_likelihood_value_ > ours.log_marginal_likelihood_value_ + 1e-3
    mean, variance = fitted.latent_mean_and_variance(NEW)
    assert mean.shape == variance.shape == ((7,) if len(fitted.classes_) == 2 else (7, 3))


# Other losses


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_support_vector_regression_is_that_of_scikit_learn(weights):
    ours = ks.SupportVectorRegressor(kx.RBF(0.8), C=2.0, epsilon=0.05).fit(X, Y, sample_weight=weights)
    theirs = svm.SVR(gamma=0.5 / 0.8**2, C=2.0, epsilon=0.05, tol=1e-8).fit(X, Y, sample_weight=weights)
    close(ours.predict(NEW), theirs.predict(NEW), 1e-6)
    # libsvm counts the rows that have weight.
    counted = np.arange(30) if weights is None else np.flatnonzero(weights)
    np.testing.assert_array_equal(ours.support_, counted[theirs.support_])
    close(ours.dual_coef_, theirs.dual_coef_[0], 1e-4)


def test_the_kernel_of_none_is_the_default_of_scikit_learn():
    close(ks.SupportVectorRegressor().fit(X, Y).predict(NEW), svm.SVR(tol=1e-8).fit(X, Y).predict(NEW), 1e-6)
    theirs = svm.SVC(tol=1e-8).fit(X, Y > 0)
    close(ks.SupportVectorClassifier().fit(X, Y > 0).decision_function(NEW), theirs.decision_function(NEW), 1e-6)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_support_vector_classification_is_that_of_scikit_learn(weights):
    theirs = svm.SVC(gamma=0.5 / 0.8**2, C=2.0, tol=1e-8)
    two = ks.SupportVectorClassifier(kx.RBF(0.8), C=2.0).fit(X, Y > 0, sample_weight=weights)
    theirs.fit(X, Y > 0, sample_weight=weights)
    close(two.decision_function(NEW), theirs.decision_function(NEW), 1e-6)
    counted = np.arange(30) if weights is None else np.flatnonzero(weights)
    np.testing.assert_array_equal(two.support_, counted[np.sort(theirs.support_)])
    three = ks.SupportVectorClassifier(kx.RBF(0.8), C=2.0).fit(X, LABELS, sample_weight=weights)
    theirs.set_params(break_ties=True).fit(X, LABELS, sample_weight=weights)
    close(three.decision_function(NEW), theirs.decision_function(NEW), 1e-6)
    np.testing.assert_array_equal(three.predict(X), theirs.predict(X))
    np.testing.assert_array_equal(three.support_, counted[np.sort(theirs.support_)])
    close(three.intercept_, -theirs.intercept_, 1e-6)
    assert list(three.classes_) == ["ant", "bee", "cow"]


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_boosting_is_that_of_scikit_learn(weights):
    labels = Y > 0
    ours = ks.AdaBoostClassifier(8, members=learners.Trees(1)).fit(X, labels, sample_weight=weights)
    theirs = ensemble.AdaBoostClassifier(DecisionTreeClassifier(max_depth=1, random_state=0), n_estimators=8, random_state=0)
    theirs.fit(X, labels, sample_weight=weights)
    close(ours.estimator_errors_, theirs.estimator_errors_)
    close(2 * ours.estimator_weights_, theirs.estimator_weights_)
    for a, b in zip(ours.staged_predict(NEW), theirs.staged_predict(NEW), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    # Half the log-odds are what boosting's votes estimate.
    probability = ours.predict_proba(NEW)
    close(np.log(probability[:, 1] / probability[:, 0]) / 2, ours.decision_function(NEW))


def test_boosting_of_three_classes_ends_where_it_stood():
    ours = ks.AdaBoostClassifier(8).fit(X, LABELS)
    stages = list(ours.staged_predict(X))
    assert (stages[-1] == LABELS).mean() >= max((stages[0] == LABELS).mean(), 0.8)
    np.testing.assert_array_equal(stages[-1], ours.predict(X))
    scores, shares = ours.decision_function(NEW), ours.predict_proba(NEW)
    own = 1 / (1 + np.exp(-2 * scores))
    close(shares, own / own.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.3, 0.02, 0.0])
def test_the_lasso_is_that_of_scikit_learn(alpha, fit_intercept):
    wide = np.concatenate([X, X**2, np.sin(X)], axis=1)
    ours = ks.Lasso(alpha, fit_intercept=fit_intercept).fit(wide, Y + 1)
    if alpha:
        theirs = linear_model.Lasso(alpha, fit_intercept=fit_intercept, tol=1e-12, max_iter=100000)
    else:
        theirs = linear_model.LinearRegression(fit_intercept=fit_intercept)
    theirs.fit(wide, Y + 1)
    close(ours.coef_, theirs.coef_, 1e-6)
    close(ours.intercept_, theirs.intercept_, 1e-6)
    close(ours.predict(wide), theirs.predict(wide), 1e-6)


# What scikit-learn does with estimators


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_the_examples_are_right(estimator):
    module = sys.modules[type(estimator).__module__]
    for example in doctest.DocTestFinder().find(type(estimator), module=module, globs={}):
        runner = doctest.DocTestRunner()
        runner.run(example)
        assert runner.failures == 0
    assert ">>>" in type(estimator).__doc__


def test_a_grid_over_kernels_and_ridges_in_a_pipeline():
    grid = {"kernelridge__kernel": [kx.RBF(1.0), kx.Linear()], "kernelridge__alpha": [0.1, 10.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), ks.KernelRidge()), grid, cv=3).fit(5 * X, Y)
    best = search.best_params_
    assert isinstance(best["kernelridge__kernel"], kx.RBF)
    assert best["kernelridge__alpha"] == 0.1
    own = make_pipeline(StandardScaler(), ks.KernelRidge(kx.RBF(1.0), alpha=0.1))
    close(search.best_score_, cross_val_score(own, 5 * X, Y, cv=3).mean())
    assert search.best_score_ > 0.5


def test_a_grid_over_a_part_of_a_kernel_is_refused_with_a_word_on_what_to_write():
    with pytest.raises(ValueError, match=r'"kernel": \[kx\.RBF\(0\.5\)'):
        GridSearchCV(ks.KernelRidge(kx.RBF()), {"kernel__lengthscale": [0.5, 1.0]}).fit(X, Y)


def test_workers_compute_in_the_precision_of_their_parent():
    rows = np.random.default_rng(3).uniform(0, 10, size=(60, 1))
    noise = 0.01 * np.random.default_rng(4).normal(size=60)
    pipeline = make_pipeline(StandardScaler(), ks.KernelRidge(kx.RBF(0.3)))
    grid = {"kernelridge__alpha": [1e-9, 1e-6, 1e-3]}
    one, two = (
        GridSearchCV(pipeline, grid, cv=3, n_jobs=jobs).fit(rows, np.sin(rows[:, 0]) + noise).cv_results_["mean_test_score"]
        for jobs in (1, 2)
    )
    # With a ridge of 1e-9 nothing would be left of float32.
    close(one, two, 1e-5)


@pytest.mark.parametrize(
    "estimator",
    [ks.KernelRidge(kx.RBF(0.3), alpha=1e-9), ks.GaussianProcessRegressor(KERNEL, noise=1e-6, optimise=False)],
    ids=lambda e: type(e).__name__,
)
def test_what_is_pickled_in_float64_stays_in_float64(estimator):
    direct = clone(estimator).fit(X, Y)
    answers = direct.predict(NEW)
    bare, fitted = pickle.dumps(estimator), pickle.dumps(direct)
    with jax.enable_x64(False):
        for back in (pickle.loads(fitted), clone(pickle.loads(bare)).fit(X, Y)):
            close(pickle.loads(pickle.dumps(back)).predict(NEW), answers)
    # What an older version pickled has no mark.
    old = type(estimator)()
    old.__setstate__(dict(vars(direct)))
    np.testing.assert_array_equal(old.predict(NEW), answers)


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_copies_pickles_and_names_of_columns(estimator):
    frame = pd.DataFrame(X, columns=["left", "right"])
    fitted = clone(estimator).fit(frame, targets(estimator))
    answers = fitted.predict(frame)
    assert answers.flags.writeable
    back = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(back.predict(frame), answers)
    np.testing.assert_array_equal(clone(fitted).fit(frame, targets(estimator)).predict(frame), answers)
    assert list(fitted.feature_names_in_) == ["left", "right"]
    assert fitted.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.rename(columns={"left": "up"}))
    with pytest.raises(NotFittedError):
        clone(fitted).predict(frame)


# What kernels may be, and what is refused


@pytest.mark.parametrize("kernel", ["rbf", kx.RBF, kernels.RBF(), 3.0], ids=str)
def test_what_is_no_kernel_is_refused_with_a_word_on_what_to_write(kernel):
    estimators = [e for e in ALL if "kernel" in e.get_params()]
    for estimator in estimators:
        with pytest.raises(TypeError, match=rf"{type(estimator).__name__}\.kernel must be a kernax kernel.*kernax\.RBF\("):
            clone(estimator).set_params(kernel=kernel).fit(X, targets(estimator))


@pytest.mark.parametrize(
    ("estimator", "word"),
    [
        (ks.KernelRidge(alpha=-1.0), "alpha"),
        (ks.Lasso(alpha=-1.0), "alpha"),
        (ks.SupportVectorRegressor(C=0.0), "C"),
        (ks.SupportVectorRegressor(epsilon=-0.1), "epsilon"),
        (ks.SupportVectorClassifier(C=-1.0), "C"),
        (ks.AdaBoostClassifier(0), "n_estimators"),
        (ks.GaussianProcessRegressor(noise=-1.0), "noise"),
        (ks.GaussianProcessRegressor(noise=np.ones(3)), "noise"),
        (ks.GaussianProcessRegressor(optimise="all"), "optimise"),
        (ks.GaussianProcessClassifier(restarts=-1), "restarts"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_by_name(estimator, word):
    with pytest.raises(ValueError, match=word):
        estimator.fit(X, targets(estimator))


def test_wrong_weights_and_single_classes_are_refused():
    with pytest.raises(ValueError, match="negative"):
        ks.KernelRidge().fit(X, Y, sample_weight=WEIGHTS - 1)
    with pytest.raises(ValueError, match="zero"):
        ks.KernelRidge().fit(X, Y, sample_weight=0 * WEIGHTS)
    with pytest.raises(ValueError, match=r"one class, .*cow"):
        ks.SupportVectorClassifier().fit(X, LABELS, sample_weight=(LABELS == "cow").astype(float))


def test_a_fit_that_fails_says_what_to_do():
    twice = np.concatenate([X, X])
    with pytest.raises(kx.FailedError, match="positive noise"):
        ks.KernelRidge(kx.RBF(), alpha=0.0).fit(twice, np.concatenate([Y, Y]))
    ours = ks.KernelRidge(kx.RBF()).fit(X, Y).set_params(alpha=0.0)
    with pytest.raises(kx.FailedError, match=r"rougher kernel\.$"):
        ours.fit(twice, np.concatenate([Y, Y]))
    with pytest.raises(NotFittedError):
        ours.predict(NEW)


@pytest.mark.parametrize(
    ("estimator", "word"),
    [
        (ks.GaussianProcessClassifier(optimise="no"), "optimise"),
        (ks.GaussianProcessRegressor(normalize_y="no"), "normalize_y"),
        (ks.Lasso(fit_intercept=np.nan), "fit_intercept"),
    ],
    ids=str,
)
def test_what_is_neither_true_nor_false_is_refused(estimator, word):
    with pytest.raises(TypeError, match=word):
        estimator.fit(X, targets(estimator))


@pytest.mark.parametrize("estimator", [e for e in ALL if "Classifier" not in type(e).__name__], ids=str)
def test_text_as_a_target_of_regression_is_refused(estimator):
    with pytest.raises(TypeError, match=f"y has dtype .*{type(estimator).__name__} takes real numbers only"):
        clone(estimator).fit(X, LABELS)


class PerColumn(kx.kernels.AbstractStationary):
    """An RBF of the mean squared distance over the columns, which empty columns make smaller."""

    lengthscale: kx.parameters.Parameter = kx.positive(default=1.0)

    def of_squared_distance(self, s):
        return jax.numpy.exp(-0.5 * s)

    def pair(self, a, b):
        return super().pair(a, b) ** (1 / a.shape[-1])

    def gram(self, x, z):
        return super().gram(x, z) ** (1 / x.shape[1])


@pytest.mark.parametrize(
    ("kernel", "ignores"),
    [
        (2.0 * kx.Matern32(0.5) + kx.Linear(0.3), True),
        (kx.RationalQuadratic() * kx.Polynomial(degree=2) + kx.Constant() * kx.RBF() ** 2, True),
        (kx.RBF(np.array([0.5, 2.0])), False),
        (kx.Linear(np.array([0.5, 2.0])), False),
        (kx.RBF() + kx.Select(kx.RBF(), 1), False),
        (kx.Warp(kx.RBF(), lambda a: a / a.shape[0]), False),
        (2.0 * PerColumn(0.7), False),
    ],
    ids=str,
)
def test_padding_of_columns_is_for_kernels_that_do_not_see_it(kernel, ignores):
    assert ignores_empty_columns(kernel) == ignores
    if ignores:
        close(kernel(np.pad(X, ((0, 0), (0, 3)))), kernel(X))
    direct = kx.condition(kx.Model(kernel, 0.2), kx.Data(X, Y))
    close(ks.KernelRidge(kernel, alpha=0.2).fit(X, Y).predict(NEW), kx.mean(direct, NEW))


def test_padding_of_rows_is_enough_and_little():
    sizes = np.arange(1, 5000)
    counts = np.array([padded_count(int(n)) for n in sizes])
    assert (counts >= sizes).all()
    assert len(set(counts)) < 55
    assert (counts[256:] <= 1.125 * sizes[256:]).all()


def test_padding_of_many_rows_costs_next_to_nothing():
    assert all(padded_count(n) - n < 128 for n in (100_000, 131_073, 1_000_001))


# Solvers

SOLVERS = [kx.StateSpace(), kx.LowRank(40), kx.Eigh(), kx.CG(), kx.Vecchia(40)]
SERIES = np.linspace(-3, 3, 40)[:, None]
WAVE = np.sin(2 * SERIES[:, 0]) + 0.1 * rng.normal(size=40)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_solver_gives_the_answers_of_the_default(solver):
    """`LowRank` and `Vecchia` with all rows are exact. One column stays one column, which `StateSpace` needs."""
    kernel, new = 1.5 * kx.Matern32(0.8), SERIES[:5] + 0.03
    ridges = [ks.KernelRidge(kernel, alpha=0.1, solver=s).fit(SERIES, WAVE) for s in (None, solver)]
    close(ridges[1].predict(new), ridges[0].predict(new), 1e-5)
    processes = [
        ks.GaussianProcessRegressor(kernel, noise=0.1, optimise=False, solver=s).fit(SERIES, WAVE) for s in (None, solver)
    ]
    close(*(gp.predict(new, return_std=True) for gp in processes[::-1]), 1e-5)
    assert type(processes[1].conditioned_.solver) is type(solver)
    close(kx.mean(processes[1].conditioned_, new), processes[0].predict(new), 1e-5)
    if isinstance(solver, kx.LowRank | kx.Vecchia):
        assert ridges[1].dual_coef_ is None
    else:
        close(ridges[1].dual_coef_, ridges[0].dual_coef_, 1e-4)


def test_a_process_is_fitted_with_its_solver():
    plain, fast = (
        ks.GaussianProcessRegressor(1.0 * kx.Matern32(), solver=s).fit(SERIES, WAVE) for s in (None, kx.StateSpace())
    )
    close(fast.log_marginal_likelihood_value_, plain.log_marginal_likelihood_value_, 1e-4)
    close(fast.kernel_.variance, plain.kernel_.variance, 0.05)
    back = pickle.loads(pickle.dumps(fast))
    np.testing.assert_array_equal(back.predict(SERIES), fast.predict(SERIES))
    copy = clone(fast)
    assert copy.get_params()["solver"] == kx.StateSpace()
    np.testing.assert_array_equal(copy.fit(SERIES, WAVE).predict(SERIES), fast.predict(SERIES))


def test_a_ridge_is_chosen_with_a_solver_that_can_move_to_another():
    plain, fast = (
        ks.KernelRidge(kx.Matern32(0.8), select="loo", solver=s).fit(SERIES, WAVE) for s in (None, kx.StateSpace())
    )
    close(fast.alpha_, plain.alpha_, 1e-4)
    with pytest.raises(TypeError, match=r"CG does not offer here: condition with kx\.Eigh\(\)"):
        ks.KernelRidge(kx.Matern32(0.8), select="loo", solver=kx.CG()).fit(SERIES, WAVE)


@pytest.mark.parametrize("kind", [ks.KernelRidge, ks.GaussianProcessRegressor])
def test_what_is_no_solver_is_refused(kind):
    for wrong in ("cg", kx.CG):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\.solver must be None or a kernax solver"):
            kind(solver=wrong).fit(SERIES, WAVE)
    with pytest.raises(ValueError, match="Give whole solvers instead"):
        kind(solver=kx.LowRank()).set_params(solver__rank=3)


def test_without_float64_answers_are_float32_and_the_user_is_told(monkeypatch):
    monkeypatch.setattr("kernax._arrays._told", set())
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="x is float64"):
            answer = ks.KernelRidge(kx.RBF(0.8), alpha=0.3).fit(X, Y).predict(NEW)
        assert answer.dtype == np.float32
    close(answer, ks.KernelRidge(kx.RBF(0.8), alpha=0.3).fit(X, Y).predict(NEW), 1e-4)
    assert ks.KernelRidge(kx.RBF(0.8)).fit(X.astype(np.float32), Y).predict(NEW).dtype == np.float64
