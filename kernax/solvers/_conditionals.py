"""Vecchia's approximation: the density of all rows as a product of conditional densities of blocks, given few earlier rows.

    p(y) ≈ Π_J p(y_J | y_N(J)),     N(J): some rows that come before the block J.

For one block, let A be the matrix of the rows `(N, J)`, L its Cholesky factor, and G the rows of `L⁻¹` that belong to J.
With `w = L⁻¹ b`, the block adds `Σ w_J²` to the quadratic form and `2 Σ log L_JJ` to the log determinant. The precision
matrix of the approximation is the sum of `Gᵀ G` over the blocks. So G is a sparse factor of it.

The derivatives are closed forms in quantities of one block. With `g = Gᵀ w_J` and `a = A_NN⁻¹ b_N` (0 in J),

    δ(Σ log L_JJ²) = tr(G δA Gᵀ),     δ(Σ w_J²) = 2 gᵀ δb - gᵀ δA (g + 2a).

Blocks are worked on in chunks, one after another. Value and gradient are added up in one loop, so memory does not grow with
the number of rows. No large numbers are subtracted anywhere: w and G come from triangular solves with L.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax.rows import Rows, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _raw
from kernax.solvers._cholesky import RawCholesky, jittered
from kernax.solvers._jitter import jitter_ladder, rounding_share

_ONE_CHUNK = 2**21
"""Entries of all blocks' matrices up to which there is no loop, and so second derivatives."""

_CHUNK = 2**17
"""Entries of the matrices of one chunk: 1 MB in float64, which the processor's cache holds."""


class Conditionals(eqx.Module):
    """Blocks of rows, in order, and the earlier rows that each is conditioned on. -1 stands for no row."""

    rows: Int[Array, "k b"]
    neighbours: Int[Array, "k m"]
    weight: Float[Array, ""]
    """How many blocks each one stands for: 1, or more if they are a random part of all blocks."""
    num_rows: int = eqx.field(static=True)
    """The rows of the whole data, those that do not count included."""

    @property
    def places(self) -> Int[Array, "k q"]:
        """The rows of each block's matrix: first those that it is conditioned on."""
        return jnp.concatenate([self.neighbours, self.rows], axis=1)


class Entries(eqx.Module):
    """What the blocks' matrices and right-hand sides are made of, and differentiated by."""

    kernel: Any
    x: Rows
    noise: Float[Array, "*n"]
    columns: Float[Array, "n p"]

    def of(self, places: Int[Array, "k q"]) -> tuple[Float[Array, "k q q"], Float[Array, "k q p"]]:
        """`A` and `b` of some blocks; in places without a row, those of the identity and 0."""
        on, safe = places >= 0, jnp.maximum(places, 0)
        matrices = jax.vmap(lambda rows: self.kernel.gram(rows, None))(take(self.x, safe))
        matrices = jnp.where(on[:, :, None] & on[:, None, :], matrices, 0.0)
        noise = jnp.where(on, self.noise if self.noise.ndim == 0 else self.noise[safe], 1.0)
        columns = jnp.where(on[:, :, None], self.columns[safe], 0.0)
        return matrices + noise[:, :, None] * jnp.eye(places.shape[1], dtype=noise.dtype), columns


class Parts(NamedTuple):
    """What the conditional distributions of several blocks are made of."""

    pivots: Float[Array, "k q"]
    """The diagonal of L."""
    half: Float[Array, "k q p"]
    """`w = L⁻¹ b`."""
    both: Float[Array, "k q r"]
    """`Gᵀ`, then a."""


class Health(eqx.Module):
    """How factorisations went."""

    jitter: Float[Array, "..."]
    """What had to be added to the diagonal of a block; the largest, of many blocks."""
    ok: Bool[Array, "..."]


def evidence(
    entries: Entries, plan: Conditionals, mesh: Mesh | None = None
) -> tuple[Float[Array, " p"], Float[Array, ""], Health]:
    """The quadratic form of every column and the log determinant of the approximation, and how the computation went.

    **Arguments:**

    - `entries`: what the matrices are made of.
    - `plan`: the blocks.
    - `mesh`: a mesh with one axis, over whose devices the blocks are spread.

    **Returns:**

    The quadratic form, the log determinant and the health. If a block failed, they are those of the other blocks.
    """
    terms, health = _terms(entries, plan, mesh)
    return terms[:-1], terms[-1], health


