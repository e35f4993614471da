"""One model fitted to many datasets at once: the sum of their objectives."""

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax._threads import cores, one_blas_thread
from kernax.data import Data
from kernax.data._many import HostData, stacked
from kernax.data._shapes import LEAST_ROWS, by_shape, plan_rows
from kernax.fitting._convergence import Rules, sizes
from kernax.fitting._fit import fit_of, prepared, with_own_history
from kernax.fitting._fitted import Fit
from kernax.fitting._lanes import on_host, run_lanes
from kernax.fitting._lanes import stacked as stacked_trees
from kernax.fitting._loop import Evaluated, stepped
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._problem import Objective
from kernax.fitting._request import Request
from kernax.fitting._starts import initialise as initialised
from kernax.model import AbstractModel, condition
from kernax.parameters import as_dtype, join, log_prior
from kernax.solvers import AbstractSolver, is_usable


class Piece(eqx.Module):
    """Some datasets of one padded shape, on one device, with a leading axis."""

    data: Data
    counts: Float[Array, " b"]
    """1, or 0 for a copy that fills up the last piece."""


class SharedProblem(eqx.Module):
    """`Σ_i objective(condition(model, data_i)) - log_prior(model)`, whose datasets are shared out in pieces."""

    held: AbstractModel
    pieces: tuple[Piece, ...]
    objective: Objective = eqx.field(static=True)
    solver: AbstractSolver
    together: bool = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __call__(self, free: AbstractModel) -> Float[Array, ""]:
        """The value, for optimisers that ask for further ones."""
        if not self.pieces:
            raise TypeError(
                "this optimiser evaluates the objective itself, which shared=True does not support on several devices: give "
                "one device, devices=jax.local_devices()[:1], or another optimiser."
            )
        return jnp.sum(jnp.stack([self.of_piece(free, piece)[0][0] for piece in self.pieces])) + self._prior(free)

    def of_piece(self, free: AbstractModel, piece: Piece) -> Evaluated:
        """The summed value of a piece with the worst status and the largest jitter, and the summed gradient. Each dataset is
        pulled back by itself, so that the matrices of one are alive at a time, and not those of all."""

        def of_dataset(free: AbstractModel, data: Data) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
            c = condition(as_dtype(join(free, self.held), data.dtype), data, self.solver, throw=False)
            return self.objective(c).astype(data.dtype), (c.result, c.jitter)

        def of_lane(lane: tuple[Data, Array]) -> Any:
            (value, aux), gradient = jax.value_and_grad(of_dataset, has_aux=True)(free, lane[0])
            return (lane[1] * value, aux), jax.tree.map(lambda leaf: lane[1] * leaf, gradient)

        lanes = (piece.data, piece.counts)
        return _summed(jax.vmap(of_lane)(lanes) if self.together else jax.lax.map(of_lane, lanes))

    def _prior(self, free: AbstractModel) -> Float[Array, ""]:
        return -log_prior(as_dtype(join(free, self.held), self.dtype)).astype(self.dtype)

    def with_prior(self, free: AbstractModel, sums: list[Evaluated]) -> Evaluated:
        """The sums of the pieces put together, with the prior."""
        (value, aux), gradient = _summed(stacked_trees(sums))
        prior, more = jax.value_and_grad(self._prior)(free)
        return (value + prior, aux), jax.tree.map(jnp.add, gradient, more)


_sum_of_piece = functools.partial(compiled, for_lanes=True)(SharedProblem.of_piece)


def _summed(evaluated: Any) -> Evaluated:
    """The sum of many evaluations, which have a leading axis, with the worst status and the largest jitter."""
    (values, (status, jitter)), gradients = evaluated
    worst = jax.tree.map(lambda leaf: leaf[jnp.argmin(is_usable(status))], status)
    return (jnp.sum(values), (worst, jnp.max(jitter))), jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradients)


@compiled
def _step(
    packed: Vectors,
    packing: Packing,
    sums: list[Evaluated],
    problem: SharedProblem,
    rules: Rules,
    own_units: Float[Array, " k"],
) -> Vectors:
    state = packing.unpack(packed)
    evaluated = problem.with_prior(state.free, sums)
    return packing.pack(stepped(state, evaluated, problem, rules, own_units))


