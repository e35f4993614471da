"""The likelihoods of targets that are classes or counts or have outliers, and their predictions."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from kernax import learners
from kernax._spelling import nearest
from kernax.data import Data
from kernax.expressions import Built, build_kernel, has_level
from kernax.model import condition
from kernax.reports import Entry
from kernax.tables._column import Column
from kernax.tables._read import TableError

NORMAL = "normal"
CLASSES = ("bernoulli", "softmax")
COUNTS = ("poisson", "negative-binomial")
LIKELIHOODS = (NORMAL, *CLASSES, *COUNTS, "student-t")
_FOLDS = 5


def role_of(likelihood: str | None) -> str:
    """What the target may be with this likelihood; `None` decides by the target. See `fitted_column`."""
    if likelihood is None:
        return "any"
    if likelihood not in LIKELIHOODS:
        known = f"{nearest(likelihood, LIKELIHOODS)} They are {', '.join(LIKELIHOODS)}."
        raise TableError(f"there is no likelihood {likelihood!r}.{known}")
    return "classes" if likelihood in CLASSES else "counts" if likelihood in COUNTS else "number"


def chosen_likelihood(likelihood: str | None, target: Column, source: str) -> str:
    """The likelihood of a target that has been read. Raises `TableError` if the one given does not suit."""
    classes = len(target.levels)
    if likelihood == "bernoulli" and classes != 2:
        raise TableError(f"{source}: {target.name!r} has {classes} classes, and bernoulli is for 2: write softmax.")
    return likelihood or ({0: NORMAL, 2: "bernoulli"}.get(classes, "softmax"))


def built_with_level(
    kernel: str, columns: Sequence[Column], likelihood: str, target_scale: float = 1.0
) -> tuple[str, Built]:
    """The expression and its kernel, for classes and counts with a constant, which is their level. Numbers are centred."""
    built = build_kernel(kernel, columns, target_scale=target_scale)
    if likelihood not in (*CLASSES, *COUNTS) or has_level(built.kernel):
        return kernel, built
    kernel = f"{kernel} + constant"
    return kernel, build_kernel(kernel, columns, target_scale=target_scale)


def loss_of(likelihood: str, target: Column) -> Any:
    """The likelihood as kernax's learners have it."""
    match likelihood:
        case "bernoulli":
            return learners.Bernoulli()
        case "softmax":
            return learners.Softmax(len(target.levels))
        case "poisson":
            return learners.Poisson()
        case "negative-binomial":
            return learners.NegativeBinomial()
    return learners.StudentT(scale=0.3)  # pyright: ignore[reportArgumentType]  # of standardised targets


def class_probabilities(c: Any, rows: Any) -> np.ndarray:
    """The probability of each class, in a column each."""
    found = np.asarray(c.probability(rows), np.float64)
    return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found


def log_shares(shares: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The logarithm of the probability of each row's own class."""
    return np.log(np.maximum(shares[np.arange(len(codes)), codes.astype(int)], 1e-15))


def latent_predictions(c: Any, target: Column, rows: Any, level: float, *, noisy: bool) -> dict[str, np.ndarray]:
    """Probabilities of classes, or the mean and the ends of the interval in the target's units."""
    if target.is_category:
        shares = class_probabilities(c, rows)
        named = {f"p_{name}": shares[:, i] for i, name in enumerate(target.levels)}
        return {"class": np.array(target.levels, object)[shares.argmax(axis=1)], **named}
    mean = target.restored(np.asarray(c.mean(rows), np.float64))
    if noisy:
        ends = [np.asarray(end, np.float64) for end in c.interval(rows, level)]
    else:
        latent = c.latent(rows)
        reach = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(np.asarray(latent.variance))
        # The mean rises with f, so that quantiles of f become quantiles of it.
        ends = [np.asarray(c.model.likelihood.mean(latent.mean + sign * reach), np.float64) for sign in (-1, 1)]
    return {"mean": mean, "lower": target.restored(ends[0]), "upper": target.restored(ends[1])}


def folds_of(n: int, folds: int, seed: int, classes: np.ndarray | None) -> np.ndarray:
    """The fold of each row, shuffled; of each class the same share."""
    if not 2 <= folds <= n:
        raise TableError(f"{n} rows can be divided into 2 to {n} folds, not {folds}.")
    order = np.random.default_rng(seed).permutation(n)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    labels = np.empty(n, int)
    labels[order] = np.arange(n) % folds
    return labels


def held_out_entries(fit: Any, target: Column) -> list[Entry]:
    """How rows are predicted by a model conditioned on the others, for a report; parameters stay as they were fitted."""
    data, y = fit.data, np.asarray(fit.data.y, np.float64)
    folds = min(_FOLDS, data.n)
    labels = folds_of(data.n, folds, 0, y if target.is_category else None)
    density, right = np.full(data.n, np.nan), np.zeros(data.n, bool)
    for fold in range(folds):
        c: Any = condition(fit.model, Data(data.x, data.y, labels != fold), fit.solver, throw=False)
        out = labels == fold
        if target.is_category:
            shares = class_probabilities(c, fit.data.x)[out]
            density[out], right[out] = log_shares(shares, y[out]), shares.argmax(axis=1) == y[out]
        else:
            density[out] = np.asarray(c.log_density(data.x, data.y), np.float64)[out] - np.log(target.scale)
    how = f"({folds} folds, parameters as fitted)"
    mean = float(np.mean(density))
    if not target.is_category:
        return [Entry("cross-validated log density", f"{mean:.4g} a row {how}", mean)]
    share, most = float(np.mean(right)), float(np.bincount(y.astype(int)).max() / data.n)
    beside = f"; the most frequent class has {100 * most:.1f} %"
    return [
        Entry("cross-validated accuracy", f"{100 * share:.1f} % {how}{beside}", share),
        Entry("cross-validated log loss", f"{-mean:.4g} {how}", -mean),
    ]
