"""Long fits that are interrupted: they resume, with the numbers of a fit that was not."""

import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kernax as kx
from kernax.fitting import _checkpoint, _lanes
from tests.hard_cases.test_checkpoints import run

X = np.random.default_rng(0).normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=60)
DATA, MODEL = kx.Data(X, Y), kx.Model(1.0 * kx.Matern32(jnp.ones(2)), 0.1)
OPTIMISER = optax.adam(0.05)
CASES = {
    "one start": {},
    "several starts": {"restarts": 2, "key": jax.random.key(0)},
    "rounds": {"solver": kx.Vecchia(6)},
    "adam": {"optimiser": OPTIMISER, "max_steps": 60},
}


class Killed(BaseException):
    """Nothing catches it."""


@pytest.fixture(autouse=True)
def _write_always(monkeypatch):
    monkeypatch.setattr(_checkpoint, "_WRITE_EVERY", 0.0)


def same(a, b):
    for one, other in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(one, other)


def interrupted_after(pieces, monkeypatch):
    """Let a process die with the state after so many pieces of work, and nothing after it, in its folder."""
    keep, flush = _checkpoint.FitCheckpoint.keep, _checkpoint.FitCheckpoint.flush
    left = [pieces]

    def counted(self, name, state):
        if left[0] <= 0:  # lanes run in threads
            raise Killed
        keep(self, name, state)
        left[0] -= 1

    monkeypatch.setattr(_checkpoint.FitCheckpoint, "keep", counted)
    monkeypatch.setattr(_checkpoint.FitCheckpoint, "flush", lambda self: flush(self) if left[0] > 0 else None)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [("one start", 2), ("several starts", 2), ("several starts", 5), ("rounds", 2), ("rounds", 7), ("adam", 3)],
)
def test_an_interrupted_fit_resumes_bit_for_bit(tmp_path, monkeypatch, name, pieces):
    expected = kx.fit(MODEL, DATA, **CASES[name])
    with monkeypatch.context() as patch:
        interrupted_after(pieces, patch)
        with pytest.raises(Killed):
            kx.fit(MODEL, DATA, checkpoint=tmp_path, **CASES[name])
    advanced = []
    with monkeypatch.context() as patch:
        patch.setattr(_lanes, "_advance", lambda *given, go=_lanes._advance: advanced.append(1) or go(*given))
        same(kx.fit(MODEL, DATA, checkpoint=tmp_path, **CASES[name]), expected)
        assert advanced
        advanced.clear()
        same(kx.fit(MODEL, DATA, checkpoint=tmp_path, **CASES[name]), expected)
        assert not advanced  # the fit was complete


PROGRAM = """
    import os, signal, sys
    import jax
    jax.config.update("jax_enable_x64", True)
    from kernax.fitting import _checkpoint
    _checkpoint._WRITE_EVERY = 0.0
    keep = _checkpoint.FitCheckpoint.keep

    def keep_and_die(self, name, state):
        keep(self, name, state)
        if "round 2" in name:
            os.kill(os.getpid(), signal.SIGKILL)

    _checkpoint.FitCheckpoint.keep = keep_and_die
    from tests.hard_cases.test_fit_checkpoints import CASES, DATA, MODEL
    import kernax as kx
    kx.fit(MODEL, DATA, checkpoint=sys.argv[1], **CASES["rounds"])
"""


def test_a_killed_process_leaves_what_the_next_one_needs(tmp_path):
    code = textwrap.dedent(PROGRAM)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["fit.json", "state.npz"]
    same(kx.fit(MODEL, DATA, checkpoint=tmp_path, **CASES["rounds"]), kx.fit(MODEL, DATA, **CASES["rounds"]))


def test_ctrl_c_keeps_what_was_reached(tmp_path, monkeypatch):
    def stopped(self, name, state, keep=_checkpoint.FitCheckpoint.keep):
        keep(self, name, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint.FitCheckpoint, "keep", stopped)
        first = kx.fit(MODEL, DATA, checkpoint=tmp_path)
    assert first.result == kx.Result.interrupted
    same(kx.fit(MODEL, DATA, checkpoint=tmp_path), kx.fit(MODEL, DATA))


def test_another_fit_is_refused(tmp_path, monkeypatch):
    kx.fit(MODEL, DATA, max_steps=2, checkpoint=tmp_path)
    given = {"model": MODEL, "data": DATA, "max_steps": 2}
    mask = np.arange(60) > 3
    changed = {
        "model": {"model": kx.Model(1.0 * kx.Matern32(jnp.full(2, 1.1)), 0.1)},
        "data": {"data": kx.Data(X + 1e-9, Y)},
        "data ": {"data": kx.Data(X, Y, mask)},
        "max_steps": {"max_steps": 3},
        "objective": {"objective": kx.loo_mse},
        "objective ": {"objective": run("thing = lambda c: 2.0 * kx.loo_mse(c)").thing},
        "solver": {"solver": kx.Eigh()},
        "optimiser": {"optimiser": OPTIMISER},
        "restarts": {"restarts": 1},
        "trainable": {"trainable": kx.freeze(MODEL, lambda m: m.noise)},
    }
    for name, change in changed.items():
        arguments = given | change
        with pytest.raises(ValueError, match=rf"belongs to another fit. It differs in .*{name.strip()}"):
            kx.fit(arguments.pop("model"), arguments.pop("data"), checkpoint=tmp_path, **arguments)
    with pytest.raises(ValueError, match="belongs to another fit"):
        kx.fit_many(MODEL, [DATA], checkpoint=tmp_path, max_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr("kernax.fitting._checkpoint.__version__", "0.0.1")
        with pytest.raises(ValueError, match=r"differs in kernax \(kernax there: .*; here: 0.0.1"):
            kx.fit(**given, checkpoint=tmp_path)


def test_rows_in_a_file_count_by_their_content(tmp_path):
    def fit(x):
        np.save(tmp_path / "x.npy", x)
        data = kx.Data(np.load(tmp_path / "x.npy", mmap_mode="r"), Y)
        return kx.fit(MODEL, data, max_steps=2, checkpoint=tmp_path / "kept")

    same(fit(X).value, fit(X.copy()).value)
    with pytest.raises(ValueError, match="differs in data"):
        fit(X + 1e-9)


def test_folders_and_files_that_are_no_checkpoints(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no checkpoint"):
        kx.fit(MODEL, DATA, max_steps=1, checkpoint=tmp_path / "mine")
    with pytest.raises(ValueError, match="cannot have a checkpoint: leave out checkpoint="):
        jax.jit(lambda y: kx.fit(MODEL, kx.Data(X, y), checkpoint=tmp_path / "a").value)(Y)
    kx.fit(MODEL, DATA, max_steps=1, checkpoint=tmp_path / "kept")
    content = (tmp_path / "kept" / "state.npz").read_bytes()
    (tmp_path / "kept" / "state.npz").write_bytes(content[:-30])
    with pytest.raises(ValueError, match=r"is damaged .*: delete it, and the fit begins again"):
        kx.fit(MODEL, DATA, max_steps=1, checkpoint=tmp_path / "kept")


def test_the_bar_shows_the_round(capsys):
    kx.fit(MODEL, DATA, solver=kx.Vecchia(6), max_steps=3, progress=True)
    shown = capsys.readouterr().err
    assert "fit, round 1 of 3" in shown
    assert "fit, round 3 of 3" in shown
