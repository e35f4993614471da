"""Solvers from text, and the one that suits a table."""

import inspect
from typing import Any

from kernax._spelling import nearest
from kernax.data import Data
from kernax.solvers import CG, AbstractSolver, Cholesky, Eigh, LowRank, StateSpace, Vecchia, as_code, suggest_solver
from kernax.tables._read import TableError

AUTO = "auto"
_SOLVERS: dict[str, Any] = {
    "cholesky": Cholesky,
    "eigh": Eigh,
    "state_space": StateSpace,
    "vecchia": Vecchia,
    "low_rank": LowRank,
    "cg": CG,
}
_KINDS = {int: "a whole number", float: "a number", str: "text"}


def parse_solver(text: str) -> AbstractSolver:
    """The solver of a text such as `low_rank` or `low_rank:rank=500`.

    **Arguments:**

    - `text`: a name, and after a colon options with commas between them: `cg:tolerance=0.01,max_steps=200`. The names are
      `cholesky`, `eigh`, `state_space`, `vecchia`, `low_rank` and `cg`; the options are those of the solvers in Python that
      are numbers or text.

    **Returns:**

    A configured solver. Raises `TableError`, which says what to write instead, for any other text.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in _SOLVERS:
        known = ", ".join((AUTO, *_SOLVERS))
        raise TableError(f"there is no solver {name!r}.{nearest(name, (AUTO, *_SOLVERS))} They are {known}.")
    kinds = {key: _kind(parameter) for key, parameter in inspect.signature(_SOLVERS[name]).parameters.items()}
    known = {key: kind for key, kind in kinds.items() if kind is not None}
    options = {}
    for part in filter(str.strip, rest.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise TableError(f"the solver {name} has no option {key!r}.{nearest(key, known)} Write {name} alone; {has}.")
        kind, example = known[key]
        remedy = f"write {name}:{key}={example}."
        if not value:
            raise TableError(f"the option {key!r} of the solver {name} has no value: {remedy}")
        try:
            options[key] = kind(value)
        except ValueError:
            raise TableError(f"the solver {name} needs {_KINDS[kind]} for {key}, got {value!r}: {remedy}") from None
    try:
        return _SOLVERS[name](**options)
    except ValueError as error:
        raise TableError(f"solver {text!r}: {error}") from None


def _kind(parameter: inspect.Parameter) -> tuple[type, Any] | None:
    """The type and an example of an option of a solver; `None` if it is neither a number nor text."""
    if parameter.annotation == float | None:
        return float, 1e-6
    return (type(parameter.default), parameter.default) if type(parameter.default) in _KINDS else None


def solver_for(solver: Any, model: Any, data: Data, select: str) -> tuple[AbstractSolver | None, str | None]:
    """The solver that was asked for by text or as it is, `None` for the default; and a note if it was suggested."""
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
