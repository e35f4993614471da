"""One model for each of thousands of datasets."""

import os
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Key

from kernax._bars import many_bar
from kernax.data import Groups
from kernax.data._many import windows
from kernax.fitting._blocks import Spec
from kernax.fitting._checkpoint import Checkpoint
from kernax.fitting._collect import Collector
from kernax.fitting._engine import check_executor, run_blocks, windows_for
from kernax.fitting._fit_block import FitWork
from kernax.fitting._fits import Fits, Settings
from kernax.fitting._models import Models, check_datasets, solver_for_many
from kernax.fitting._plan import Room, blocks_of, is_at_once, shapes_for
from kernax.fitting._problem import Objective
from kernax.fitting._request import Request
from kernax.fitting._shared import fit_shared
from kernax.fitting._stochastic import Stochastic
from kernax.model import AbstractModel
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver

_MATRICES = 10
"""How many temporary matrices of an evaluation are alive at the same time, at the most."""


def fit_many(
    model: Any,
    datasets: Any,
    *,
    objective: Objective = negative_log_marginal_likelihood,
    optimiser: optax.GradientTransformation | None = None,
    solver: AbstractSolver | None = None,
    max_steps: int = 500,
    gradient_tolerance: float | None = None,
    value_tolerance: float | None = None,
    patience: int | None = None,
    trainable: AbstractModel | None = None,
    initialise: bool = False,
    restarts: int = 0,
    key: Key[Array, ""] | None = None,
    shared: bool = False,
    memory_budget: float = 2**30,
    executor: Executor | None = None,
    devices: Sequence[Any] | None = None,
    together: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
    gather: bool = True,
) -> Fits | Any:
    """Fit the model to each of many datasets separately, in one call.

    A dataset that is empty, contains NaN or cannot be fitted gets its own status in `Fits.result`, and does not change the
    other fits. `fits[fits.failed]` are the ones to look at, and `kx.fitting.refit_many` tries them again. Ctrl-C returns the
    results so far: unfinished fits are `interrupted`.

    Datasets may have different numbers of rows: they are padded to a few shapes, each compiled once. An objective of your
    own sees padded datasets, so it must count rows by `c.data.mask` and `c.data.count`, not by shapes.

    **Arguments:**

    - `model`: where every fit starts: one model for all, a sequence with one for each dataset, or the `Fits` of an earlier
      call.
    - `datasets`: a list, dict or generator of `(x, y)`, `(x, y, mask)` or `Data`, or a table cut into groups
      (`kx.data.groups`). A generator is read as memory allows.
    - `objective`: a function of a `Conditioned` that returns the scalar to minimise, as in `fit`; the negative log marginal
      likelihood by default.
    - `optimiser`: any optax optimiser; L-BFGS if `None`.
    - `solver`: how to condition; `kx.Cholesky()` if `None`. Grids become rows, so `kx.Kronecker()` is refused.
    - `max_steps`: the maximum number of evaluations of each fit. The history of each fit is not kept.
    - `gradient_tolerance`: the largest component that the gradient may have at convergence. The default is that of `fit`.
    - `value_tolerance`: the gain from another step below which a fit has converged. The default is that of `fit`.
    - `patience`: stop a fit after this many steps without progress. The default is that of `fit`.
    - `trainable`: which parameters are fitted, as a tree of booleans in the shape of the model, from `kx.freeze`; all
      parameters if `None`.
    - `initialise`: start each fit from values that suit its data (`kx.initialise`).
    - `restarts`: the number of additional random starts for each dataset. The best result of each dataset is returned.
    - `key`: random key for restarts and random objectives. Every dataset has the starts that `fit` would draw from this key.
    - `shared`: fit one model to all datasets together, and return a `Fit`. The objectives of the datasets are summed. The
      mean is shared too: if the datasets have different levels, add `kx.Constant(1.0)` to the kernel. Empty datasets add
      nothing. A dataset that contains NaN raises an error.
    - `memory_budget`: the number of bytes that temporary matrices may take on a device at the same time. A quarter of it
      limits the data that is held in memory.
    - `executor`: where blocks of datasets are computed: any `concurrent.futures.Executor`, such as a process pool or Dask's
      `client.get_executor()`; threads, one for each core, if `None`. The numbers are the same to the last bit, unless
      datasets are computed `together`. A dataset whose worker process dies twice is `lost`. Groups of a Parquet file are
      read by worker processes if they can; a group that cannot be read at all is `unreadable`.
    - `devices`: some of `jax.local_devices()`; all if `None`. Cannot be combined with an executor of other processes, which
      use their own devices. With several processes (`jax.distributed`), each takes its share of the same `datasets`.
    - `together`: compute the datasets of a block at once under `vmap`, instead of one after another; if `None`, on
      accelerators only.
    - `checkpoint`: a folder in which results are saved as they arrive. The same call resumes an interrupted run, and returns
      at once if that run was complete. If the folder belongs to another model, objective, optimiser, setting, dataset or
      version of kernax, `ValueError` is raised before anything is fitted. Functions and classes of your own are compared by
      their code and by what they use: closed-over values, default arguments, global variables and other functions. Of your
      own modules, the parts are compared that the code names (`helpers.scale`), or all parts if it does not name them
      (`getattr(helpers, name)`). An objective that changes a closed-over value while it runs (a counter) cannot resume in
      the same process, and one that uses an object without readable content (an open file, a generator) raises an error.
      Functions of installed packages are compared by name and version, those of JAX and NumPy by name only.
    - `progress`: show a progress bar.
    - `gather`: with several processes, whether each returns all results, or only its own.

    **Returns:**

    `Fits`, in the order of the datasets; a `Fit` with `shared=True`.
    """
    models = Models.of(model)
    solver = solver_for_many(solver)
    request = Request(
        objective=objective,
        optimiser=optimiser,
        solver=solver,
        trainable=trainable,
        restarts=restarts,
        key=key,
        max_steps=max_steps,
        gradient_tolerance=gradient_tolerance,
        value_tolerance=value_tolerance,
        patience=patience,
        initialise=initialise,
    )
    check_executor(executor, devices)
    if isinstance(objective, Stochastic):
        objective.check_solver(solver)
    total = _number_of(datasets)
    models.check_number(total)
    devices = jax.local_devices() if devices is None else list(np.atleast_1d(np.asarray(devices, object)))
    if not devices or not all(isinstance(device, jax.Device) for device in devices):
        raise ValueError(f"devices must be some of jax.local_devices(), or None for all, got {devices}.")
    if not isinstance(memory_budget, int | float) or not memory_budget > 0:
        raise ValueError(f"memory_budget must be a positive number of bytes, got {memory_budget!r}.")
    if shared:
        if isinstance(objective, Stochastic):
            raise TypeError("shared=True sums the objectives of all datasets, and these must not be random.")
        if models.number is not None or checkpoint is not None or executor is not None:
            raise ValueError("shared=True makes one fit of one model: give one kx.Model, no checkpoint and no executor.")
        every = [data for window in windows(datasets) for data in window]
        if not every:
            raise ValueError("there is no dataset to fit.")
        check_datasets(model, models, every)
        at_once = is_at_once(together, devices)
        return fit_shared(models.model, every, request, devices=devices, together=at_once, progress=progress)

    settings = Settings(objective, solver, trainable, optimiser)
    room = Room(executor, devices, is_at_once(together, devices), memory_budget, solver, _MATRICES)
    collector, spec, shapes = None, None, ()
    own = None if total is None else len(range(jax.process_index(), total, jax.process_count()))
    with many_bar(progress, own) as show:
        try:
            for window in windows_for(executor, models, datasets, budget=memory_budget / 4):
                if collector is None:
                    dtype = window[0].y.dtype
                    rules, models = request.rules(models.model, dtype, keep_history=False), models.as_dtype(dtype)
                    kept = None
                    if checkpoint is not None:
                        about: dict[str, Any] = {"model": models.described()}
                        identity, rules = request.identified(rules, models.model, dtype, about, initialise=initialise)
                        kept = Checkpoint(checkpoint, identity, about)
                    collector = Collector(models, restarts + 1, kept, show, settings)
                    spec = Spec.of(FitWork.of(models, request, rules, dtype), together)
                check_datasets(model, models, window)
                assert spec is not None
                mine = collector.enter(window)
                if not mine:
                    continue
                shapes = shapes_for(mine, room, shapes)
                blocks = blocks_of(mine, models, shapes, room, starts=restarts + 1)
                try:
                    collector.miss(run_blocks(spec, blocks, collector.take, room))
                finally:
                    collector.flush()
        except KeyboardInterrupt:
            if collector is None:
                raise
            collector.interrupted(_keys_of(datasets, total))
    if collector is None:
        raise ValueError("there is no dataset to fit.")
    return collector.fits(gather=gather)


def _number_of(datasets: Any) -> int | None:
    """How many there are, if that is known before reading them."""
    try:
        return len(datasets)
    except TypeError:
        return None


def _keys_of(datasets: Any, total: int | None) -> Sequence[Hashable]:
    """The names, as far as they can be known without reading on."""
    if isinstance(datasets, Mapping):
        return list(datasets)
    if isinstance(datasets, Groups) and datasets.names is not None:
        return datasets.names
    return range(total or 0)
