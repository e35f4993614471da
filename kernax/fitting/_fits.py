"""What many fits give back."""

import dataclasses
import functools
import pickle
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, overload

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import is_concrete
from kernax._fingerprints import described
from kernax.fitting._fitted import Ended, Fit
from kernax.kernels import parameter_names
from kernax.parameters import parameters
from kernax.solvers import Result, result_name

AnyArray = Array | np.ndarray


class Settings(NamedTuple):
    """What was minimised, over what, and how."""

    objective: Any
    solver: Any
    trainable: Any
    optimiser: Any

    def __reduce__(self):
        # What cannot be pickled (a lambda) is not worth losing the fits: `refit_many` then wants it again.
        return Settings, tuple(
            part if _can_be_pickled(part) else Unsaved(f"{name} {described(part)}") for name, part in self._asdict().items()
        )


class Unsaved:
    """What stands for a setting of a fit that could not be saved or pickled, such as a lambda."""

    def __init__(self, what: str):
        self.what = what

    def __repr__(self):
        return f"<{self.what}, which was not saved with the fits: give it again>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise ValueError(f"the {self.what} was not saved with these fits: fit again with kx.fit_many.")


def _can_be_pickled(thing: Any) -> bool:
    try:
        pickle.dumps(thing)
    except Exception:
        return False
    return True


NUM_FACTS = 8
"""How many columns of a table of fits say how each ended, before those of the parameters."""


class Fits(eqx.Module):
    """Many fits. All arrays are NumPy arrays whose first axis runs over the datasets, in the order in which they were given.

    `fits[3]` is a `Fit`, and so is `fits["name"]` if the datasets have names; `fits[fits.failed]`, `fits[:10]`,
    `fits[[4, 7]]` and `fits[["name", "other"]]` are `Fits`. An integer is always a position; use `fits.of(name)` for
    datasets whose names are integers or dates. `fits.model` is one stacked tree, for `jax.vmap`.
    """

    model: Any
    """The fitted models, as one tree whose arrays have a leading axis."""
    value: Float[AnyArray, " b"]
    """The objective minus the log-prior of each fit."""
    result: Any
    """How each fit ended."""
    num_steps: Int[AnyArray, " b"]
    """The number of evaluations of the objective and its gradient, from the best start of each fit."""
    gradient_norm: Float[AnyArray, " b"]
    """The largest component of each gradient, in the unconstrained space."""
    at_bound: Any
    """A tree of booleans: which parameters ended at an end of their range."""
    jitter: Float[AnyArray, " b"]
    """The jitter that was added to the diagonal in each fit."""
    num_rows: Int[AnyArray, " b"]
    """The number of rows that count, for each dataset."""
    start_values: Float[AnyArray, "b starts"]
    """The final value of each start; ∞ for a start that failed."""
    keys: tuple[Hashable, ...] = eqx.field(static=True)
    """The names of the datasets: the values of a group column or the keys of a dict, else their numbers."""
    is_named: bool = eqx.field(static=True)
    """Whether the datasets were given with names."""
    settings: "Settings" = eqx.field(static=True)
    """The options of the fit, which `refit_many` uses again."""

    def __len__(self):
        return len(self.keys)

    @overload
    def __getitem__(self, which: int | str) -> Fit[Any]: ...

    @overload
    def __getitem__(self, which: slice | list | np.ndarray | Array) -> "Fits": ...

    @overload
    def __getitem__(self, which: Any) -> Any: ...

    def __getitem__(self, which):
        numbers = self.numbers(which)
        arrays, rest = eqx.partition(self, eqx.is_array)
        if isinstance(numbers, np.ndarray):
            part = eqx.combine(jax.tree.map(lambda leaf: leaf[numbers], arrays), rest)
            return dataclasses.replace(part, keys=tuple(self.keys[i] for i in numbers))
        part = eqx.combine(jax.device_put(jax.tree.map(lambda leaf: leaf[numbers], arrays)), rest)
        return Fit(**{name: getattr(part, name) for name in Ended._fields}, history=part.value[None][:0])

    def of(self, name: Hashable) -> Fit[Any]:
        """The fit of the dataset with this name, which may have any type."""
        return self[self._number_of(name)]

    def numbers(self, which: Any) -> Any:
        """What is chosen by numbers, masks, slices or names (text, tuples), as one number or an array of them."""
        if isinstance(which, str | tuple):
            return self._number_of(which)
        if isinstance(which, slice):
            return np.arange(len(self))[which]
        if isinstance(which, list) and which and all(isinstance(name, str | tuple) for name in which):
            return np.array([self._number_of(name) for name in which])
        which = np.asarray(which)
        if which.dtype.kind in "UO" and which.ndim == 1:
            return np.array([self._number_of(name) for name in which.tolist()])
        which = which.astype(int) if which.size == 0 else which
        if which.ndim:
            return np.arange(len(self))[which]
        if which.dtype.kind not in "iu":
            raise TypeError(f"choose a fit by its position or its name; if names are not text, write fits.of({which}).")
        if not -len(self) <= which < len(self):
            raise IndexError(f"index {which} is out of range for {len(self)} fits.")
        return int(which) % len(self)

    def _number_of(self, name: Hashable) -> int:
        if name not in self._places:
            raise KeyError(f"there is no dataset called {name!r}.")
        return self._places[name]

    @functools.cached_property
    def _places(self) -> dict[Hashable, int]:
        """The first dataset of each name."""
        backwards = range(len(self) - 1, -1, -1)
        return {self.keys[place]: place for place in backwards}

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def failed(self) -> Bool[np.ndarray, " b"]:
        """Which fits did not end `successful`. If their value is finite, they still hold the best point found."""
        return np.asarray(self.result != Result.successful)

    @property
    def result_names(self) -> np.ndarray:
        """The name of every result, as text."""
        values = np.asarray(self.result._value)
        known = {int(v): result_name(as_result(np.asarray(v))) for v in np.unique(values)}
        return np.array([known[int(v)] for v in values], dtype=object)

    def table(self) -> dict[str, np.ndarray]:
        """A dict of columns with one entry for each dataset, for example for `pandas.DataFrame(fits.table())`.

        The columns are names, numbers of rows, the status of each fit, the parameters that ended at a bound, and every
        parameter by name (see [`kernax.kernels.parameter_names`][]), with one column for each entry of a vector. Matrices
        are left out.
        """
        names, bounds = np.empty(len(self), object), np.full(len(self), "", dtype=object)
        for number, key in enumerate(self.keys):  # one by one: a name may be a tuple
            names[number] = key
        called = parameter_names(self.model)
        for path, flags in jax.tree.leaves_with_path(eqx.filter(self.at_bound, eqx.is_array)):
            hit = np.asarray(flags).any(axis=tuple(range(1, flags.ndim)))
            bounds[hit] += np.where(bounds[hit] == "", "", ", ") + called[path]
        columns = {
            "dataset": names,
            "rows": np.asarray(self.num_rows),
            "result": self.result_names,
            "value": np.asarray(self.value),
            "num_steps": np.asarray(self.num_steps),
            "gradient_norm": np.asarray(self.gradient_norm),
            "jitter": np.asarray(self.jitter),
            "at_bound": bounds,
        }
        for path, leaf in parameters(self.model):
            name, entries = called[path], np.asarray(leaf)
            if entries.ndim == 1:
                columns[name] = entries
            elif entries.ndim == 2:
                columns |= {f"{name}[{i}]": entries[:, i] for i in range(entries.shape[1])}
        return columns

    def __repr__(self):
        if not is_concrete(self.value):
            return f"Fits({self.model!r})"
        ended = ", ".join(f"{count} {name}" for name, count in Counter(self.result_names).most_common())
        return f"Fits({len(self)} datasets: {ended or 'none'})"


