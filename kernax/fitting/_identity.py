"""What a checkpoint records of a fit, so that it is never used for another one."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kernax._fingerprints import described, digest_of, fingerprint, name_of
from kernax._stored import is_stored
from kernax.data import Data
from kernax.fitting._best import Rules
from kernax.fitting._request import Request
from kernax.rows import arrays_of


def identified(
    request: Request, rules: Rules, model: Any, dtype: Any, about: dict[str, Any], **more: Any
) -> tuple[dict[str, Any], Rules]:
    """What must be the same for the results of a fit to be used again, and the rules with a digest of it.

    **Arguments:**

    - `request`, `rules`, `model`, `dtype`: what is asked, and of what.
    - `about`: receives what helps to explain a difference.
    - `more`: what else must be the same.

    **Returns:**

    A dictionary of plain values, for `Checkpoint` or `FitCheckpoint`; and `rules` with their `content`.
    """
    objective, optimiser, trainable, key = request.objective, request.optimiser, request.free(model), request.key_of_starts
    free = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(trainable)]
    about |= {"trainable": described(trainable), "objective": name_of(objective), "solver": described(request.solver)}
    about["optimiser"] = "lbfgs" if optimiser is None else name_of(optimiser.update)
    identity = more | {
        "model": fingerprint(model, "the model", about),
        "trainable": fingerprint(free, "trainable"),
        "restarts": request.restarts,
        "key": None if key is None else f"{jax.random.key_impl(key)} {np.asarray(jax.random.key_data(key)).tolist()}",
        "dtype": str(dtype),
        "objective": fingerprint(objective, "the objective", about),
        "optimiser": None if optimiser is None else fingerprint(optimiser, "the optimiser", about),
        "solver": fingerprint(request.solver, "the solver", about),
        "max_steps": rules.max_steps,
        "gradient_tolerance": rules.gradient_tolerance,
        "value_tolerance": rules.value_tolerance,
        "patience": rules.patience,
    }
    # Everything, beside arrays, that compiled programs depend on.
    functions = fingerprint(eqx.filter(model, eqx.is_array, inverse=True), "the model")
    content = " ".join([*(str(identity[name]) for name in ("objective", "optimiser", "solver")), functions])
    return identity, dataclasses.replace(rules, content=content)


def of_data(data: Data, about: dict[str, Any]) -> dict[str, Any]:
    """That of one dataset, by its content. Rows in a file are read once."""
    about["data"] = repr(data)
    digest = digest_of((*arrays_of(data.x), *jax.tree.leaves((data.y, data.mask, data.gaps))))
    return {"data": [str(jax.tree.structure(data.x, is_leaf=is_stored)), digest.tobytes().hex()]}
