"""20,000 ragged datasets through a Dask cluster of two single-threaded workers, against the local run.

The sets of `fit_many`, scaled RBF and noise, from the same start. Both sides have the same cores, and a fresh process each
turn; the least time counts. `cold` is the first call: compilation is included on both sides (each worker compiles for
itself), and imports and the start of the cluster are not, on any side. `warm` is the second call. `parquet` is the warm call
with the sets as groups of a Parquet file, which the workers read themselves; its peer has the sets in memory. Values,
parameters, steps and results must be the same to the bit. `--sizes` gives another number of sets.
"""

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks.fit_many import parameters_of, sets, start

SETS, WORKERS = 20_000, 2
GOAL = 1.15
MOST_TURNS = 2


def run(options: Options) -> RatioTable:
    count = options.sizes_or(SETS)[0]
    table = RatioTable("sets", "what")
    missing = [name for name in ("distributed", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped, not installed: {', '.join(missing)}.")
        return table
    runs: dict[str, list[dict]] = {"here": [], "through_dask": []}
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(count, Path(folder) / "sets.parquet")
        for _ in range(min(options.turns, MOST_TURNS)):
            for side, timed in runs.items():
                _quiet.wait(options.wait)
                timed.append(_fresh.call(f"benchmarks.dask_many:{side}", count, folder))
        answers = {path.stem: dict(np.load(path)) for path in Path(folder).glob("*.npz")}
    least = {side: {what: min(one[what] for one in timed) for what in timed[0]} for side, timed in runs.items()}
    local = answers.pop("here")
    agree = {name: all(np.array_equal(local[key], other[key]) for key in local) for name, other in answers.items()}
    for what, peer in (("cold", "cold"), ("warm", "warm"), ("parquet", "warm")):
        ours, theirs = least["through_dask"][what], least["here"][peer]
        table.compare(count, what, peer="local run", ours=ours, theirs=theirs, goal=GOAL, agree=agree[what])
    return table


def write_parquet(count: int, path: Path) -> None:
    """The sets as groups of a file, 65,536 rows to a row group."""
    import pyarrow.parquet

    every = list(sets(count))
    columns = {
        "number": np.repeat(np.arange(count), [len(y) for _, y in every]),
        "x": np.concatenate([x[:, 0] for x, _ in every]),
        "y": np.concatenate([y for _, y in every]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=65536)


def here(count: int, folder: str) -> dict[str, float]:
    """In a process of its own."""
    import scipy.linalg  # noqa: F401  (imports are not timed)

    import kernax as kx

    given = list(sets(count))
    cold, fits = _timed(lambda: kx.fit_many(start(), given))
    _keep(fits, folder, "here")
    warm, _ = _timed(lambda: kx.fit_many(start(), given))
    return {"cold": cold, "warm": warm}


def through_dask(count: int, folder: str) -> dict[str, float]:
    """In a process of its own."""
    import distributed

    import kernax as kx

    given = list(sets(count))
    groups = kx.data.groups(Path(folder) / "sets.parquet", by="number", x="x", y="y")
    seconds = {}
    with (
        distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(_import)
        executor = client.get_executor()
        for what, datasets in (("cold", given), ("warm", given), ("parquet", groups)):
            seconds[what], fits = _timed(lambda datasets=datasets: kx.fit_many(start(), datasets, executor=executor))
            _keep(fits, folder, what)
    return seconds


def _import() -> None:
    """In every worker."""
    import jax
    import scipy.linalg  # noqa: F401

    import kernax  # noqa: F401

    jax.local_devices()


def _timed(call: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = call()
    return time.perf_counter() - begun, answer


def _keep(fits: Any, folder: str, name: str) -> None:
    numbers = {"value": fits.value, "steps": fits.num_steps, "result": np.asarray(fits.result._value)}
    np.savez(Path(folder) / f"{name}.npz", parameters=np.stack(parameters_of(fits)), **numbers)