def concatenate(fits: Iterable[Fits]) -> Fits:
    """Join the fits of several calls, in the order given.

    **Arguments:**

    - `fits`: `Fits` of the same model, data type and number of starts. Settings may differ; those of the first are kept.

    **Returns:**

    `Fits`. Datasets keep their names; if none of them has one, they are numbered again.
    """
    fits = list(fits)
    if not fits or not all(isinstance(one, Fits) for one in fits):
        raise TypeError("concatenate needs a list of kx.fitting.Fits that is not empty.")
    first = fits[0]
    if len({one.value.dtype for one in fits}) > 1:
        raise ValueError("some of the fits are float32 and others float64: fit all of them in one floating type.")
    nameless = [dataclasses.replace(one, keys=(), settings=first.settings, is_named=False) for one in fits]
    if len({jax.tree.structure(one) for one in nameless}) > 1:
        raise ValueError("the fits are of different models: they can be kept in a list, but not as one.")
    if len({one.start_values.shape[1] for one in fits}) > 1:
        raise ValueError("the fits have different numbers of starts: fit with the same restarts=.")
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *nameless)
    is_named = any(one.is_named for one in fits)
    keys = [key for one in fits for key in one.keys] if is_named else range(sum(map(len, fits)))
    return dataclasses.replace(whole, keys=tuple(keys), is_named=is_named, settings=first.settings)


def as_result(values: Any) -> Any:
    """Numbers as results."""
    return jax.tree.map(lambda _: values, Result.successful)