@eqx.filter_custom_jvp
def _terms(entries: Entries, plan: Conditionals, mesh: Mesh | None) -> tuple[Float[Array, " t"], Health]:
    def of_chunk(entries: Entries, places: Array, total: Any) -> Any:
        terms, health = _terms_of_blocks(*entries.of(places), places, plan.rows.shape[1])[:2]
        return total[0] + terms, _worse(total[1], health)

    (terms, health) = _summed(of_chunk, entries, plan, mesh, _nothing(entries))
    return plan.weight * terms, health


@_terms.def_jvp
def _terms_jvp(primals, tangents):
    (entries, plan, mesh), (change, _, _) = primals, tangents
    moved, fixed = eqx.partition(entries, jax.tree.map(lambda t: t is not None, change, is_leaf=lambda t: t is None))
    number = entries.columns.shape[1] + 1

    def of_chunk(both: tuple[Entries, Entries], places: Array, total: Any) -> Any:
        (matrices, columns), pull = jax.vjp(lambda moved: eqx.combine(moved, both[1]).of(places), both[0])
        terms, health, slopes = _terms_of_blocks(matrices, columns, places, plan.rows.shape[1])
        gradients = jax.vmap(pull)(slopes)[0]
        return total[0] + terms, _worse(total[1], health), jax.tree.map(jnp.add, total[2], gradients)

    # One gradient for every term: of the quadratic forms, and of the log determinant.
    zeros = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), moved)
    terms, health, gradients = _summed(of_chunk, (moved, fixed), plan, mesh, (*_nothing(entries), zeros))
    if not _is_one_chunk(plan, mesh):
        terms, gradients = _not_differentiable((terms, gradients))
    slope = [jnp.tensordot(g, t, t.ndim) for g, t in zip(*map(jax.tree.leaves, (gradients, change)), strict=True)]
    still = jax.tree.map(lambda _: None, health)
    return (plan.weight * terms, health), (plan.weight * sum(slope[1:], slope[0]), still)


def factor(entries: Entries, plan: Conditionals) -> tuple[Float[Array, "k q b"], Float[Array, ""], Health]:
    """`Gᵀ` of every block, the log determinant, and how the factorisations went."""
    block = plan.rows.shape[1]

    def of_chunk(entries: Entries, places: Array) -> tuple[Array, Array, Health]:
        matrices, columns = entries.of(places)
        parts, health = conditional(matrices, columns[:, :, :0], places >= 0, block)
        return parts.both, 2.0 * jnp.sum(jnp.log(parts.pivots[:, -block:]), axis=1), health

    if _is_one_chunk(plan, None):
        roots, logs, health = of_chunk(entries, plan.places)
    else:
        chunks = _chunks(plan.places)
        # Reverse mode would otherwise keep every chunk's matrices.
        answer = jax.lax.map(jax.checkpoint(lambda places: of_chunk(entries, places)), chunks)
        roots, logs, health = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: len(plan.rows)], answer)
        roots, logs = once_differentiable((roots, logs))
    return roots, jnp.sum(logs), Health(jnp.max(health.jitter), jnp.all(health.ok))


def conditional(
    matrices: Float[Array, "k q q"], columns: Float[Array, "k q p"], on: Bool[Array, "k q"], block: int
) -> tuple[Parts, Health]:
    """The parts of several blocks, differentiable in matrices and columns.

    **Arguments:**

    - `matrices`, `columns`: `A` and `b` of each block.
    - `on`: which of their rows exist.
    - `block`: how many rows at the end belong to the block itself.

    **Returns:**

    The parts and the health. A block that is not definite, even with the largest jitter, gets the parts of the identity.
    """
    q = matrices.shape[1]
    last = jnp.eye(q, dtype=matrices.dtype)[:, q - block :]
    matrices, uppers, health = factored(matrices, on)
    solved = jax.vmap(_raw.solve_conditional, (0, 0, None))(uppers, jax.lax.stop_gradient(columns), last)
    return _with_derivative(matrices, columns, last, Parts(_diagonals(uppers), *solved)), health


