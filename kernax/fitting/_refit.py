"""Fits that did not succeed, tried again."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kernax.data._host import HostData
from kernax.fitting._engine import windows_for
from kernax.fitting._fits import Fits
from kernax.fitting._many import fit_many
from kernax.fitting._models import Models


def refit_many(fits: Fits, datasets: Any, *, where: Any = None, model: Any = None, **options: Any) -> Fits:
    """Try some fits again, and keep the better of both: the one with the lower value.

    Most useful with `restarts`, `initialise=True`, another optimiser or more steps.

    **Arguments:**

    - `fits`: of an earlier call of `fit_many`.
    - `datasets`: all datasets of that call. (If the data has changed, values cannot be compared.)
    - `where`: which to try again: a mask, numbers or names; those that `failed` if `None`.
    - `model`: where to start: one model for all, one for each fit that is tried again, or one for each dataset (such as
      other `Fits`); where the fits ended if `None`.
    - `options`: those of `fit_many`. Objective, solver, optimiser and what is trainable are those of the first call unless
      given.

    **Returns:**

    All `Fits`, in the same order.
    """
    numbers = np.atleast_1d(fits.numbers(fits.failed if where is None else where))
    options = fits.settings._asdict() | options
    if options["objective"] is not fits.settings.objective:
        raise ValueError("values of different objectives cannot be compared: refit with the same, or call kx.fit_many.")
    if not len(numbers):
        return fits
    # By name, or by the number in the first call, which is the name of what has none: the fits may be a selection.
    wanted = {fits.keys[number]: number for number in numbers}
    found: dict[int, HostData] = {}
    chosen = set(wanted.values())
    for window in windows_for(options.get("executor"), Models.of(fits if model is None else model), datasets):
        for data in window:
            number = data.number if fits.is_named and not data.is_named else wanted.get(data.key, -1)
            if number in chosen:
                found[number] = data
    if len(found) != len(numbers):
        raise ValueError(
            "some of the datasets to fit again are missing: give the same datasets as before (a generator can be read "
            "only once)."
        )
    some = [found[number] for number in numbers]
    before = fits[numbers]
    after = fit_many(before if model is None else _chosen(model, fits, numbers), some, **options)
    was, now = np.asarray(before.value), np.asarray(after.value)
    is_better = (now <= was) | ~np.isfinite(was)
    if fits.start_values.shape[1] != after.start_values.shape[1]:
        # Another number of starts: what each arrived at is only known of the winners.
        fits, after = (eqx.tree_at(lambda f: f.start_values, f, f.value[:, None]) for f in (fits, after))

    def merged(old: Any, new: Any) -> Any:
        if not eqx.is_array(old):
            return old
        both = np.array(old)
        both[numbers[is_better]] = new[is_better]
        return both

    nameless = [dataclasses.replace(some, keys=(), settings=after.settings) for some in (fits, after)]
    return dataclasses.replace(jax.tree.map(merged, *nameless), keys=fits.keys)


def _chosen(model: Any, fits: Fits, numbers: np.ndarray) -> Any:
    """Of models for all datasets, those of the chosen ones."""
    if isinstance(model, Fits):
        is_for_all = len(model) == len(fits) and model.keys != tuple(fits.keys[number] for number in numbers)
        return model[numbers] if is_for_all else model
    is_for_all = isinstance(model, Sequence) and len(model) == len(fits) != len(numbers)
    return [model[number] for number in numbers] if is_for_all else model
