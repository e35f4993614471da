"""The search: fit structures, change the best ones, fit those, until no change is an improvement."""

import dataclasses
import math
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from kernax._arrays import whole_number
from kernax.data import Data
from kernax.data._host import HostData
from kernax.data._many import windows
from kernax.fitting import Fit, fit_many, score_many
from kernax.fitting._fits import as_result
from kernax.kernels import RBF, AbstractKernel, Linear, Matern32, Periodic, Select
from kernax.means import as_mean
from kernax.model import Model
from kernax.parameters import at_bound, log_prior, parameters, setting
from kernax.search._found import KernelSearch, KernelSearches, Tried, weights_of
from kernax.search._periods import likely_periods
from kernax.search._starts import Bases, Lane, initial_values, lane_of, starting_models
from kernax.search._structures import Change, Structure, changes, first_structures, text
from kernax.selection import loo_negative_log_density
from kernax.solvers import Cholesky, Result, result_name

_PERIODS = 3
"""Periods at the most from which fits start."""
_FIRST = 4
"""Base kernels that are changed in the first round, even if the beam is narrower: most structures have a good pair."""


class Settings(NamedTuple):
    """How to search."""

    bases: Bases
    beam: int
    by: str
    starts: int
    keep: int
    periods: tuple[float, ...] | None
    max_steps: int
    seed: tuple[int, ...]
    progress: bool


def search_kernel(
    data: Data,
    *,
    base: Any = None,
    depth: int = 4,
    beam: int = 2,
    by: str = "bic",
    starts: int = 3,
    keep: int = 5,
    mean: Any = 0.0,
    periods: Any = None,
    max_steps: int = 200,
    key: Key[Array, ""] | None = None,
    progress: bool = False,
) -> KernelSearch:
    """Find a kernel for the data among the sums of products of some base kernels.

    The search begins with each base kernel alone. It then changes the best structures: it adds a base kernel, multiplies a
    summand by one, replaces one, or leaves one out. The changed structures are fitted by maximum likelihood, from where the
    unchanged one ended and from random changes of that. The search ends when all changes of the best structures were tried.

    All structures share one compiled program, so a structure costs its fits only. A fit takes O(n³) a step: use it for up to
    a few thousand rows, or for a part of the rows. Ctrl-C ends the search, and what was found is returned.

    **Arguments:**

    - `data`: the dataset.
    - `base`: the base kernels, as a list, or as a dict by the names that they get in expressions. If `None`: `Linear`,
      `RBF`, `Periodic` and `Matern32` for one column; `Linear` and `RBF` of each column for several. A product with
      `Linear` is 0 where x is 0. For a season that grows, shift x so that its size would be 0 there. The variance of a base
      kernel is not fitted, because each product has its own variance.
    - `depth`: how many base kernels a structure may have, counted as often as they occur.
    - `beam`: how many of the best structures are changed; 1 is a greedy search.
    - `by`: `"bic"`, `-2 log p(y) + k log n` with k fitted parameters; or `"loo"`, the negative log density of each row given
      the others, summed.
    - `starts`: how many fits are made of each structure. The best one counts.
    - `keep`: how many of the best structures are averaged in `KernelSearch.predict`.
    - `mean`: as in `kx.Model`; the default is a level that is fitted.
    - `periods`: periods from which periodic kernels start, if the data has one column: each start takes the next one. The
      highest peaks of the periodogram if `None`.
    - `max_steps`: as in `fit`.
    - `key`: random key for the starts.
    - `progress`: show a progress bar for each round of fits.

    **Returns:**

    A `KernelSearch`. Raises `ValueError` if no structure can be fitted.
    """
    if not isinstance(data, Data):
        raise TypeError(f"search_kernel needs a kx.Data, got {type(data).__name__}: write kx.Data(x, y).")
    searches = search_kernel_many(
        [data],
        base=base,
        depth=depth,
        beam=beam,
        by=by,
        starts=starts,
        keep=keep,
        mean=mean,
        periods=periods,
        max_steps=max_steps,
        key=key,
        progress=progress,
    )
    if searches.failed:
        raise ValueError(f"no structure could be fitted: {searches.failed[0]}.")
    return searches[0]


