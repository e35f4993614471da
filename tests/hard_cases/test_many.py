"""Many datasets of which some are sick, runs that are cut off, and calls that make no sense."""

import contextlib
import dataclasses
import os
import signal
import threading

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import kernax as kx
from kernax._fingerprints import fingerprint
from kernax.fitting import _engine, _fit_block, _many, _plan


class Turning(kx.kernels.AbstractStationary):
    """`exp(-r²/2ℓ²)`, and -2 beyond a hundred lengthscales: no kernel for rows that lie so far apart."""

    lengthscale: jax.Array = kx.positive(default=1.0)

    def of_squared_distance(self, s):
        return jnp.where(s > 1e4, -2.0, jnp.exp(-0.5 * s))


def made(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(n, 1))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * rng.normal(size=n)


# All are padded to 16 rows: one shape, and so one compiled program for each setting.
SETS = [made(n, seed=i) for i, n in enumerate([12, 9, 10] * 4)]
MODEL = kx.Model(1.0 * Turning(lengthscale=1.0), noise=0.5)
SICK = {
    "nan in y": (SETS[0][0], np.where(np.arange(12) == 3, np.nan, SETS[0][1])),
    "infinite x": (np.where(np.arange(9) == 3, np.inf, 1.0)[:, None], SETS[1][1]),
    "not definite": (1e3 * SETS[0][0], SETS[0][1]),
    "no rows": (np.zeros((0, 1)), np.zeros(0)),
    "no row counts": (SETS[0][0], SETS[0][1], np.zeros(12, bool)),
}
STATUS = ["nonfinite", "nonfinite", "not_positive_definite", "empty", "empty"]
LAYOUTS = {
    "one after another": {"together": False},
    # The budget is that of 16 lanes.
    "together": {"together": True, "memory_budget": 16 * 10 * 8 * 16**2},
}
WINDOWS_OF_THREE = 4 * 3 * 12 * (8 + 8 + 1)
"""The memory_budget whose quarter holds three datasets of 12 rows: x, y and mask."""


@pytest.fixture(scope="module")
def healthy():
    return {name: kx.fit_many(MODEL, SETS, **layout) for name, layout in LAYOUTS.items()}


@pytest.fixture(scope="module")
def fits(healthy):
    return healthy["one after another"]


