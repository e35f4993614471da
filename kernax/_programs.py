"""Compiled programs: `jit` with options that suit kernax's many small operations."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.core
import numpy as np

from kernax._threads import longest_axis, with_threads_for

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
"""Two threads that make a program at the same time would make two, and compile each."""


def compiled(function: F, *, for_lanes: bool = False, size_of: Callable[[Any], int] = longest_axis) -> F:
    """`eqx.filter_jit` with options that reduce the time to compile. Inside another program it becomes part of that one.

    BLAS has the number of threads that suits the size of the arguments (`_threads.py`), and long sums are made more precise.
    `size_of` tells the size from positional and named arguments, `(args, kwargs)`, where the longest axis is not that of the
    data.

    `for_lanes` is for programs that run in a thread for each core: their matrix products are to have one thread each, as
    BLAS does (handing small products to a pool costs more than they do: with 8 columns a third of the time).
    """
    nested = eqx.filter_jit(function)

    @functools.cache
    def alone(is_small: bool) -> Callable[..., Any]:
        # Not at import, which must start no device.
        settings: dict[str, Any] = {"compiler_options": _compiler_options(for_lanes, is_small)}
        return eqx.filter_jit(function, **settings)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced((args, kwargs)):
            return nested(*args, **kwargs)
        size = size_of((args, kwargs))
        with _lock:
            program = alone(size <= _SMALL)
        return with_threads_for(size, program, *args, **kwargs)

    return cast(F, call)


def compiled_without_copies(function: F, *, size_of: Callable[[Any], int] = longest_axis) -> F:
    """`compiled`, for functions that return large arguments: an array that is returned unchanged is not copied."""

    @functools.partial(compiled, size_of=size_of)
    def program(*args: Any) -> Any:
        known = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(args)) if eqx.is_array(leaf)}
        leaves, structure = jax.tree.flatten(function(*args))
        places = tuple(known.get(id(leaf), -1) for leaf in leaves)
        return [leaf if place < 0 else None for leaf, place in zip(leaves, places, strict=True)], places, structure

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        given = jax.tree.leaves(args)
        made, places, structure = program(*args)
        leaves = [leaf if place < 0 else given[place] for leaf, place in zip(made, places, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    return cast(F, call)


def is_traced(arguments: Any) -> bool:
    """Whether JAX is tracing: then an argument is a tracer, or whatever is put on a device becomes one."""
    is_tracer = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
    return is_tracer or isinstance(jax.device_put(np.False_), jax.core.Tracer)


_FAST_TO_COMPILE: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
"""Every fused operation is compiled by itself, with XLA's newer emitters in three times the time. The code runs as fast;
CG's products with tiles of a kernel matrix run twice as fast. Levels 1 and 2 of LLVM (`xla_backend_optimization_level`)
would save another fifth, but compute some products wrongly: a broadcast number times a vector of 40 numbers, for example."""
_WITHOUT_POOL: dict[str, Any] = {"xla_cpu_multi_thread_eigen": False}
_WITHOUT_PARTIAL_SUMS: dict[str, Any] = {"xla_disable_hlo_passes": "tree_reduction_rewriter"}
"""XLA adds up long axes in pieces, for precision, with two operations for each sum. That is an eighth of the operations that
a fit compiles and runs."""
_SMALL = 256
"""The longest axis with which sums need no pieces: a matrix has 65,536 entries."""


def _compiler_options(for_lanes: bool, is_small: bool) -> dict[str, Any] | None:
    """Options for CPU. An XLA that does not know them all goes without."""
    chosen = dict(_FAST_TO_COMPILE)
    chosen |= _WITHOUT_POOL if for_lanes else {}
    chosen |= _WITHOUT_PARTIAL_SUMS if is_small else {}
    possible = _possible_options()
    return None if possible is None else {name: value for name, value in chosen.items() if name in possible}


@functools.cache
def _possible_options() -> frozenset[str] | None:
    """The options that do not stand in XLA_FLAGS already; `None` if there are none for this device, or for this XLA."""
    if jax.default_backend() != "cpu":
        return None
    options = _FAST_TO_COMPILE | _WITHOUT_POOL | _WITHOUT_PARTIAL_SUMS
    options = {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except (RuntimeError, ValueError):
        return None
    return frozenset(options)
