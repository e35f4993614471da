"""The file itself: a safetensors file with a checksum of all bytes, written completely or not at all.

The structure and the checksum stand in the metadata of its header. The checksum is that of all bytes of the file, with
zeros in its own place, so that any tool that reads safetensors reads the arrays, and no byte can change unnoticed.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy

FORMAT = 1
_MARK = b'"checksum":"'
_UNKNOWN = "0" * 64


class FileError(ValueError):
    """Raised if a file cannot be loaded.

    The file is damaged, of another kind or of a newer version, or it contains something that is not allowed.
    """


def pack(structure: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file."""
    # Not ASCII only: a name such as "δ" stays itself. NaN has a form of its own, so that this is JSON for everybody.
    text = json.dumps(structure, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = bytearray(safetensors.numpy.save(arrays, {"kernax": text, "checksum": _UNKNOWN}))
    place = _place_of_checksum(content)
    content[place : place + len(_UNKNOWN)] = hashlib.sha256(content).hexdigest().encode()
    return bytes(content)


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Structure and arrays; a `FileError` without the path if one byte is not as it was written."""
    place = _place_of_checksum(content)
    written = content[place : place + len(_UNKNOWN)]
    found = hashlib.sha256(content[:place] + _UNKNOWN.encode() + content[place + len(_UNKNOWN) :]).hexdigest()
    if written != found.encode():
        raise FileError("it is damaged: its checksum does not match its content. Use another copy")
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    return json.loads(metadata["kernax"]), safetensors.numpy.load(content)


def _place_of_checksum(content: bytes | bytearray) -> int:
    """Where the checksum begins. The structure cannot hold the mark: there, quotation marks are escaped."""
    length = int.from_bytes(content[:8], "little")
    header = bytes(content[8 : 8 + length])
    if len(content) < 8 or len(header) < length or header.count(_MARK) != 1 or b'"kernax":"' not in header:
        raise FileError("it is not a kernax file, or it is damaged")
    place = 8 + header.index(_MARK) + len(_MARK)
    if place + len(_UNKNOWN) > 8 + length:
        raise FileError("it is damaged")
    return place


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A file to write that takes its place when the block ends well: at any time there is the old one or the new one, whole.

    A link stays one: what it leads to is replaced.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file, so it cannot be replaced: give another name.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it before writing {path.name}.")
    try:
        # In the same folder, since only there the renaming is one step.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode_of(path))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode_of(path: Path) -> int:
    """The permissions of the file that is replaced, or those of any new file (temporary ones are for the owner only)."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
