"""Many models of one table: one for each value of a column."""

import re
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kernax.data import Data, groups
from kernax.fitting import Fits, fit_many, predict_many, score_many
from kernax.fitting._fits import NUM_FACTS
from kernax.io import register
from kernax.reports import Report
from kernax.reports._describe import report_of_fits
from kernax.reports._parameters import described_parameters, names_of
from kernax.selection import loo_mse
from kernax.tables._columns import Column, column_names, scales_of
from kernax.tables._design import as_names, feature_names, make_design, new_inputs
from kernax.tables._errors import TableError, listed, nearest
from kernax.tables._expressions import build_kernel
from kernax.tables._read import Table, as_table
from kernax.tables._start import BLIND_TO_SCALE, mean_square_score, note_on_variances, objective_of, start_of, times
from kernax.tables._table_fit import DEFAULT_KERNEL, check_level, check_noise, prediction_columns
from kernax.tables._write import time_text

_WHOLE = re.compile(r"-?\d+\.0+")
_LEAST_ROWS = 2
"""Of a group: one row alone says nothing of how rows differ."""


class ManyTableFits(eqx.Module):
    """A fitted model for each group of a table, the rows that it was fitted to, and how columns are read."""

    fits: Fits
    """The fits to standardised numbers, by the names of the groups."""
    x: Float[np.ndarray, "n d"]
    """Standardised inputs of all groups, one group after another."""
    y: Float[np.ndarray, " n"]
    """Standardised targets, in the same order."""
    sizes: Int[np.ndarray, " b"]
    """The rows of each group."""
    columns: tuple[Column, ...]
    target: Column
    by: str = eqx.field(static=True)
    """The column that names the groups."""
    kernel: str = eqx.field(static=True)
    """The expression, as it was written."""
    selected_by: str = eqx.field(static=True)
    """What was minimised."""
    source: str = eqx.field(static=True)
    """The table's file."""
    notes: tuple[str, ...] = eqx.field(static=True)
    """What to know about the table."""

    @property
    def needs_targets(self) -> bool:
        """Predictions are made from the targets."""
        return True

    def __len__(self) -> int:
        return len(self.fits)

    def datasets(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of each group, standardised."""
        ends = np.cumsum(self.sizes)[:-1]
        return list(zip(np.split(self.x, ends), np.split(self.y, ends), strict=True))

    def table(self) -> dict[str, np.ndarray]:
        """`Fits.table` with the names of the columns and with parameters in the units of the table.

        What is said of the fits themselves (`value`, `gradient_norm`, `jitter`) is of the standardised numbers.
        """
        columns = list(self.fits.table().items())
        names = names_of(None, column_names(self.columns), self.target.name, scales_of(self.columns, self.target))
        # A model of ones tells by what each number is to be multiplied.
        ones = jax.tree.map(lambda leaf: np.ones(leaf.shape[1:]) if eqx.is_array(leaf) else leaf, self.fits.model)
        factors = described_parameters(ones, names, False, most_entries=2**31)
        converted = dict(columns[:NUM_FACTS])
        for (name, values), factor in zip(columns[NUM_FACTS:], factors, strict=True):
            is_level = name == "mean.value"
            converted[factor.name] = self.target.restored(values) if is_level else values * float(factor.value)
        return converted

    def loo_rmse(self) -> np.ndarray:
        """The root mean square of each group's leave-one-out errors, in the target's units; NaN where the fit failed."""
        errors = _of_each(loo_mse, self.fits, self.datasets())
        return self.target.scale * np.sqrt(np.where(self.is_known, errors, np.nan))

    @property
    def is_known(self) -> np.ndarray:
        """Which groups have a model to predict from."""
        return np.isfinite(np.asarray(self.fits.value)) & (self.sizes >= _LEAST_ROWS)

    def report(self) -> Report:
        """What `kx.report` says of the fits, in the units of the table."""
        return report_of_fits(self.fits, self.table())

    def predict(
        self, table: Any, level: float = 0.95, *, noisy: bool = True, missing: Literal["error", "drop"] = "error"
    ) -> dict[str, np.ndarray]:
        """Columns `mean`, `sd`, `lower`, `upper` for the rows of another table, each from the model of its group."""
        return self.predict_rows(table, level, noisy=noisy, missing=missing)[0]

    def predict_rows(
        self,
        table: Any,
        level: float = 0.95,
        *,
        noisy: bool = True,
        missing: Literal["error", "drop"] = "error",
        model_name: str = "the model",
    ) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...]]:
        """`predict`, with the numbers of the rows that were kept, and what to know about them."""
        check_level(level)
        read = as_table(table)
        x, kept, notes = new_inputs(read, self.columns, missing=missing, model=model_name, others=[self.by])
        read = read.taken(kept)
        names = group_names(read, self.by)
        numbers = self._numbers(read, names, model_name)
        mean, variance = np.full(len(kept), np.nan), np.full(len(kept), np.nan)
        wanted = np.unique(numbers)
        datasets = self.datasets()
        rows = [np.flatnonzero(numbers == number) for number in wanted]
        chosen = {names[some[0]]: datasets[number] for number, some in zip(wanted, rows, strict=True)}
        points = {name: x[some].astype(self.y.dtype) for name, some in zip(chosen, rows, strict=True)}
        answers = predict_many(self.fits[wanted], chosen, points, noisy=noisy)
        for some, answer in zip(rows, answers, strict=True):
            mean[some], variance[some] = np.asarray(answer.mean), np.asarray(answer.variance)
        mean[~self.is_known[numbers]] = variance[~self.is_known[numbers]] = np.nan
        lost = int(np.sum(~np.isfinite(mean)))
        few = f", or that had fewer than {_LEAST_ROWS} rows"
        notes = (*notes, f"{lost} rows belong to groups whose fit failed{few}: they are left blank") if lost else notes
        return prediction_columns(self.target, mean, variance, level), kept, notes

    def _numbers(self, table: Table, names: list[str], model_name: str) -> np.ndarray:
        places: dict[Hashable, int] = {key: number for number, key in enumerate(self.fits.keys)}
        unknown = [i for i, name in enumerate(names) if name not in places]
        if unknown:
            near = nearest(names[unknown[0]], map(str, self.fits.keys))
            raise TableError(
                f"{table.source}: column {self.by!r} has {names[unknown[0]]!r} in {table.places(unknown)}, a group that "
                f"{model_name} does not know.{near} It knows {listed(list(map(str, self.fits.keys)), 8)}."
            )
        return np.array([places[name] for name in names], dtype=int)

    def __repr__(self):
        names = ", ".join(column.name for column in self.columns)
        return f"ManyTableFits({len(self)} groups by {self.by}: {self.target.name} from {names}, {self.kernel})"


register(ManyTableFits, name="kernax.tables.ManyTableFits")


def _of_each(quantity: Any, fits: Fits, datasets: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """One number for each group, from its model conditioned on its rows."""
    return score_many(fits, dict(zip(fits.keys, datasets, strict=True)), quantity)


def _calibrated(fits: Fits, datasets: list[tuple[np.ndarray, np.ndarray]]) -> Fits:
    """Each group's kernel and noise times what makes its leave-one-out errors as large as expected."""
    factors = _of_each(mean_square_score, fits, datasets)
    factors = np.where(np.isfinite(factors) & (factors > 0), factors, 1.0)
    kernel = times(fits.model.kernel, factors)
    if kernel is None:
        return fits
    noise = jnp.asarray(fits.model.noise * factors.astype(fits.model.noise.dtype))
    return eqx.tree_at(lambda f: (f.model.kernel, f.model.noise), fits, (kernel, noise))


def group_names(table: Table, by: str) -> list[str]:
    """The group of each row, as text: 3 and 3.0 are one group, and so are a day and its midnight, whatever the file."""
    values = table.column(by)
    if values.dtype.kind == "M":
        return [time_text(value) for value in values]
    if values.dtype != object:
        return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values.tolist()]
    return [text.split(".")[0] if _WHOLE.fullmatch(text) else text.removesuffix("T00:00:00") for text in values]


