"""Run the benchmarks: all of them, or those named. `python -m benchmarks --list` lists them.

Read the ratio, not the seconds: both sides are timed in turns in the same run (`_timing.py`). A ratio below the goal is
"met". The exit code is 1 if two sides disagree on the answer, whatever the speed.
"""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from benchmarks._options import Options

MODULES = {
    "likelihood": "likelihood",
    "coregion": "coregion",
    "loo": "loo",
    "gram": "gram",
    "network_gram": "network_gram",
    "derivative_gram": "derivative_gram",
    "extend": "extend",
    "matern_nu": "matern_nu",
    "fit": "fit",
    "lasso_path": "lasso_path",
    "adaboost": "adaboost",
    "classification": "classification",
    "softmax": "softmax",
    "memory": "memory",
    "matvec": "matvec",
    "cg": "cg",
    "import": "import_time",
    "first_call": "first_call",
    "cache": "cache",
    "busy": "busy",
    "accuracy": "accuracy",
    "kronecker": "kronecker",
    "low_rank": "low_rank",
    "large_accuracy": "large_accuracy",
    "million": "million",
    "growth": "growth",
    "ridge_path": "ridge_path",
    "batch_step": "batch_step",
    "fit_many": "fit_many",
    "dask": "dask_many",
    "kernel_search": "kernel_search",
    "forecast": "forecast",
    "forecast_priors": "forecast_priors",
    "devices": "devices",
    "state_space": "state_space",
    "svc_digits": "svc_digits",
    "svr": "svr",
    "svr_batch": "svr_batch",
    "svr_gradient": "svr_gradient",
    "vecchia": "vecchia",
}


def main() -> int:
    names, options, listing = _arguments()
    _hold_to(options.cores)

    import jax

    jax.config.update("jax_enable_x64", True)
    if listing:
        for name in names:
            print(f"{name:12s} {(_module(name).__doc__ or '').splitlines()[0]}")
        return 0

    agreed = True
    for name in names:
        module = _module(name)
        print(f"\n## {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        begun = time.monotonic()
        table = module.run(options)
        agreed &= table.agreed
        print(f"\n({name}: {time.monotonic() - begun:.0f} s in all)", flush=True)
    return 0 if agreed else 1


def _arguments() -> tuple[list[str], Options, bool]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="benchmark", help=f"any of: {', '.join(MODULES)}; all if none is named")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--sizes", type=int, nargs="+", help="rows, instead of each benchmark's own sizes")
    parser.add_argument("--data", type=Path, default=os.environ.get("KERNAX_DATA"), help="folder of the UCI .npz files")
    parser.add_argument("--turns", type=int, default=5, help="how often each side is timed (default: 5)")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for a quiet machine before a turn (0)")
    parser.add_argument("--cores", type=int, default=2, help="cores that all sides are held to (default: 2)")
    parser.add_argument("--all", action="store_true", help="slow peers at large sizes, too")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(MODULES)}")
    data = None if given.data is None else Path(given.data)
    options = Options(given.sizes, data, given.turns, given.wait, given.cores, given.all)
    return given.names or list(MODULES), options, given.list


def _module(name: str):
    return importlib.import_module(f"benchmarks.{MODULES[name]}")


def _hold_to(cores: int) -> None:
    """Before any library starts its threads: they look at the affinity to decide how many."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, mine[:cores])


if __name__ == "__main__":
    sys.exit(main())
