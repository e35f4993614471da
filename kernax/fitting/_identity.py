"""What a checkpoint records of a fit, so that it is never used for another one."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from kernax._fingerprints import described, digest_of, fingerprint, name_of
from kernax._stored import is_stored
from kernax.data import Data
from kernax.fitting._best import Rules
from kernax.rows import arrays_of
from kernax.solvers import AbstractSolver

# `about`, in each of these, receives what helps to explain a difference.


def of_start(
    model: Any, trainable: Any, restarts: int, key: Key[Array, ""] | None, dtype: Any, about: dict[str, Any]
) -> dict[str, Any]:
    """That of the model, of what is held, and of random starts."""
    about["trainable"] = described(trainable)
    free = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(trainable)]
    return {
        "model": fingerprint(model, "the model", about),
        "trainable": fingerprint(free, "trainable"),
        "restarts": restarts,
        "key": None if key is None else f"{jax.random.key_impl(key)} {np.asarray(jax.random.key_data(key)).tolist()}",
        "dtype": str(dtype),
    }


def of_settings(
    rules: Rules, objective: Any, optimiser: Any, solver: AbstractSolver, about: dict[str, Any]
) -> dict[str, Any]:
    """That of the objective, the optimiser, the solver, and of when to stop."""
    about |= {"objective": name_of(objective), "solver": described(solver)}
    about["optimiser"] = "lbfgs" if optimiser is None else name_of(optimiser.update)
    return {
        "objective": fingerprint(objective, "the objective", about),
        "optimiser": None if optimiser is None else fingerprint(optimiser, "the optimiser", about),
        "solver": fingerprint(solver, "the solver", about),
        "max_steps": rules.max_steps,
        "gradient_tolerance": rules.gradient_tolerance,
        "value_tolerance": rules.value_tolerance,
        "patience": rules.patience,
    }


def content_of(identity: dict[str, Any], model: Any) -> str:
    """A digest of everything, beside arrays, that compiled programs depend on; for `Rules.content`."""
    functions = fingerprint(eqx.filter(model, eqx.is_array, inverse=True), "the model")
    return " ".join([*(str(identity[name]) for name in ("objective", "optimiser", "solver")), functions])


def of_data(data: Data, about: dict[str, Any]) -> dict[str, Any]:
    """That of one dataset, by its content. Rows in a file are read once."""
    about["data"] = repr(data)
    digest = digest_of((*arrays_of(data.x), *jax.tree.leaves((data.y, data.mask, data.gaps))))
    return {"data": [str(jax.tree.structure(data.x, is_leaf=is_stored)), digest.tobytes().hex()]}