def of(fits, which):
    """Some of the fits, taken on the host: JAX would compile a program for every array."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], fits)


def assert_identical(ours, theirs):
    """To the bit, but for the names."""
    chex.assert_trees_all_equal(jax.tree.leaves(ours), jax.tree.leaves(theirs))


# H27, H30: sick datasets among others


@pytest.mark.parametrize("layout", LAYOUTS)
def test_h27_sick_datasets_leave_the_others_to_the_bit(layout, healthy):
    among = [*SETS[:4], *SICK.values(), *SETS[4:]]
    fits = kx.fit_many(MODEL, among, **LAYOUTS[layout])
    assert fits.result_names[4:9].tolist() == STATUS
    assert np.isnan(of(fits.value, slice(4, 9))).all()
    # Each keeps the model that it was given.
    given = jax.tree.map(lambda leaf: np.broadcast_to(leaf, 5), MODEL)
    chex.assert_trees_all_close(of(fits.model, slice(4, 9)), given)
    others = np.r_[0:4, 9:17]
    assert not fits.failed[others].any()
    assert_identical(of(fits, others), healthy[layout])
    in_its_place = kx.fit_many(MODEL, [SICK["nan in y"], *SETS[1:]], **LAYOUTS[layout])
    assert_identical(of(in_its_place, slice(1, None)), of(healthy[layout], slice(1, None)))


def test_h30_no_dataset_has_rows():
    fits = kx.fit_many(MODEL, [SICK["no rows"], SICK["no row counts"], ([], [])])
    assert fits.result_names.tolist() == ["empty"] * 3
    assert fits.num_rows.tolist() == [0, 0, 0]
    assert "3 empty" in repr(fits)


def test_h32_all_starts_of_a_sick_dataset_fail():
    fits = kx.fit_many(MODEL, [*SETS[:2], *SICK.values()], restarts=2)
    assert fits.result_names.tolist() == ["successful"] * 2 + ["all_starts_failed"] * 3 + ["empty"] * 2
    arrived = np.asarray(fits.start_values)
    np.testing.assert_array_equal(arrived[2:], np.inf)
    np.testing.assert_array_equal(of(fits.value, slice(2)), arrived[:2].min(axis=1))


def test_h27_one_model_for_all_refuses_nan_and_names_the_dataset():
    with pytest.raises(ValueError, match=r"dataset 2 has NaN or infinite"):
        kx.fit_many(MODEL, [*SETS[:2], SICK["nan in y"]], shared=True)
    with pytest.raises(ValueError, match="no dataset with rows"):
        kx.fit_many(MODEL, [SICK["no rows"], SICK["no row counts"]], shared=True)


# H28: gradient clipping


CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.05))


CLIPPING = {"optimiser": CLIPPED, "max_steps": 6, **LAYOUTS["together"]}


def test_h28_gradients_are_clipped_lane_by_lane():
    """A lane whose gradient is 1e12 times as long changes no other, and each is as if fitted alone."""
    x, y = SETS[0]
    steep = kx.fit_many(MODEL, [(x, 1e6 * y), *SETS[1:]], **CLIPPING)
    level = kx.fit_many(MODEL, SETS, **CLIPPING)
    assert float(steep.gradient_norm[0]) > 1e9 * float(level.gradient_norm[0])
    assert_identical(of(steep, slice(1, None)), of(level, slice(1, None)))
    single = kx.fit(MODEL, kx.Data(x, y), optimiser=CLIPPED, max_steps=6)
    np.testing.assert_allclose(level.value[0], single.value, rtol=1e-10)
    np.testing.assert_allclose(level.model.noise[0], single.model.noise, rtol=1e-8)


# H29: garbage behind a mask


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e300])
def test_h29_garbage_behind_a_mask_changes_no_bit(layout, garbage, healthy):
    masked = []
    for x, y in SETS:
        more = 12 - len(y)
        rows, targets = np.concatenate([x, np.full((more, 1), garbage)]), np.append(y, np.full(more, garbage))
        masked.append((rows, targets, np.arange(12) < len(y)))
    assert_identical(kx.fit_many(MODEL, masked, **LAYOUTS[layout]), healthy[layout])


# H41: compilations


@pytest.fixture
def compilations():
    """A list that grows by the name of every program that XLA compiles, in whichever thread."""
    names = []

    def listen(event, _, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_h41_the_same_shapes_again_compile_nothing(layout, healthy, compilations):
    jax.jit(lambda a: a + 1.0)(1.0)
    assert len(compilations) == 1  # it would be seen
    compilations.clear()
    other = kx.Model(0.7 * Turning(lengthscale=2.0), noise=0.3)
    kx.fit_many(other, [made(n, seed=100 + n) for n in (12, 8, 9, 12, 10, 9, 8, 12, 10, 9, 10, 12)], **LAYOUTS[layout])
    assert compilations == []
    more = kx.fit_many(MODEL, SETS * 4, **LAYOUTS[layout])
    # `stage` moves the results, which are more, to the device, and `ended` reads them off.
    assert set(compilations) <= {"jit(stage)", "jit(ended)"}
    for number in range(4):
        assert_identical(of(more, slice(12 * number, 12 * number + 12)), healthy[layout])


# Checkpoints


@pytest.fixture
def lanes_run(monkeypatch):
    """A list that grows by the numbers of the datasets that are fitted, window by window."""
    windows, run = [], _many.run_blocks

    def recorded(spec, blocks, *rest, **options):
        windows.append(sorted(int(n) for block in blocks for n in block.numbers))
        return run(spec, blocks, *rest, **options)

    monkeypatch.setattr(_many, "run_blocks", recorded)
    return windows


def parts(folder):
    return sorted(folder.glob("part-*.npz"))


class CutOffError(RuntimeError):
    pass


def cut_off(after, error=CutOffError):
    yield from SETS[:after]
    raise error


def test_a_finished_run_is_read_back(tmp_path, fits, lanes_run):
    folder = tmp_path / "new" / "folder"
    assert_identical(kx.fit_many(MODEL, SETS, checkpoint=folder), fits)
    assert parts(folder)
    assert not list(folder.glob("*.tmp"))
    lanes_run.clear()
    again = kx.fit_many(MODEL, {f"set {i}": own for i, own in enumerate(SETS)}, checkpoint=str(folder))
    assert lanes_run == []
    assert_identical(again, fits)
    assert again.keys[3] == "set 3"


def test_results_are_kept_as_they_come_and_a_run_goes_on_where_it_was(tmp_path, fits, lanes_run):
    with pytest.raises(CutOffError):
        kx.fit_many(MODEL, cut_off(7), memory_budget=WINDOWS_OF_THREE, checkpoint=tmp_path)
    assert lanes_run == [[0, 1, 2], [3, 4, 5]]
    assert len(parts(tmp_path)) == 2
    # A file that was being written when the process was killed.
    (tmp_path / f"{parts(tmp_path)[0].name}.0123abcd.tmp").write_bytes(b"PK")
    lanes_run.clear()
    assert_identical(kx.fit_many(MODEL, SETS, checkpoint=tmp_path), fits)
    assert lanes_run == [[6, 7, 8, 9, 10, 11]]


def test_files_are_written_within_a_window_too(tmp_path, monkeypatch):
    monkeypatch.setattr("kernax.fitting._collect._WRITE_EVERY", 0.0)
    kx.fit_many(MODEL, SETS * 3, checkpoint=tmp_path)
    assert len(parts(tmp_path)) > 1


def test_failed_fits_are_results_too(tmp_path, lanes_run):
    among = [SETS[0], *SICK.values()]
    first = kx.fit_many(MODEL, among, checkpoint=tmp_path)
    lanes_run.clear()
    assert_identical(kx.fit_many(MODEL, among, checkpoint=tmp_path), first)
    assert lanes_run == []
    assert first.failed.tolist() == [False] + [True] * 5


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    kx.fit_many(MODEL, SETS, checkpoint=folder)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": kx.Model(1.0 * Turning(lengthscale=2.0), noise=0.5)}, "another fit. It differs in model"),
        ({"model": kx.Model(1.0 * kx.RBF(lengthscale=1.0), noise=0.5)}, "another fit. It differs in model"),
        ({"model": [MODEL] * 12}, "another fit. It differs in model"),
        ({"max_steps": 499}, r"differs in max_steps \(max_steps there: 500; here: 499\)"),
        ({"objective": kx.loo_mse}, "differs in gradient_tolerance, objective, value_tolerance"),
        ({"optimiser": optax.adam(0.1)}, "differs in optimiser"),
        ({"solver": kx.Eigh()}, "differs in solver"),
        ({"restarts": 1}, "restarts"),
        ({"initialise": True}, "differs in initialise"),
        ({"trainable": kx.freeze(MODEL, where=lambda m: m.noise)}, "differs in trainable"),
        ({"datasets": [*SETS[:3], SETS[0], *SETS[4:]]}, "dataset 3 is not the one"),
        ({"datasets": [(x.astype(np.float32), y.astype(np.float32)) for x, y in SETS]}, "dtype"),
        ({"datasets": SETS[:11]}, "more than these 11 datasets"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_checkpoint_of_another_fit_is_refused(change, words, kept, lanes_run):
    call = {"model": MODEL, "datasets": SETS} | change
    with pytest.raises(ValueError, match=words):
        kx.fit_many(call.pop("model"), call.pop("datasets"), checkpoint=kept, **call)
    assert lanes_run == []


def with_functions(shift):
    """Made anew in every call, as in every process."""

    @jax.jit
    def activation(a):
        return jnp.tanh(a) + shift

    network = eqx.nn.MLP(1, 1, 2, 1, activation=activation, key=jax.random.key(0))
    kernel = kx.Warp(kx.Warp(kx.RBF(), network), lambda a: 2.0 * a)
    return kx.Model(kernel, noise=0.5), lambda c: jnp.log(c.model.noise) + shift


def test_functions_of_ones_own_are_known_by_what_they_do(tmp_path, lanes_run):
    """Not by where they lie in memory, which is elsewhere in the process that goes on."""
    model, objective = with_functions(0.0)
    first = kx.fit_many(model, SETS[:2], objective=objective, max_steps=1, checkpoint=tmp_path)
    model, objective = with_functions(0.0)
    again = kx.fit_many(model, SETS[:2], objective=objective, max_steps=1, checkpoint=tmp_path)
    assert_identical(again.value, first.value)
    assert len(lanes_run) == 1
    for other in ({"model": with_functions(1.0)[0]}, {"objective": with_functions(1.0)[1]}):
        call = {"model": model, "objective": objective} | other
        with pytest.raises(ValueError, match=f"another fit. It differs in {next(iter(other))}"):
            kx.fit_many(datasets=SETS[:2], max_steps=1, checkpoint=tmp_path, **call)


def test_an_optimiser_is_known_by_its_settings(tmp_path, lanes_run):
    kx.fit_many(MODEL, SETS, **CLIPPING, checkpoint=tmp_path)
    for rate in (0.05, 0.04):
        other = CLIPPING | {"optimiser": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(rate))}
        with contextlib.nullcontext() if rate == 0.05 else pytest.raises(ValueError, match="differs in optimiser"):
            kx.fit_many(MODEL, SETS, **other, checkpoint=tmp_path)
    assert len(lanes_run) == 1


def test_more_datasets_than_were_kept_are_fitted(tmp_path, fits, lanes_run):
    """A list that has grown goes on: what is there is there."""
    kx.fit_many(MODEL, SETS[:9], checkpoint=tmp_path)
    assert_identical(kx.fit_many(MODEL, SETS, checkpoint=tmp_path), fits)
    assert lanes_run[1:] == [[9, 10, 11]]


def test_a_damaged_checkpoint_is_refused(tmp_path, fits):
    kx.fit_many(MODEL, SETS, checkpoint=tmp_path)
    part = parts(tmp_path)[0]
    whole = part.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        part.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=f"{part.name} is damaged .* delete it, and its datasets are fitted again"):
            kx.fit_many(MODEL, SETS, checkpoint=tmp_path)
    part.unlink()
    assert_identical(kx.fit_many(MODEL, SETS, checkpoint=tmp_path), fits)
    (tmp_path / "fit.json").write_text("{")
    with pytest.raises(ValueError, match=r"fit\.json is damaged"):
        kx.fit_many(MODEL, SETS, checkpoint=tmp_path)


def test_a_byte_that_was_flipped_is_found(tmp_path, fits):
    kx.fit_many(MODEL, SETS, checkpoint=tmp_path)
    part = parts(tmp_path)[0]
    whole = bytearray(part.read_bytes())
    whole[whole.index(np.asarray(fits.value).tobytes())] ^= 1
    part.write_bytes(whole)
    with pytest.raises(ValueError, match="is damaged"):
        kx.fit_many(MODEL, SETS, checkpoint=tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"not empty and holds no checkpoint \(thesis\.tex"):
        kx.fit_many(MODEL, SETS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"must be a folder, but .* is a file"):
        kx.fit_many(MODEL, SETS, checkpoint=tmp_path / "thesis.tex")
    assert os.listdir(tmp_path) == ["thesis.tex"]


# H39: Ctrl-C


def test_h39_ctrl_c_while_the_data_is_read_returns_what_is_done(fits):
    stopped = kx.fit_many(MODEL, cut_off(7, KeyboardInterrupt), memory_budget=WINDOWS_OF_THREE)
    # The seventh was read, but its window not begun.
    assert_identical(of(stopped, slice(6)), of(fits, slice(6)))
    assert (stopped.result_names[6:] == "interrupted").all()


def test_h39_ctrl_c_before_anything_is_done_is_raised():
    with pytest.raises(KeyboardInterrupt):
        kx.fit_many(MODEL, cut_off(0, KeyboardInterrupt))


@pytest.mark.parametrize("budget", [2**30, WINDOWS_OF_THREE], ids=["one window", "several windows"])
def test_h39_ctrl_c_returns_an_entry_for_every_dataset(budget, fits, monkeypatch, tmp_path):
    """A real signal, which Python hands to the main thread while lanes run in others, when five datasets have ended."""
    main, once, ended, sites = threading.main_thread().ident, threading.Lock(), [], []
    advance, take, site = _fit_block.advance_lanes, _many.Collector.take, _engine.Site

    def counted(self, part):
        take(self, part)
        ended.extend(part.numbers)

    def one_turn(*args):
        if len(ended) >= 5:
            if once.acquire(blocking=False):
                signal.pthread_kill(main, signal.SIGINT)
            assert sites[-1].stop.wait(timeout=60.0)
        # Rounds of one turn, so that blocks, of one dataset each, are stopped on their way.
        return advance(*args[:4], jnp.asarray(np.int32(1)), *args[5:])

    monkeypatch.setattr(_plan, "_SMALLEST", 1)
    monkeypatch.setattr(_engine, "Site", lambda *args: sites.append(site(*args)) or sites[-1])
    monkeypatch.setattr(_many.Collector, "take", counted)
    monkeypatch.setattr(_fit_block, "advance_lanes", one_turn)
    # A process started in the background may have been told to ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopped = kx.fit_many(MODEL, SETS, memory_budget=budget, checkpoint=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(stopped) == 12
    done = ~stopped.failed
    assert 5 <= done.sum() < 12
    assert set(stopped.result_names[~done]) == {"interrupted"}
    assert_identical(of(stopped, done), of(fits, done))
    monkeypatch.undo()
    # What was interrupted is not done: the next run fits it to its end.
    assert_identical(kx.fit_many(MODEL, SETS, checkpoint=tmp_path), fits)


# Calls that make no sense


NOISY_ROWS = kx.Model(kx.RBF(), noise=np.ones(12))
WIDE = (np.zeros((4, 2)), np.zeros(4))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: kx.fit_many(MODEL, []), ValueError, "there is no dataset to fit"),
        (lambda: kx.fit_many(MODEL, iter(())), ValueError, "there is no dataset to fit"),
        (lambda: kx.fit_many(MODEL, [], shared=True), ValueError, "there is no dataset to fit"),
        (lambda: kx.fit_many(MODEL, "table.csv"), TypeError, r"write kx\.data\.groups"),
        (lambda: kx.fit_many(MODEL, SETS[0]), TypeError, r"for one dataset, write \[\(x, y\)\]"),
        (lambda: kx.fit_many(MODEL, kx.Data(*SETS[0])), TypeError, r"write \[data\]"),
        (lambda: kx.fit_many(MODEL, [SETS[0], 3.0]), TypeError, r"dataset 1: it must be \(x, y\)"),
        (lambda: kx.fit_many(MODEL, {"a": SETS[0], "b": WIDE}), ValueError, r"dataset 1 \('b'\) has 2 columns"),
        (lambda: kx.fit_many(MODEL, [(np.zeros((4, 1)), np.zeros(3))]), ValueError, "dataset 0: x has 4 rows and y has 3"),
        (lambda: kx.fit_many([MODEL] * 3, SETS), ValueError, "3 models for 12 datasets"),
        (lambda: kx.fit_many([MODEL] * 3, iter(SETS)), ValueError, "there are 3 models, but more datasets"),
        (lambda: kx.fit_many([MODEL] * 13, iter(SETS)), ValueError, "13 models"),
        (lambda: kx.fit_many([MODEL, kx.Model(kx.RBF(), 0.1)], SETS[:2]), ValueError, "model 1 has a different structure"),
        (lambda: kx.fit_many([MODEL, kx.RBF()], SETS[:2]), TypeError, "model 1 must be a kx.Model, got RBF"),
        (lambda: kx.fit_many([], SETS), TypeError, "model must be a kx.Model, a sequence"),
        (lambda: kx.fit_many(kx.RBF(), SETS), TypeError, "model must be a kx.Model, .* got RBF"),
        (lambda: kx.fit_many(NOISY_ROWS, SETS), ValueError, "given per row"),
        (lambda: kx.fit_many([NOISY_ROWS] * 12, SETS), ValueError, r"model 0 has its noise \(or penalty\) given per row"),
        (
            lambda: kx.fit_many(MODEL, SETS, trainable=kx.freeze(MODEL, where=lambda m: (m.kernel, m.noise))),
            ValueError,
            "nothing to fit",
        ),
        (
            lambda: kx.fit_many(MODEL, SETS, trainable=kx.parameters.trainable(NOISY_ROWS)),
            ValueError,
            r"make it with kx\.freeze",
        ),
        (lambda: kx.fit_many(MODEL, SETS, max_steps=0), ValueError, "max_steps"),
        (lambda: kx.fit_many(MODEL, SETS, devices=[]), ValueError, "devices"),
        (lambda: kx.fit_many([MODEL] * 12, SETS, shared=True), ValueError, "one fit of one model"),
        (lambda: kx.fit_many(MODEL, SETS, shared=True, checkpoint="folder"), ValueError, "no checkpoint"),
        (lambda: kx.predict_many(MODEL, SETS, [np.zeros((2, 1))] * 3), ValueError, "x has 3 arrays for 12 datasets"),
        (lambda: kx.predict_many(MODEL, SETS, np.zeros((2, 3))), ValueError, "x of dataset 0 has 3 columns"),
        (lambda: kx.predict_many(MODEL, SETS, np.zeros(2)), ValueError, "x has 2 arrays for 12 datasets"),
        (lambda: kx.predict_many(MODEL, SETS, None), TypeError, "x must"),
        (lambda: kx.predict_many(MODEL, [], np.zeros((2, 1))), ValueError, "there is no dataset"),
        (lambda: kx.predict_many([MODEL] * 2, SETS, np.zeros((2, 1))), ValueError, "2 models for 12 datasets"),
        (lambda: kx.fitting.condition_many([MODEL] * 2, SETS), ValueError, "2 models for 12 datasets"),
    ],
)
def test_calls_that_make_no_sense_say_what_to_write(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: kx.fit_many(MODEL, SETS, solver="eigh"),
        lambda: kx.fit_many(MODEL, SETS, objective="loo"),
        lambda: kx.fit_many(MODEL, SETS, optimiser="adam"),
        lambda: kx.fitting.condition_many(MODEL, SETS, "eigh"),
        lambda: kx.predict_many(MODEL, SETS, np.zeros((2, 1)), solver="eigh"),
    ],
)
def test_what_is_no_strategy_is_refused(call):
    with pytest.raises(TypeError):
        call()


def test_refits_want_the_same_datasets(fits):
    failed = eqx.tree_at(lambda f: f.result, fits, jax.tree.map(jnp.ones_like, fits.result))
    with pytest.raises(ValueError, match="give the same datasets"):
        kx.fitting.refit_many(failed, SETS[:3])


def test_fingerprints_tell_every_number_apart():
    def model(*numbers):
        a, b, c = numbers
        return kx.Model(1.0 * kx.RBF(1.0) + a * kx.Matern32(b) + 3.0 * kx.Linear(c), noise=0.1)

    network = [eqx.nn.MLP(1, 1, 4, 2, key=jax.random.key(0))]
    weights = eqx.tree_at(lambda n: n.layers[2].weight, network[0], replace_fn=lambda w: w + 1e-9)
    network += [weights, eqx.tree_at(lambda n: n.layers[1].bias, network[0], replace_fn=lambda b: b + 1e-9)]
    things = [model(2.0, 1.0, 1.0), model(2.0, 1.00001, 1.0), model(2.5, 1.0, 1.0), model(2.0, 1.0, 4.0), *network]
    things += [optax.adam(1e-2).update, optax.adam(1e-3).update]
    assert len({fingerprint(thing) for thing in things}) == len(things)
    assert fingerprint(model(2.0, 1.0, 1.0)) == fingerprint(things[0])
    assert fingerprint(optax.adam(1e-2).update) == fingerprint(things[-2])


def test_tables_of_nothing_and_of_names_in_several_parts(fits):
    assert all(len(column) == 0 for column in fits[[]].table().values())
    named = dataclasses.replace(fits[:2], keys=(("a", 1), ("b", 2)))
    assert pd.DataFrame(named.table())["dataset"].tolist() == [("a", 1), ("b", 2)]
    assert named["b", 2].value == fits[1].value
    text = str(kx.report(fits))
    assert f"{len(fits)} successful" in text
    assert "noise" in text


def test_a_refit_repeats_what_was_asked_before():
    held = kx.freeze(MODEL, where=lambda m: m.noise)
    first = kx.fit_many(MODEL, SETS[:3], objective=kx.loo_mse, trainable=held, max_steps=2)
    again = kx.fitting.refit_many(first, SETS[:3])
    np.testing.assert_array_equal(again.model.noise, first.model.noise)
    assert np.all(again.value <= first.value)
    with pytest.raises(ValueError, match="different objectives cannot be compared"):
        kx.fitting.refit_many(first, SETS[:3], objective=kx.gcv)


def test_a_refit_of_a_selection_finds_its_datasets():
    whole = kx.fit_many(MODEL, SETS[:6], max_steps=2)
    some = kx.fitting.refit_many(whole[[4, 1]], SETS[:6])
    chex.assert_trees_all_close(some.value, kx.fit_many(MODEL, SETS[:6]).value[jnp.array([4, 1])], rtol=1e-8)


@pytest.mark.parametrize("together", [False, True])
def test_datasets_too_short_for_a_spline_have_a_status(together):
    spline = kx.Model(kx.CubicSpline(), noise=1.0)
    short = [(np.zeros((0, 1)), np.zeros(0)), (np.ones((1, 1)), np.ones(1)), SETS[0]]
    assert kx.fit_many(spline, short, together=together).result_names.tolist() == ["empty", "rank_deficient", "successful"]


def test_names_of_any_type_are_looked_up_and_compared():
    numbered = {7: SETS[0], 3: SETS[1], 0: SETS[2]}
    fits = kx.fit_many(MODEL, numbered)
    assert fits.of(3).value == fits[1].value
    assert fits[np.array([2, 0])].keys == (0, 7)
    with pytest.raises(ValueError, match=r"the fit 0 is of 7, but dataset 0 \(0\)|the fit 0 is of 7, but dataset 0 was"):
        kx.predict_many(fits, dict(sorted(numbered.items())), SETS[0][0])
    with pytest.raises(KeyError, match="no dataset called 1"):
        fits.of(1)
    by_name = kx.predict_many(fits, numbered, {name: x[:2] for name, (x, _) in reversed(numbered.items())})
    in_order = kx.predict_many(fits, numbered, [x[:2] for x, _ in numbered.values()])
    chex.assert_trees_all_equal(by_name, in_order)
