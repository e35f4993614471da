"""One model for all datasets, or one for each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax import parameters
from kernax._fingerprints import described
from kernax.data._host import HostData
from kernax.fitting._fits import Fits
from kernax.fitting._fitted import Fit
from kernax.model import AbstractModel
from kernax.model._checks import check_known
from kernax.noises import check_noise
from kernax.solvers import AbstractSolver, Cholesky


class Models(NamedTuple):
    """A model; if `number` is not None, its arrays have a leading axis with one entry for each dataset."""

    model: AbstractModel
    number: int | None

    @classmethod
    def of(cls, given: Any) -> "Models":
        """What the user gave. Raises `TypeError` or `ValueError` if it is not a model, or one for each dataset."""
        if isinstance(given, Fits):
            return cls(jax.tree.map(_on_host, given.model), len(given))
        if isinstance(given, Fit):
            return cls.of(given.model)
        if isinstance(given, AbstractModel):
            if given.is_per_row:
                raise ValueError(
                    "the model's noise (or penalty) is an array. If it is given per row: the datasets have different "
                    "rows, so give one number, or fit them one at a time. If the model is that of kx.fitting.Fits: pass "
                    "the Fits itself."
                )
            return cls(jax.tree.map(_on_host, given), None)
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise TypeError(
                f"model must be a kx.Model, a sequence with one per dataset, or kx.fitting.Fits, got {type(given).__name__}."
            )
        given = [one.model if isinstance(one, Fit) else one for one in given]
        for number, model in enumerate(given):
            if not isinstance(model, AbstractModel):
                raise TypeError(f"model {number} must be a kx.Model, got {type(model).__name__}.")
            if model.is_per_row:
                raise ValueError(f"model {number} has its noise (or penalty) given per row: give one number.")
            if _form(model) != _form(given[0]):
                raise ValueError(
                    f"model {number} has a different structure from model 0: all must have the same kernels and shapes of "
                    "parameters; only their values may differ (functions must be the same objects)."
                )
        return cls(jax.tree.map(_stacked, *given), len(given))

    @property
    def example(self) -> AbstractModel:
        """One of them."""
        return self.model if self.number is None else self.taken(0)

    def described(self) -> str:
        """In words, for messages."""
        return described(self.model) if self.number is None else f"{self.number} models"

    def taken(self, numbers: Any) -> AbstractModel:
        """Those with these numbers, in a leading axis if `numbers` has one."""

        def chosen(leaf: Any) -> Any:
            return np.broadcast_to(leaf, np.shape(numbers) + leaf.shape) if self.number is None else leaf[numbers]

        return jax.tree.map(lambda leaf: chosen(leaf) if eqx.is_array(leaf) else leaf, self.model)

    def parted(self) -> tuple[Any, Any]:
        """What each has of its own, with a leading axis, and what all have in common; elsewhere both are `None`."""
        return eqx.partition(self.model, lambda leaf: eqx.is_array(leaf) and self.number is not None)

    @property
    def dtype(self) -> Any:
        """The floating type of their parameters."""
        return jnp.result_type(*(leaf for _, leaf in parameters.parameters(self.model)))

    def as_dtype(self, dtype: Any) -> "Models":
        return self._replace(model=parameters.as_dtype(self.model, dtype))

    def check_number(self, datasets: int | None) -> None:
        """Refuse another number of datasets than of models."""
        if self.number is not None and datasets is not None and self.number != datasets:
            raise ValueError(f"there are {self.number} models for {datasets} datasets: give one model, or one for each.")


def check_datasets(given: Any, models: Models, datasets: list[HostData]) -> None:
    """Refuse rows that the models do not know, and other names than those which `Fits`, if they were given, were fitted to
    (numbers are no names).
    """
    for data in datasets if isinstance(given, Fits) and given.is_named else ():
        known = given.keys[data.number] if data.number < len(given) else data.key
        if data.is_named and known != data.key:
            raise ValueError(
                f"the fit {data.number} is of {known!r}, but {data.name} was given: give the datasets that were fitted."
            )
    check_rows(models, [data.name for data in datasets], [data.x for data in datasets])


def check_rows(models: Models, names: list[str], rows: list[Any], *, noisy: bool = True) -> None:
    """Raise `ValueError` if kernel, mean or (if `noisy`) noise do not know some rows, such as a label out of range."""
    model = models.example
    noise = getattr(model, "noise", None)
    for name, x in zip(names, rows, strict=True):
        try:
            check_known(model, x)
            if noisy and callable(noise):
                check_noise(noise, x)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def _on_host(leaf: Any) -> Any:
    return np.asarray(leaf) if eqx.is_array(leaf) else leaf


def _stacked(*leaves: Any) -> Any:
    return np.stack([np.asarray(leaf) for leaf in leaves]) if eqx.is_array(leaves[0]) else leaves[0]


def _form(model: AbstractModel) -> Any:
    arrays, rest = eqx.partition(model, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return [leaf.shape for leaf in leaves], structure, jax.tree.flatten(rest)


def solver_for_many(solver: Any) -> AbstractSolver:
    """The solver of many datasets, `Cholesky()` by default. Raises `TypeError` if it needs a grid."""
    if isinstance(solver, AbstractSolver) and solver.needs_grid:
        raise TypeError(
            f"{solver!r} needs a kx.Grid, and functions of many datasets turn grids into rows, which they pad to common "
            "shapes: call kx.fit or kx.condition for each grid, which compiles each shape once, or use another solver."
        )
    return Cholesky() if solver is None else solver
