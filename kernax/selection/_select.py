"""Choosing the ridge by any criterion."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.model import Conditioned, Model, condition, recondition
from kernax.model._checks import check_model_and_data, model_of
from kernax.noises import is_common
from kernax.selection._discrepancy import discrepancy, mean_squared_residual
from kernax.selection._kfold import Folds, as_folds, fold_mse, kfold_mse, mean_over_folds
from kernax.selection._l_curve import l_curve
from kernax.selection._leave_one_out import loo_mse
from kernax.selection._likelihood import negative_log_marginal_likelihood
from kernax.selection._ridge_path import as_ridges, check_one_noise, increasing_ridges
from kernax.selection._search import interior_minimum
from kernax.selection._smoother import gcv
from kernax.solvers import AbstractSolver, Eigh, Result, check_memory, is_usable, result_name, throw_unless

Selector = Literal["loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy"]
Rule = Literal["best_mean_score", "mean_of_best"]
SELECTORS: tuple[Selector, ...] = get_args(Selector)


class RidgeChoice(eqx.Module):
    """A chosen ridge, with the criterion along a grid of ridges and the status."""

    by: str = eqx.field(static=True)
    """The criterion."""
    ridge: Float[Array, ""]
    """The chosen ridge; NaN if there is none (`result` says why)."""
    value: Float[Array, ""]
    """The criterion at the chosen ridge."""
    ridges: Float[Array, " l"]
    """The grid of ridges."""
    values: Float[Array, " l"]
    """The criterion along the grid: a score to be minimised; the curvature of the L-curve; the mean squared residual for the
    discrepancy principle, which should equal the variance of the noise."""
    conditioned: Conditioned
    """The model with the chosen ridge, conditioned on the data."""
    result: Any
    """How the choice ended."""
    target: Float[Array, ""] | None = None
    """The variance of the noise, for the discrepancy principle."""

    @property
    def model(self) -> Model:
        """The model with the chosen ridge as its noise."""
        return self.conditioned.model

    def __repr__(self):
        if not is_concrete(self.ridge) or self.ridge.ndim:
            return f"RidgeChoice(by={self.by!r})"
        return (
            f"RidgeChoice(by={self.by!r}, ridge={float(self.ridge):.4g}, value={float(self.value):.4g}, "
            f"{result_name(self.result)})"
        )


def select_ridge(
    model: Model | Any,
    data: Data,
    by: Selector | Callable[[Conditioned], Array] = "loo",
    *,
    ridges: Any = None,
    folds: Any = 10,
    key: Key[Array, ""] | None = None,
    rule: Rule = "best_mean_score",
    noise_variance: Any = None,
    solver: AbstractSolver | None = None,
    throw: bool = True,
) -> RidgeChoice:
    """Choose the ridge (noise) of a model from one factorisation. All other parameters are fixed.

    If the best ridge is at an end of the grid, it is returned with the status `at_edge`. A criterion that is constant over
    the grid chooses no ridge, and the status is `flat`. Works under `jit` and `vmap`; the choice is differentiable in the
    kernel's parameters and the data.

    **Arguments:**

    - `model`: the model, or a `kx.Fit` of one. Bounds that `with_bijector` put on the noise are ignored: give a grid within
      them.
    - `data`: the dataset.
    - `by`: the criterion. `loo`, `gcv`, `kfold`, `likelihood` minimise `loo_mse`, `gcv`, `kfold_mse` and
      `negative_log_marginal_likelihood`; `l_curve` takes the corner of the L-curve; `discrepancy` the ridge whose mean
      squared residual is `noise_variance`. A function of a `Conditioned` that returns a scalar is minimised.
    - `ridges`: a grid around the best ridge, which is then found between its points. `default_ridges` if not given.
    - `folds`, `key`: for `kfold`; see `kfold_residuals`.
    - `rule`: how `kfold` combines the folds: `best_mean_score` or `mean_of_best`, the mean of the folds' best ridges.
    - `noise_variance`: for `discrepancy`; the model's own noise if not given.
    - `solver`: one that can move to another noise: `kx.Eigh()` (if not given), `LowRank`, `StateSpace`, `Kronecker`.
    - `throw`: raise `FailedError` if there is no ridge to choose; with `False` the status is in `result`.

    **Returns:**

    A `RidgeChoice`.
    """
    model = model_of(model)
    check_model_and_data(model, data, "select_ridge")
    if by not in SELECTORS and not callable(by):
        raise ValueError(f"by must be one of {', '.join(SELECTORS)}, or a function of a Conditioned, got {by!r}.")
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}.")
    c = spectral(model, data, "select_ridge", solver)
    variance = model.noise if noise_variance is None else noise_variance
    return choose(c, by, ridges=ridges, folds=folds, key=key, rule=rule, noise_variance=variance, throw=throw)[0]


def spectral(model: Model, data: Data, caller: str, solver: AbstractSolver | None = None) -> Conditioned:
    """The model conditioned so that its noise can be moved, with ridge 1 in place of its own, which may be one that fails.

    The status is not checked: what follows is compiled while the decomposition runs, and has a status of its own.
    """
    if not is_common(model.noise):
        raise ValueError(f"{caller} chooses one noise for all rows; this model has one per row.")
    solver = Eigh() if solver is None else solver
    if isinstance(solver, AbstractSolver):  # `condition` refuses anything else
        check_memory(model, data, solver, caller, ridges=True)
    anywhere = eqx.tree_at(lambda m: m.noise, model, jnp.ones_like(model.noise))
    return condition(anywhere, data, solver, throw=False)


def choose(
    c: Conditioned, *bys: Any, ridges: Any, folds: Any, key: Any, rule: Rule, noise_variance: Any, throw: bool
) -> list[RidgeChoice]:
    """`select_ridge` by one or several criteria, from an existing factorisation."""
    check_one_noise(c)
    ridges = None if ridges is None else as_ridges(ridges, c.data.dtype)
    # One program for all criteria that cost O(n²) a ridge.
    quick = tuple(by for by in bys if by not in ("kfold", "l_curve", "discrepancy"))
    minima = dict(zip(quick, _minima(c, ridges, quick, None, rule), strict=True)) if quick else {}
    choices = []
    for by in bys:
        target = None
        if by == "discrepancy":
            root = discrepancy(c, noise_variance, throw=throw)
            found = Found(root.ridge, *_residuals(c, ridges, root.ridge), root.result)
            target = jnp.asarray(noise_variance, c.data.dtype)
        elif by == "l_curve":
            curve = l_curve(c, ridges, throw=throw)
            found = Found(curve.corner, curve.corner_curvature, curve.ridges, curve.curvature, curve.result)
        elif by == "kfold":
            found = _minima(c, ridges, ("kfold",), as_folds(folds, c.data, key), rule)[0]
        else:
            found = minima[by]
        if throw:
            throw_unless(("singular", "at_edge"), found.result, f"choosing the ridge by {_name(by)}")
        here = _conditioned_at(c, found.ridge)
        choices.append(
            RidgeChoice(_name(by), found.ridge, found.value, found.ridges, found.values, here, found.result, target)
        )
    return choices


class Found(NamedTuple):
    """What a criterion says: as in `RidgeChoice`."""

    ridge: Float[Array, ""]
    value: Float[Array, ""]
    ridges: Float[Array, " l"]
    values: Float[Array, " l"]
    result: Any


@compiled
def _conditioned_at(c: Conditioned, ridge: Array) -> Conditioned:
    return recondition(c, noise=ridge)


@compiled
def _residuals(c: Conditioned, ridges: Array | None, ridge: Array) -> tuple[Array, Array, Array]:
    """The mean squared residual at the ridge that was found, the grid, and the mean squared residual along it."""
    ridges = increasing_ridges(c, ridges)
    values = _along(mean_squared_residual, c, jnp.append(ridges, ridge))
    return values[-1], ridges, values[:-1]


@compiled
def _minima(c: Conditioned, ridges: Array | None, bys: tuple[Any, ...], table: Folds | None, rule: Rule) -> list[Found]:
    """Several criteria are compiled together: their search is one loop, in which all are computed and one is used."""
    ridges = increasing_ridges(c, ridges)
    known: dict[str, Any] = {
        "loo": loo_mse,
        "gcv": gcv,
        "likelihood": negative_log_marginal_likelihood,
        "kfold": lambda c: kfold_mse(c, table),
    }
    criteria = [known.get(by, by) for by in bys]

    def scores(c: Conditioned) -> Float[Array, " k"]:
        return jnp.stack([criterion(c) for criterion in criteria])

    values, jitter = _along(lambda c: (scores(c), c.jitter), c, ridges, folds=table is not None)
    # Where jitter was needed, the criterion is that of the jitter and not of the ridge.
    candidates = jnp.where(((jitter > 0) & jnp.any(jitter == 0))[:, None], jnp.inf, values)

    def lowest(number: Array, values: Array, candidates: Array, floor: Array) -> tuple[Array, Array, Any]:
        """Ridge, score and status by one criterion."""
        if table is not None and rule == "mean_of_best":
            ridge, inside = _mean_of_best(c, ridges, table)
        else:
            ridge, inside = _best(lambda c: scores(c)[number], c, ridges, candidates)
        is_flat = _is_flat(values, floor) & (ridges[0] < ridges[-1])
        here = recondition(c, noise=jnp.where(is_flat, jnp.nan, ridge))
        value = scores(here)[number]
        # A factor without a score has lost too many rows, unless the score has left the range of its type.
        scoreless = Result.where(jnp.isnan(value), Result.too_few_rows, Result.nonfinite)
        result = Result.where(inside, Result.successful, Result.at_edge)
        result = Result.where(jnp.isfinite(value), result, scoreless)
        result = Result.where(is_usable(here.result), result, Result.where(is_flat, Result.flat, here.result))
        chosen = (result == Result.successful) | (result == Result.at_edge)
        return jnp.where(chosen, ridge, jnp.nan), value, result

    # Errors that are mere rounding are as flat as errors that do not change. A likelihood has no such floor.
    rounding = (_ROUNDINGS * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(c.data.y))) ** 2
    floors = jnp.stack([rounding if by in ("loo", "gcv", "kfold") else -jnp.inf * jnp.ones_like(rounding) for by in bys])
    if len(bys) == 1:
        # Under `vmap` the search would choose again in every turn which of its numbers still move: more to compile.
        alone = lowest(jnp.asarray(0), values[:, 0], candidates[:, 0], floors[0])
        found = jax.tree.map(lambda a: a[None], alone)
    else:
        found = jax.vmap(lowest)(jnp.arange(len(bys)), values.T, candidates.T, floors)

    def one(number: int) -> Found:
        ridge, value, result = jax.tree.map(lambda a: a[number], found)
        return Found(ridge, value, ridges, values[:, number], result)

    return [one(number) for number in range(len(bys))]


def _name(by: Any) -> str:
    return by if isinstance(by, str) else getattr(by, "__name__", type(by).__name__)


_ROUNDINGS = 100


def _is_flat(values: Array, floor: Array) -> Array:
    """Whether the criterion is the same at several ridges but for rounding, or nowhere above the floor."""
    values = jax.lax.stop_gradient(values)
    known = jnp.isfinite(values)
    high, low = jnp.max(jnp.where(known, values, -jnp.inf)), jnp.min(jnp.where(known, values, jnp.inf))
    largest = jnp.maximum(jnp.abs(high), jnp.abs(low))
    flat = (high - low <= _ROUNDINGS * jnp.finfo(values.dtype).eps * largest) | (high <= floor)
    return flat & jnp.all(known)


def _best(criterion: Callable[[Conditioned], Array], c: Conditioned, ridges: Array, values: Array) -> tuple[Array, Array]:
    """The ridge with the lowest criterion, and whether it lies inside the grid."""
    place, inside, lowest = interior_minimum(lambda t: criterion(recondition(c, noise=jnp.exp(t))), jnp.log(ridges), values)
    return jnp.where(inside, jnp.exp(place), ridges[lowest]), inside


def _mean_of_best(c: Conditioned, ridges: Array, table: Folds) -> tuple[Array, Array]:
    """Every fold's own best ridge, averaged, and whether all of them lie inside the grid."""

    def of_fold(fold: tuple[Array, Array]) -> tuple[Array, Array]:
        one = Folds(fold[0][None], fold[1][None])

        def score(c: Conditioned) -> Array:
            return fold_mse(c, one)[0]

        return _best(score, c, ridges, _along(score, c, ridges, folds=True))

    ridge, inside = jax.lax.map(of_fold, (table.rows, table.filled))
    return mean_over_folds(ridge, table), jnp.all(inside | (table.sizes == 0))


def _along(criterion: Callable[[Conditioned], Any], c: Conditioned, ridges: Array, *, folds: bool = False) -> Any:
    # Folds at all ridges at once would need as many n × n matrices; the rest shares the eigenvectors in one product.
    along = jax.lax.map if folds else lambda function, values: jax.vmap(function)(values)
    return along(lambda ridge: criterion(recondition(c, noise=ridge)), ridges)