def search_kernel_many(
    datasets: Any,
    *,
    base: Any = None,
    depth: int = 4,
    beam: int = 2,
    by: str = "bic",
    starts: int = 3,
    keep: int = 5,
    mean: Any = 0.0,
    periods: Any = None,
    max_steps: int = 200,
    key: Key[Array, ""] | None = None,
    progress: bool = False,
) -> KernelSearches:
    """Find a kernel for each of many datasets: `search_kernel`, many times, from one call.

    Each dataset is searched separately, with the same result as if it were alone. The fits of all datasets and structures of
    a round are made by one call of `fit_many`.

    **Arguments:**

    - `datasets`: as in `fit_many`: a list, dict or generator of `(x, y)`, `(x, y, mask)` or `Data`, or `kx.data.groups`.
    - `base`, `depth`, `beam`, `by`, `starts`, `keep`, `mean`, `periods`, `max_steps`, `key`, `progress`: as in
      `search_kernel`.

    **Returns:**

    A `KernelSearches`. Datasets to which no structure could be fitted are in its `failed`.
    """
    every = [data for window in windows(datasets) for data in window]
    if not every:
        raise ValueError("there is no dataset to search a kernel for.")
    if by not in ("bic", "loo"):
        raise ValueError(f'by must be "bic" or "loo", got {by!r}.')
    kernels, names = _named(base, every[0].x)
    settings = Settings(
        bases=Bases(kernels, names, as_mean(mean), whole_number(depth, "depth")),
        beam=whole_number(beam, "beam"),
        by=by,
        starts=whole_number(starts, "starts"),
        keep=whole_number(keep, "keep"),
        periods=_checked_periods(periods),
        max_steps=whole_number(max_steps, "max_steps"),
        seed=tuple(np.asarray(jax.random.key_data(jax.random.key(0) if key is None else key)).ravel().tolist()),
        progress=progress,
    )
    return _searched(settings, every)


def _named(base: Any, x: Any) -> tuple[tuple[AbstractKernel, ...], tuple[str, ...]]:
    """The base kernels and their names. Raises `TypeError` or `ValueError` if they are none."""
    if base is None:
        if not isinstance(x, np.ndarray):
            raise ValueError(
                "the rows are not one array: give the base kernels, such as base=[kx.Select(kx.RBF(), key='x')]."
            )
        if x.shape[1] == 1:
            base = [Linear(), RBF(), Periodic(), Matern32()]  # pyright: ignore[reportCallIssue]
        else:
            base = [Select(kernel(), column) for column in range(x.shape[1]) for kernel in (Linear, RBF)]
    if not isinstance(base, Mapping):
        if isinstance(base, AbstractKernel) or not hasattr(base, "__iter__"):
            raise TypeError(f"base must be a list of kernels, or a dict of kernels by name, got {base!r}.")
        base = list(base)
        names = [_name(kernel) for kernel in base]
        again = {name for name in names if names.count(name) > 1}
        numbered = [f"{name}_{names[:i].count(name) + 1}" if name in again else name for i, name in enumerate(names)]
        base = dict(zip(numbered, base, strict=True))
    if not base:
        raise ValueError("base has no kernel: give at least one.")
    for name, kernel in base.items():
        if not isinstance(kernel, AbstractKernel):
            raise TypeError(f"base kernel {name!r} is not a kernel: {kernel!r}.")
        if kernel.trend() is not None:
            raise ValueError(f"base kernel {name!r} is a spline, and products of splines are not kernels: leave it out.")
    return tuple(base.values()), tuple(map(str, base))


def _name(kernel: Any) -> str:
    if isinstance(kernel, Select):
        place = kernel.columns if kernel.columns is not None else (kernel.key if kernel.key is not None else kernel.axis)
        shown = ", ".join(map(str, place)) if isinstance(place, tuple) else place
        return f"{_name(kernel.kernel)}[{shown}]"
    return type(kernel).__name__.lower()