def factored(
    matrices: Float[Array, "k q q"], on: Bool[Array, "k q"]
) -> tuple[Float[Array, "k q q"], Float[Array, "k q q"], Health]:
    """Matrices that are definite, their upper factors, which are constants, and how that went.

    Jitter is added to a matrix only if it is not definite, and only in rows that exist. A matrix that is not definite with
    the largest jitter is replaced by the identity.
    """
    q = matrices.shape[1]
    eye = jnp.eye(q, dtype=matrices.dtype)
    fixed = jax.lax.stop_gradient(matrices)

    def with_health(matrices: Array, health: Health) -> Array:
        added = jnp.where(on, health.jitter[:, None], 0.0)[:, :, None] * eye
        return jnp.where(health.ok[:, None, None], matrices + added, eye)

    def uppers(matrices: Array) -> Array:
        return jax.vmap(_raw.cholesky, (0, None))(matrices, jnp.zeros(q, matrices.dtype))

    def repaired() -> tuple[Array, Health]:
        health = Health(*jax.vmap(_least_jitter)(fixed, on))
        return uppers(with_health(fixed, health)), health

    plain = uppers(fixed)
    # A pivot no larger than the rounding error of elimination shows a matrix that is singular. NaN fails, too.
    floor = rounding_share(jnp.asarray(q, fixed.dtype)) * _diagonals(fixed)
    definite = jnp.all(_diagonals(plain) ** 2 > floor)
    sound = Health(jnp.zeros(len(fixed), fixed.dtype), jnp.ones(len(fixed), bool))
    # Nearly always nothing is to be repaired, and then this costs nothing.
    factors, health = jax.lax.cond(definite, lambda: (plain, sound), repaired)
    return with_health(matrices, health), factors, health


def _diagonals(matrices: Float[Array, "k q q"]) -> Float[Array, "k q"]:
    return jnp.diagonal(matrices, axis1=1, axis2=2)