def fit_table_many(
    table: Any,
    target: str,
    by: str,
    *,
    columns: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    kernel: str = DEFAULT_KERNEL,
    select: str = "likelihood",
    noise: float | None = None,
    restarts: int = 0,
    missing: Literal["error", "drop"] = "error",
    date_unit: str | None = None,
    seed: int = 0,
    dtype: Any = None,
    max_steps: int = 500,
    progress: bool = False,
) -> ManyTableFits:
    """One fit for each value of the column `by`, with `kx.fit_many`; the options are those of `fit_table`.

    Columns are standardised once, for the whole table; each fit starts from values that suit its own rows, and those that
    were written in the kernel stand for all. A group that cannot be fitted has a status of its own.
    """
    objective = objective_of(select)
    check_noise(noise)
    read = as_table(table)
    read.column(by)
    if by == target:
        raise TableError(f"{read.source}: {by!r} is the target, and so cannot name the groups.")
    names = feature_names(read, target, as_names(columns), [by, *(as_names(ignore) or [])])
    design = make_design(read, target, names, missing=missing, date_unit=date_unit, others=[by])
    built = build_kernel(kernel, design.columns, target_scale=design.target.scale)
    dtype = jnp.result_type(float) if dtype is None else dtype
    x, y = design.x.astype(dtype), design.y.astype(dtype)
    named = {f"x{i}": x[:, i] for i in range(x.shape[1])} | {
        "y": y,
        "group": np.array(group_names(design.table, by), object),
    }
    datasets = list(groups(named, by="group", x=[f"x{i}" for i in range(x.shape[1])], y="y"))
    largest = max(len(group.y) for group in datasets)
    if largest > 20_000:
        raise TableError(f"{read.source}: the largest group has {largest} rows, too many for one fit: split it.")
    # Starting values suit each dataset, unless some are written: then the others suit the table as a whole.
    started = not any(built.given) and noise is None
    some = np.random.default_rng(seed).permutation(len(y))[:300]
    known = None if noise is None else noise / design.target.scale**2
    model, free = start_of(built, known, None if started else Data(x[some], y[some]), mean=0.0)
    if not any(jax.tree.leaves(free)):
        raise TableError("there is nothing to fit: every parameter is held.")
    fits = fit_many(
        model,
        {group.key: (group.x, group.y) for group in datasets},
        objective=objective,
        trainable=free,
        initialise=started,
        restarts=restarts,
        key=jax.random.key(seed),
        max_steps=max_steps,
        progress=progress,
    )
    notes, is_held = design.notes, noise is not None or any(built.held)
    if select in BLIND_TO_SCALE:
        fits = fits if is_held else _calibrated(fits, [(group.x, group.y) for group in datasets])
        notes = (*notes, note_on_variances(select, is_held))
    few = sum(len(group.y) < _LEAST_ROWS for group in datasets)
    if few:
        less = f"{few} of {len(datasets)} groups have fewer than {_LEAST_ROWS} rows"
        notes = (*notes, f"{less}: nothing is predicted for them")
    return ManyTableFits(
        fits=fits,
        x=np.concatenate([np.asarray(group.x, dtype) for group in datasets]),
        y=np.concatenate([np.asarray(group.y, dtype) for group in datasets]),
        sizes=np.array([len(group.y) for group in datasets]),
        columns=design.columns,
        target=design.target,
        by=by,
        kernel=kernel,
        selected_by=select,
        source=read.source,
        notes=notes,
    )