_sizes = compiled(sizes)


def _advance_by_pieces(
    packed: Vectors, packing: Packing, problem: SharedProblem, rules: Rules, until: Any, pool: ThreadPoolExecutor
) -> Vectors:
    """As `advance`, but every evaluation is shared out: a thread computes the sum of a piece, on the piece's device."""
    state, bare = on_host(packing, packed), dataclasses.replace(problem, pieces=())

    def of_piece(piece: Piece) -> Evaluated:
        (device,) = piece.counts.devices()
        free, held = jax.device_put((state.free, problem.held), device)
        return jax.block_until_ready(_sum_of_piece(dataclasses.replace(bare, held=held), free, piece))

    places = {device for piece in problem.pieces for device in piece.counts.devices()}
    (home,) = problem.pieces[0].counts.devices()
    # One program takes no arrays of several devices.
    alone = problem if len(places) == 1 else bare
    own_units = [np.asarray(_sizes(state.free, jax.device_get(piece.data))) for piece in problem.pieces]
    own_units = jax.device_put(np.max(own_units, axis=0), home)
    while bool(state.running) and int(state.step) < int(until):
        sums = jax.device_put(list(pool.map(of_piece, problem.pieces)), home)
        packed = _step(packed, packing, sums, alone, rules, own_units)
        state = on_host(packing, packed)
    return packed


def shared_pieces(datasets: list[HostData], devices: list[Any], threads: int) -> tuple[Piece, ...]:
    """The datasets by shape, in as many pieces as there are threads, each on its device. Those without rows are left out:
    they add nothing. NaN raises an error, since it would make the whole sum NaN."""
    for data in datasets:
        arrays = (data.y, *jax.tree.leaves(data.x))
        if not all(np.isfinite(array[data.mask]).all() for array in arrays):
            raise ValueError(f"{data.name} has NaN or infinite values: drop them, or mark them with mask=False.")
    filled = [data for data in datasets if data.mask.any()]
    if not filled:
        raise ValueError("there is no dataset with rows to fit.")
    sizes = [max(data.n, LEAST_ROWS) for data in filled]
    shapes = by_shape(filled, sizes, plan_rows(sizes))
    pieces = []
    for rows, members in shapes:
        size = -(-len(members) // threads)  # the same for all, so that they share a program
        for number, begin in enumerate(range(0, len(members), size)):
            part = members[begin : begin + size]
            data = stacked(part + part[:1] * (size - len(part)), rows)
            counts: Any = (np.arange(size) < len(part)).astype(data.y.dtype)
            pieces.append(Piece(*jax.device_put((data, counts), devices[number % len(devices)])))
    return tuple(pieces)


def fit_shared(
    model: AbstractModel, datasets: list[HostData], request: Request, *, devices: list[Any], together: bool, progress: bool
) -> Fit:
    """One model for all datasets, which are shared out: on CPU to a thread for each core, else to one for each device."""
    dtype = datasets[0].y.dtype
    rules = request.rules(model, dtype)
    threads = max(len(devices), cores() if devices[0].platform == "cpu" else 1)
    pieces = shared_pieces(datasets, devices, threads)
    model = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, model)
    if request.initialise:
        begin = initialised(model, _pooled(datasets))
        # What is held keeps the given values.
        model = jax.tree.map(lambda new, old, free: new if free else old, begin, model, request.free(model))
    frees, held = prepared(model, request.trainable, dtype, request.restarts, request.key_of_starts)
    problem = SharedProblem(held, pieces, request.objective, request.solver, together, dtype)
    with ThreadPoolExecutor(threads) as pool, one_blas_thread():
        advance = functools.partial(_advance_by_pieces, pool=pool)
        lanes = run_lanes(frees, problem, rules, progress=progress, together=False, advance=advance)
    return with_own_history(fit_of(lanes, held, rules))


def _pooled(datasets: list[HostData]) -> Data:
    """All rows in one dataset, for starting values."""
    filled = [data for data in datasets if data.n]
    x = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(data.x for data in filled))
    return Data(x, np.concatenate([data.y for data in filled]), np.concatenate([data.mask for data in filled]))