@_raw.one_at_a_time_on_cpu
def _least_jitter(matrix: Float[Array, "q q"], on: Bool[Array, " q"]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The least jitter with which a matrix is definite, and whether there is one."""
    return jittered(matrix, jnp.zeros(len(matrix), matrix.dtype), on, jitter_ladder(matrix.dtype, None))[1:]


@eqx.filter_custom_jvp
def _with_derivative(matrices: Array, columns: Array, last: Array, parts: Parts) -> Parts:
    """The parts, which were computed with numbers, as a function of matrices and columns."""
    return parts


@_with_derivative.def_jvp
def _with_derivative_jvp(primals, tangents):
    (matrices, columns, last, _), (d_matrices, d_columns, _, _) = primals, tangents
    given = (matrices, columns)
    change = [jnp.zeros_like(g) if d is None else d for g, d in zip(given, (d_matrices, d_columns), strict=True)]
    return jax.jvp(lambda m, c: jax.vmap(_plain_parts, (0, 0, None))(m, c, last), given, tuple(change))


def _plain_parts(matrix: Float[Array, "q q"], columns: Float[Array, "q p"], last: Float[Array, "q b"]) -> Parts:
    """The parts of one block, written with functions that have derivatives of every order."""
    q, block = last.shape
    upper = _raw.cholesky(jax.lax.stop_gradient(matrix), jnp.zeros(q, matrix.dtype))
    lower = derivatives.root(derivatives.of_matrix(matrix), RawCholesky(upper), jnp.triu(upper).T)
    half = derivatives.half_solve(lower, columns)
    earlier = jnp.where(jnp.arange(q)[:, None] < q - block, half, 0.0)
    both = derivatives.half_solve_transposed(lower, jnp.concatenate([last, earlier], axis=1))
    return Parts(jnp.diagonal(lower), half, both)


def _terms_of_blocks(
    matrices: Float[Array, "k q q"], columns: Float[Array, "k q p"], places: Int[Array, "k q"], block: int
) -> tuple[Float[Array, " t"], Health, tuple[Array, Array]]:
    """What some blocks add to the quadratic forms and the log determinant, and the slopes in matrices and columns."""
    parts, health = conditional(matrices, columns, places >= 0, block)
    own = parts.half[:, -block:]
    logs = 2.0 * jnp.log(parts.pivots[:, -block:])
    terms = jnp.append(jnp.sum(own**2, axis=(0, 1)), jnp.sum(logs))
    root, earlier = parts.both[:, :, :block], parts.both[:, :, block:]
    g = matmul(root, own)
    # One column after another in front; the log determinant last.
    of_forms = -jnp.moveaxis(g, 2, 0)[:, :, :, None] * jnp.moveaxis(g + 2.0 * earlier, 2, 0)[:, :, None, :]
    of_logdet = matmul(root, jnp.swapaxes(root, 1, 2))
    in_matrices = jnp.concatenate([of_forms, of_logdet[None]])
    number = g.shape[2]
    in_columns = 2.0 * jnp.eye(number + 1, number, dtype=g.dtype)[:, None, None, :] * g
    return terms, Health(jnp.max(health.jitter), jnp.all(health.ok)), (in_matrices, in_columns)


def _nothing(entries: Entries) -> tuple[Array, Health]:
    """The terms and the health before the first block."""
    dtype = entries.columns.dtype
    return jnp.zeros(entries.columns.shape[1] + 1, dtype), Health(jnp.zeros((), dtype), jnp.asarray(True))


def _worse(first: Health, second: Health) -> Health:
    return Health(jnp.maximum(first.jitter, second.jitter), first.ok & second.ok)


def _size_of_chunk(plan: Conditionals) -> int:
    q = plan.neighbours.shape[1] + plan.rows.shape[1]
    return max(1, _CHUNK // q**2)


def _is_one_chunk(plan: Conditionals, mesh: Mesh | None) -> bool:
    blocks, q = plan.rows.shape[0], plan.neighbours.shape[1] + plan.rows.shape[1]
    return mesh is None and blocks * q**2 <= _ONE_CHUNK


def _chunks(places: Int[Array, "k q"]) -> Int[Array, "c s q"]:
    """The blocks in chunks of equal size. What fills up the last one has no rows."""
    blocks, q = places.shape
    size = min(blocks, max(1, _CHUNK // q**2))
    return jnp.pad(places, ((0, -blocks % size), (0, 0)), constant_values=-1).reshape(-1, size, q)


def _summed(
    of_chunk: Callable[[Any, Array, Any], Any], given: Any, plan: Conditionals, mesh: Mesh | None, nothing: Any
) -> Any:
    """`of_chunk(given, places, total)` for all blocks: at once if they are few, chunk by chunk, or on several devices."""
    if _is_one_chunk(plan, mesh):
        return of_chunk(given, plan.places, nothing)

    def in_turn(given: Any, chunks: Array, total: Any) -> Any:
        return jax.lax.scan(lambda total, places: (of_chunk(given, places, total), None), total, chunks)[0]

    chunks = _chunks(plan.places)
    if mesh is None:
        return in_turn(given, chunks, nothing)
    (axis,) = mesh.axis_names
    arrays, rest = eqx.partition(given, eqx.is_array)
    chunks = jnp.pad(chunks, ((0, -len(chunks) % mesh.size), (0, 0), (0, 0)), constant_values=-1)

    def of_device(arrays: Any, chunks: Array, nothing: Any) -> Any:
        totals = in_turn(eqx.combine(arrays, rest), chunks, nothing)
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, axis), totals)

    every = jax.shard_map(of_device, mesh=mesh, in_specs=(P(), P(axis), P()), out_specs=P(), check_vma=False)
    totals = every(arrays, chunks, nothing)
    health = Health(jnp.max(totals[1].jitter), jnp.all(totals[1].ok))
    first, *more = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), (totals[0], *totals[2:]))
    return (first, health, *more)


@jax.custom_jvp
def once_differentiable(tree: Any) -> Any:
    """The same numbers, which have first derivatives only.

    JAX forgets rules of differentiation when it differentiates a loop for the second time. Wrong numbers would come out.
    """
    return tree


@once_differentiable.defjvp
def _once_jvp(primals, tangents):
    return _not_differentiable(primals[0]), tangents[0]


@jax.custom_jvp
def _not_differentiable(tree: Any) -> Any:
    return tree


@_not_differentiable.defjvp
def _refuse(primals, tangents):
    raise TypeError(
        "kx.Vecchia() has first derivatives only for this many rows. Second derivatives need blocks that fit into one chunk "
        "(about 2000 rows with 30 neighbours): use fewer rows or neighbours, or finite differences of the gradient."
    )
