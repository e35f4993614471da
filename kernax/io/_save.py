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

    What is loaded is what was saved, bit for bit. A `Conditioned` keeps its factor, two n × n matrices, so that loading
    costs no factorisation; a `Fit` is smaller (`kx.condition(fit.model, fit.data)` after loading).

    `targets=False` leaves `y` out of every dataset in it, for a file to predict from: of what is conditioned, not of a
    `Fit`, which is conditioned after loading. Means, variances, samples and classes do not need it; what does (the mean of
    leave-one-out, say) is NaN. That keeps no secret: coefficients and residuals stay, and the targets can be computed from
    them.

    An existing file is replaced in one step: interrupted at any time, there is the old file or the new one. Classes and
    functions of your own must be allowed with `kx.io.register`; nothing is pickled.
    """
    encoder = Encoder(targets)
    root = encoder.encoded(value, type(value).__name__)
    structure = {"format": FORMAT, "version": __version__, "value": root}
    content = pack(structure, encoder.arrays)
    with whole_file(path) as file:
        file.write(content)


def load(path: str | os.PathLike, *, dtype: Any = None) -> Any:
    """What `save` wrote. `FileError`, with the path and the reason, if a single byte is not as it was written.

    Loading runs no code of the file: it holds JSON and raw arrays, and names only classes and objectives of kernax,
    Equinox's layers, activations of `jax.nn`, elementwise functions of `jax.numpy`, and what you have allowed with
    `kx.io.register`.

    `dtype` casts all floating-point arrays, for example a float64 file to float32 where JAX is set to 32 bits, which is
    refused otherwise.
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
