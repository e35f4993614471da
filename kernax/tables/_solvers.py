"""Solvers from text, and the one that suits a table."""

from collections.abc import Callable
from typing import Any

from kernax.data import Data
from kernax.solvers import CG, AbstractSolver, Cholesky, Eigh, LowRank, StateSpace, Vecchia, as_code, suggest_solver
from kernax.tables._errors import TableError, nearest

AUTO = "auto"
_SOLVERS: dict[str, tuple[Callable[..., AbstractSolver], dict[str, type]]] = {
    "cholesky": (Cholesky, {"max_jitter": float}),
    "eigh": (Eigh, {"max_jitter": float}),
    "state_space": (StateSpace, {}),
    "vecchia": (Vecchia, {"neighbours": int, "block": int, "ordering": str, "prediction_neighbours": int, "seed": int}),
    "low_rank": (LowRank, {"rank": int}),
    "cg": (CG, {"tolerance": float, "max_steps": int, "num_probes": int, "seed": int}),
}
_KINDS = {int: "a whole number", float: "a number", str: "text"}


def parse_solver(text: str) -> AbstractSolver:
    """The solver of a text such as `low_rank` or `low_rank:rank=500`.

    **Arguments:**

    - `text`: a name, and after a colon options with commas between them: `cg:tolerance=0.01,max_steps=200`. The names are
      `cholesky`, `eigh`, `state_space`, `vecchia`, `low_rank` and `cg`; the options are those of the solvers in Python.

    **Returns:**

    A configured solver. Raises `TableError` for a text that is none, with what to write instead.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in _SOLVERS:
        known = ", ".join((AUTO, *_SOLVERS))
        raise TableError(f"there is no solver {name!r}.{nearest(name, (AUTO, *_SOLVERS))} They are {known}.")
    kind, known = _SOLVERS[name]
    options = dict(_option(part, name, known) for part in rest.split(",") if part.strip())
    try:
        return kind(**options)
    except ValueError as error:
        raise TableError(f"solver {text!r}: {error}") from None


def _option(part: str, name: str, known: dict[str, type]) -> tuple[str, Any]:
    key, equals, value = (word.strip() for word in part.partition("="))
    if key not in known:
        has = f"its options are {', '.join(known)}" if known else "it has no options"
        raise TableError(f"the solver {name} has no option {key!r}.{nearest(key, known)} Write {name} alone; {has}.")
    example = f"{name}:{key}={_EXAMPLES.get(key, 'value')}"
    if not equals or not value:
        raise TableError(f"the option {key!r} of the solver {name} has no value: write {example}.")
    try:
        return key, known[key](value)
    except ValueError:
        raise TableError(
            f"the solver {name} wants {_KINDS[known[key]]} for {key}, got {value!r}: write {example}."
        ) from None


_EXAMPLES = {
    "max_jitter": "1e-8",
    "neighbours": "50",
    "block": "4",
    "ordering": "maxmin",
    "prediction_neighbours": "64",
    "rank": "500",
    "tolerance": "0.01",
    "max_steps": "500",
    "num_probes": "16",
    "seed": "1",
}


def solver_for(solver: Any, model: Any, data: Data, select: str) -> tuple[AbstractSolver | None, str | None]:
    """The solver that was asked for, `None` for the default; and what to know about one that was suggested.

    **Arguments:**

    - `solver`: a solver, text for `parse_solver`, or `auto` for the one that `kx.suggest_solver` suggests.
    - `model`, `data`: what is to be fitted.
    - `select`: what is minimised.
    """
    if solver is None or isinstance(solver, AbstractSolver):
        return solver, None
    if not isinstance(solver, str):
        raise TypeError(f"solver must be a kernax solver or text such as 'auto' or 'low_rank:rank=500', got {solver!r}.")
    if solver.strip().lower() != AUTO:
        return parse_solver(solver), None
    suggested = suggest_solver(model, data, folds=select == "kfold")
    if suggested.solver == Cholesky():
        return None, None
    code = as_code(suggested.solver).removeprefix("kx.")
    return suggested.solver, f"solver {code}: {suggested.reason} Choose another with --solver (solver= in Python)"
