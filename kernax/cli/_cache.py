"""JAX's persistent compilation cache, which keeps compiled programs between processes."""

import os
import warnings

import jax
from platformdirs import user_cache_path

MAX_BYTES = 64 * 2**20
"""Size of the folder. JAX deletes the programs that were not used for longest. One fit takes about half a MiB."""


def use_cache() -> None:
    """Keep compiled programs in the user's cache folder. Nothing is written before the first program is compiled.

    The folder is `kernax` in the platform's cache folder, unless JAX has one already (`JAX_COMPILATION_CACHE_DIR`). JAX
    locks it while it reads or writes, so several processes may share it. Its entries depend on the versions of JAX and XLA
    and on the CPU, and the names of kernax's own targets carry a version, so no entry meets a process that it does not fit.
    """
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        folder = user_cache_path("kernax", appauthor=False) / "programs"
        if not folder.is_absolute():  # a user without a home
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A fit consists of dozens of programs, most of which take less than JAX's default of one second.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "JAX_LOGGING_LEVEL" not in os.environ:
        # XLA logs an error for settings of the compiler that it mistakes for features that the CPU lacks.
        jax.config.update("jax_logging_level", "CRITICAL")
    # A folder that cannot be used only costs time.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")


def leave_cache(wanted: bool) -> None:
    """The callback of `--no-cache`: if it is set, neither read nor write the cache."""
    if wanted:
        jax.config.update("jax_enable_compilation_cache", False)
