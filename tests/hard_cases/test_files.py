"""H34–H37: files that are damaged, of another kind or version, that try to run code, and saving that is interrupted."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.io._file import pack, unpack

MODEL = kx.Model(1.0 * kx.RBF(jnp.ones(2)) + kx.Linear(), 0.1)


@pytest.fixture
def path(tmp_path):
    kx.save(tmp_path / "model.kx", MODEL)
    return tmp_path / "model.kx"


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(kx.io.FileError) as caught:
        kx.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_h34_cut_at_any_byte(path):
    content = path.read_bytes()
    for length in range(len(content)):
        refused(path, content[:length])
    path.write_bytes(content)
    assert repr(kx.load(path)) == repr(MODEL)


def test_h34_any_byte_changed(path):
    """One bit of every byte, and another byte in place of every byte: some thousand files."""
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        for mask in (1 << int(rng.integers(8)), int(rng.integers(1, 256))):
            damaged = bytearray(content)
            damaged[place] ^= mask
            refused(path, bytes(damaged))


def test_h34_several_places_changed_swapped_or_cut_out(path):
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(500):
        start, stop = sorted(rng.integers(0, len(content), size=2).tolist())
        noise = rng.bytes(stop - start + 1)
        for damaged in (content[:start] + noise + content[stop + 1 :], content[:start] + content[stop + 1 :]):
            if damaged != content:
                refused(path, damaged)


@pytest.mark.parametrize("tail", [b"\0", b" ", b"\n", b"x" * 100])
def test_h34_bytes_appended(path, tail):
    refused(path, path.read_bytes() + tail)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04", b"\xff" * 100, b"\0" * 100, b"mean,sd\n1,2\n"])
def test_h34_another_kind_of_file(path, content):
    assert "not a kernax file" in refused(path, content)


def test_h34_no_file_and_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.kx"):
        kx.load(tmp_path / "absent.kx")
    with pytest.raises(OSError):
        kx.load(tmp_path)


def changed(path, change):
    """The file with its structure changed and its checksum right."""
    structure, arrays = unpack(path.read_bytes())
    change(structure)
    return pack(structure, arrays)


def test_h35_a_newer_version(path):
    content = changed(path, lambda s: s.update(format=2, version="9.1"))
    message = refused(path, content)
    assert "a newer kernax wrote it (version 9.1, file format 2" in message
    assert "upgrade kernax" in message


def test_h35_an_unknown_kernel(path):
    def change(structure):
        structure["value"]["fields"]["kernel"]["class"] = "kernax.kernels.Summ"

    assert "it refers to 'kernax.kernels.Summ', which is not an allowed" in refused(path, changed(path, change))


def test_h35_a_newer_field_kind_or_result(path):
    assert "has the field 'spare'" in refused(path, changed(path, lambda s: s["value"]["fields"].update(spare=1)))
    path.unlink()
    kx.save(path, MODEL)
    assert "holds a 'tensor', which this version does not know" in refused(
        path, changed(path, lambda s: s.update(value={"tensor": 1}))
    )


def test_h35_double_precision_where_jax_is_set_to_single(path):
    """In a process of its own, which is as JAX comes."""
    script = """
import sys, numpy as np, jax, kernax as kx
try:
    kx.load(sys.argv[1])
except kx.io.FileError as error:
    print(error)
model = kx.load(sys.argv[1], dtype="float32")
print(model.noise.dtype, model.kernel.kernels[0].kernel.lengthscale.dtype, float(model.noise) == np.float32(0.1))
"""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, env=environment, check=True
    )
    first, second = done.stdout.splitlines()
    assert str(path) in first
    assert "it holds float64 numbers, but JAX is set to 32 bits" in first
    assert 'kx.load(path, dtype="float32")' in first
    assert second == "float32 float32 True"


@pytest.mark.parametrize(
    "value",
    [
        {"function": "os.system"},
        {"function": "builtins.eval"},
        {"function": "kernax.io.load"},
        {"function": "jax.numpy.save"},
        {"partial": {"function": "kernax.fitting.fit_many"}, "args": [], "keywords": {"checkpoint": "ran"}},
        {"function": "kernax.data.groups"},
        {"partial": {"function": "subprocess.run"}, "args": ["touch ran"], "keywords": {}},
        {"class": "subprocess.Popen", "fields": {"args": "touch ran"}},
        {"class": "kernax.io._file.os.system", "fields": {}},
        {"class": "builtins.type", "fields": {}},
        {"class": "kernax.kernels.RBF", "fields": {"__class__": {"class": "os._Environ", "fields": {}}}},
        {"class": "kernax.kernels.RBF", "fields": {"lengthscale": 1.0, "pair": {"function": "jax.nn.relu"}}},
        {"class": "jax.nn.relu", "fields": {}},
        {"times": {"array": "0"}, "units": "object"},
        {"absent": [2**40, 2**40], "like": {"array": "0"}, "type": "float32"},
        {"absent": [2**40], "like": {"array": "0"}, "type": "float32"},
        {"bits": {"array": "0"}, "type": "object", "shape": [1]},
        {"array": "../../etc/passwd"},
        {},
        [[[]]] * 3 + [{"array": 5}],
    ],
)
def test_h36_files_that_try_to_run_code_or_to_confuse(path, value, tmp_path):
    refused(path, changed(path, lambda s: s.update(value=value)))
    assert not (tmp_path / "ran").exists()


def test_h36_depth_without_end(path):
    deep = {"tuple": []}
    for _ in range(200):
        deep = {"tuple": [deep]}
    path.write_bytes(changed(path, lambda s: s.update(value=deep)))
    try:
        loaded = kx.load(path)
    except kx.io.FileError:
        return
    assert isinstance(loaded, tuple)


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left")])
def test_h37_saving_is_interrupted(path, step, error, monkeypatch):
    def interrupted(*args):
        raise error

    if step == "write":
        monkeypatch.setattr(os, "fdopen", interrupted)
    else:
        monkeypatch.setattr(os, step, interrupted)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        kx.save(path, kx.RBF(3.0))
    monkeypatch.undo()
    assert repr(kx.load(path)) == repr(MODEL)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.kx"]


def test_h37_a_killed_process_leaves_the_old_file(path):
    """Killed in the middle of writing, as hard as it gets."""
    script = """
import os, sys, kernax as kx
os.replace = lambda *_: os.kill(os.getpid(), 9)
kx.save(sys.argv[1], kx.RBF(3.0))
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    assert repr(kx.load(path)) == repr(MODEL)


def test_h37_the_new_file_has_the_permissions_of_the_old_and_folders_are_not_made(path, tmp_path):
    path.chmod(0o640)
    kx.save(path, kx.RBF(3.0))
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileNotFoundError, match="create it before writing"):
        kx.save(tmp_path / "no" / "model.kx", MODEL)
    with pytest.raises(IsADirectoryError):
        kx.save(tmp_path, MODEL)


def test_h37_links_stay_links_and_what_is_no_file_is_not_replaced(path, tmp_path):
    link = tmp_path / "link.kx"
    link.symlink_to(path)
    kx.save(link, kx.RBF(3.0))
    assert link.is_symlink()
    assert repr(kx.load(path)) == repr(kx.RBF(3.0))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        kx.save(tmp_path / "pipe", MODEL)
