"""Saving and loading."""

import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from kernax._version import __version__
from kernax.io._decode import Decoder
from kernax.io._encode import Encoder
from kernax.io._file import FORMAT, FileError, pack, unpack, whole_file


def save(path: str | os.PathLike, value: Any, *, targets: bool = True) -> None:
    """Write a model, a `Conditioned`, a `Fit`, `Fits`, a learner, or a list, tuple or dict of them, to one file.

    An existing file is replaced in one step: if that is interrupted, the old file is still there. Nothing is pickled.

    **Arguments:**

    - `path`: the file.
    - `value`: what to save. A `Conditioned` includes its factor (two n × n matrices), so that loading it needs no
      factorisation. A `Fit` is smaller; use `kx.condition(fit.model, fit.data)` after loading. Classes and functions of your
      own must first be allowed with [`kernax.io.register`][].
    - `targets`: with `False`, the targets `y` of every `Conditioned` are left out, for a file that only serves to predict.
      Means, variances, samples and classes do not need them. Results that do need them, such as leave-one-out means, become
      NaN. A `Fit` keeps its targets. This does not keep the targets secret: they can be computed from the coefficients and
      residuals.

    **Returns:**

    `None`.
    """
    encoder = Encoder(targets)
    root = encoder.encoded(value, type(value).__name__)
    structure = {"format": FORMAT, "version": __version__, "value": root}
    content = pack(structure, encoder.arrays)
    with whole_file(path) as file:
        file.write(content)


def load(path: str | os.PathLike, *, dtype: Any = None) -> Any:
    """Read a file that [`kernax.save`][] wrote.

    Loading runs no code from the file. A file holds JSON and raw arrays, and names only classes and objectives of kernax,
    layers of Equinox, activations of `jax.nn`, elementwise functions of `jax.numpy`, and what you have allowed with
    [`kernax.io.register`][]. Raises `FileError`, with the path and the reason, if a byte of the file has changed.

    **Arguments:**

    - `path`: the file.
    - `dtype`: a floating type to convert all floating-point arrays to. If JAX is set to 32 bits, a float64 file raises an
      error unless `dtype` is float32.

    **Returns:**

    What was saved, bit for bit unless `dtype` is given.
    """
    if dtype is not None and not jnp.issubdtype(np.dtype(dtype), jnp.floating):
        raise ValueError(f"dtype must be a floating-point type such as 'float32', got {dtype!r}.")
    content = Path(path).read_bytes()
    try:
        structure, arrays = unpack(content)
        if structure["format"] > FORMAT:
            raise FileError(
                f"a newer kernax wrote it (version {structure['version']}, file format {structure['format']}; this one "
                f"reads up to format {FORMAT}): upgrade kernax"
            )
        return Decoder(arrays, dtype).decoded(structure["value"])
    except FileError as error:
        raise FileError(f"{os.fspath(path)} cannot be loaded: {error}.") from None
    except Exception as error:
        raise FileError(f"{os.fspath(path)} cannot be loaded: it is damaged ({type(error).__name__}: {error}).") from error