def _checked_periods(periods: Any) -> tuple[float, ...] | None:
    if periods is None:
        return None
    values = np.atleast_1d(np.asarray(periods, float))
    if values.ndim != 1 or not values.size or not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"periods must be positive numbers, got {periods!r}.")
    return tuple(values.tolist())


class _Entry(NamedTuple):
    """The best fit of one structure."""

    model: Model
    """As an `Expression`, on the host."""
    score: float
    log_likelihood: float
    num_parameters: int
    fit: dict[str, Any]
    """The fields of its `Fit`."""
    seconds: float

    @property
    def is_usable(self) -> bool:
        return math.isfinite(self.score)


@dataclasses.dataclass
class _Path:
    """The search of one dataset."""

    data: HostData
    own: Model
    periods: tuple[float, ...]
    tried: dict[Structure, _Entry] = dataclasses.field(default_factory=dict)
    changed: set[Structure] = dataclasses.field(default_factory=set)

    def best(self, number: int) -> list[Structure]:
        usable = [structure for structure, entry in self.tried.items() if entry.is_usable]
        return sorted(usable, key=lambda structure: self.tried[structure].score)[:number]

    def next_changes(self, settings: Settings, has_parameters: list[bool]) -> list[tuple[Change, Model | None]]:
        """What to fit in the next round, each with the model that it starts from; none at the end of the search."""
        if not self.tried:
            return [(change, None) for change in first_structures(len(has_parameters))]
        wanted: dict[Structure, tuple[Change, Model | None]] = {}
        for structure in self.best(settings.beam if self.changed else max(settings.beam, _FIRST)):
            if structure in self.changed:
                continue
            self.changed.add(structure)
            for change in changes(structure, has_parameters, settings.bases.depth):
                if change.structure not in self.tried:
                    wanted.setdefault(change.structure, (change, self.tried[structure].model))
        return list(wanted.values())


def _searched(settings: Settings, every: list[HostData]) -> KernelSearches:
    bases = settings.bases
    has_parameters = [number > 0 for number in bases.num_free()]
    own = initial_values(bases, [(data.x, data.y, data.mask) for data in every])
    paths = [_Path(data, lane_of(own, i), _periods_of(data, settings)) for i, data in enumerate(every)]
    ended = "no better"
    try:
        while wanted := [(path, *one) for path in paths for one in path.next_changes(settings, has_parameters)]:
            if not _fitted(settings, wanted):
                ended = "interrupted"
                break
    except KeyboardInterrupt:
        if not any(path.tried for path in paths):
            raise
        ended = "interrupted"
    searches: dict[Hashable, KernelSearch] = {}
    failed: dict[Hashable, str] = {}
    for path in paths:
        if path.best(1):
            searches[path.data.key] = _found(settings, path, ended)
        else:
            reasons = [result_name(entry.fit["result"]) for entry in path.tried.values()]
            failed[path.data.key] = reasons[0] if reasons else "interrupted"
    return KernelSearches(searches, failed)


def _periods_of(data: HostData, settings: Settings) -> tuple[float, ...]:
    if not isinstance(data.x, np.ndarray) or data.x.shape[1:] != (1,):
        return ()
    if settings.periods is not None:
        return settings.periods
    y = data.y if data.y.ndim == 1 else data.y[:, 0]
    return tuple(likely_periods(data.x[data.mask, 0], y[data.mask], _PERIODS))


def _fitted(settings: Settings, wanted: list[tuple[_Path, Change, Model | None]]) -> bool:
    """Fit the structures, and enter the best fit of each. Returns whether all of them were finished."""
    bases, lanes, owners = settings.bases, [], []
    for place, (path, change, parent) in enumerate(wanted):
        for start in range(settings.starts):
            period = path.periods[start % len(path.periods)] if path.periods else None
            seed = (*settings.seed, start, *(base for product in change.structure for base in (*product, len(bases.names))))
            lanes.append(Lane(change, parent, path.own, period, seed if start else None))
            owners.append(place)
    every = [wanted[place][0].data for place in owners]
    dtype = every[0].y.dtype
    begun = time.monotonic()
    fits = fit_many(
        starting_models(bases, lanes, dtype),
        [(data.x, data.y, data.mask) for data in every],
        trainable=bases.trainable(),
        max_steps=settings.max_steps,
        progress=settings.progress,
    )
    seconds = time.monotonic() - begun
    unfinished = np.asarray(fits.result == Result.interrupted)
    steps = np.maximum(fits.num_steps, 1)
    seconds = seconds * steps / steps.sum()
    values = np.where(np.isfinite(fits.value) & ~unfinished, fits.value, np.inf).reshape(-1, settings.starts)
    best = np.argmin(values, axis=1) + settings.starts * np.arange(len(wanted))
    # A structure counts if all of its starts were finished: otherwise it might look worse than it is.
    whole: np.ndarray = ~np.any(unfinished.reshape(-1, settings.starts), axis=1)
    likelihoods = _log_likelihoods(fits, best)
    scores = np.full(len(wanted), np.nan)
    if settings.by == "loo":
        models = [lane_of(fits.model, place) for place in best]
        data = [(every[place].x, every[place].y, every[place].mask) for place in best]
        scores = np.asarray(score_many(models, data, loo_negative_log_density))
    numbers = bases.num_free()
    for i, (place, (path, change, _)) in enumerate(zip(best, wanted, strict=True)):
        if not whole[i]:
            continue
        model = lane_of(fits.model, place)
        free = sum(numbers[base] for product in change.structure for base in product) + len(change.structure)
        free += 1 + sum(leaf.size for _, leaf in parameters(model.mean))  # the noise
        rows = int(path.data.mask.sum()) * math.prod(path.data.y.shape[1:])
        bic = -2.0 * float(likelihoods[i]) + free * math.log(max(rows, 1))
        score = bic if settings.by == "bic" else float(scores[i])
        ours = slice(i * settings.starts, (i + 1) * settings.starts)
        fit = {
            "value": fits.value[place],
            "result": as_result(np.asarray(fits.result._value[place])),
            "num_steps": fits.num_steps[place],
            "gradient_norm": fits.gradient_norm[place],
            "jitter": fits.jitter[place],
            "start_values": fits.value[ours],
        }
        path.tried[change.structure] = _Entry(
            model, score if math.isfinite(score) else math.inf, float(likelihoods[i]), free, fit, float(seconds[ours].sum())
        )
    return bool(whole.all())


def _log_likelihoods(fits: Any, best: np.ndarray) -> np.ndarray:
    """`log p(y)`: the values of the fits contain the priors."""
    models = lane_of(fits.model, best)
    example = lane_of(fits.model, 0)
    if all(setting(example, path).prior is None for path, _ in parameters(example)):
        return -fits.value[best]
    return -fits.value[best] - np.asarray(eqx.filter_vmap(log_prior)(models))


def _found(settings: Settings, path: _Path, ended: str) -> KernelSearch:
    bases, order = settings.bases, path.best(len(path.tried))
    plain = {structure: bases.plain(path.tried[structure].model, structure) for structure in order}
    tried = tuple(
        Tried(
            expression=text(structure, bases.names),
            score=entry.score,
            log_likelihood=entry.log_likelihood,
            num_parameters=entry.num_parameters,
            model=plain[structure],
            result=result_name(entry.fit["result"]),
            seconds=entry.seconds,
        )
        for structure, entry in ((structure, path.tried[structure]) for structure in order)
    )
    kept, data = order[: settings.keep], Data(path.data.x, path.data.y, path.data.mask)
    return KernelSearch(
        by=settings.by,
        tried=tried,
        fits=tuple(_as_fit(plain[structure], path.tried[structure].fit, data) for structure in kept),
        weights=weights_of(np.array([path.tried[structure].score for structure in kept]), settings.by),
        ended=ended,
        data=data,
        lanes=tuple(path.tried[structure].model for structure in kept),
    )


def _as_fit(model: Model, fields: dict[str, Any], data: Data) -> Fit[Model]:
    fields = jax.device_put(fields)
    history = jnp.zeros(0, fields["value"].dtype)
    return Fit(model=model, at_bound=at_bound(model), history=history, data=data, solver=Cholesky(), **fields)
