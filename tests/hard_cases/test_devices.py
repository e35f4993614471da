"""Many fits on several devices, in several processes, and in processes that are stopped."""

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import jax
import numpy as np
import pytest

import kernax as kx
from kernax.fitting import _many


def made(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(n, 1))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * rng.normal(size=n)


def sets():
    """All are padded to 16 rows."""
    return [made(8 + i % 5, i) for i in range(40)]


def model():
    return kx.Model(kx.RBF(1.0), 0.5)


def told(fits):
    """What is to be compared, for JSON."""
    numbers = {"value": fits.value, "noise": fits.model.noise, "lengthscale": fits.model.kernel.lengthscale}
    ended = {"keys": list(fits.keys), "results": list(fits.result_names), "steps": fits.num_steps.tolist()}
    return ended | {name: np.asarray(column).tolist() for name, column in numbers.items()}


IMPORTS = "import json, os, sys\nimport jax, numpy as np\nimport kernax as kx\n"
PRELUDE = IMPORTS + "\n".join(map(inspect.getsource, (made, sets, model, told)))


@contextlib.contextmanager
def started(code, *arguments, **settings):
    """A process that runs a script; it does not outlive the block."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"}
    # The same flags as here: what is compared with this process's answers is compiled as they are.
    flags = f"{environment['XLA_FLAGS']} {settings.pop('XLA_FLAGS', '')}"
    environment |= {"JAX_ENABLE_X64": "1", "XLA_FLAGS": flags} | settings
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # A hang ends the process, and with it what waits for its output.
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def answer(process):
    """The JSON that the script prints last; a hang or a fault fails the test."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def assert_same(ours, theirs, rtol):
    for name in ("keys", "results", "steps"):
        assert ours[name] == theirs[name], name
    for name in ("value", "noise", "lengthscale"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, err_msg=name)


@pytest.fixture(scope="module")
def alone():
    """What one undisturbed process, this one, finds on one device."""
    fits = kx.fit_many(model(), sets())
    assert not fits.failed.any()
    return told(fits)


def test_lanes_are_shared_out_to_all_devices_and_the_answers_are_the_same(alone):
    code = """
        from kernax.fitting import _engine, _fit_block, _plan

        _plan._SMALLEST = 1  # a block for each dataset
        lanes, used, lock = np.zeros(3, int), set(), __import__("threading").Lock()
        run, advance = _engine.run_block, _fit_block.advance_lanes

        def counted(spec, block, site):
            with lock:
                lanes[site.device.id] += len(block.numbers)
            return run(spec, block, site)

        def watched(*args):
            answer = advance(*args)
            used.update(device.id for leaf in jax.tree.leaves(answer) for device in leaf.devices())
            return answer

        _engine.run_block, _fit_block.advance_lanes = counted, watched

        def answers(**options):
            lanes[:] = 0
            used.clear()
            return told(kx.fit_many(model(), sets(), **options)) | {"lanes": lanes.tolist(), "used": sorted(used)}

        def shared():
            from kernax.fitting import _shared

            used.clear()
            run = _shared._sum_of_piece

            def watched(*args):
                answer = run(*args)
                used.update(device.id for device in answer[0][0].devices())
                return answer

            _shared._sum_of_piece = watched
            fit = kx.fit_many(model(), sets()[:7], shared=True, max_steps=6)
            return {"value": float(fit.value), "used": sorted(used)}

        def predicted():
            lanes[:] = 0
            answers = kx.predict_many(model(), sets(), np.full((1, 1), 0.5))
            return {"mean": [float(one.mean[0]) for one in answers], "lanes": lanes.tolist()}

        print(json.dumps([
            predicted(),
            answers(),
            answers(together=True, memory_budget=4 * 10 * 8 * 16**2),
            answers(devices=jax.devices()[2:3]),
            shared(),
        ]))
    """
    with started(code, XLA_FLAGS="--xla_force_host_platform_device_count=3") as process:
        predictions, apart, together, on_one, shared = answer(process)
    assert all(predictions["lanes"])
    here = [float(prediction.mean[0]) for prediction in kx.predict_many(model(), sets(), np.full((1, 1), 0.5))]
    np.testing.assert_allclose(predictions["mean"], here, rtol=1e-12)
    assert shared["used"] == [0, 1, 2]
    np.testing.assert_allclose(shared["value"], kx.fit_many(model(), sets()[:7], shared=True, max_steps=6).value, rtol=1e-8)
    for fits in (apart, together, on_one):
        assert_same(fits, alone, rtol=1e-8)
        np.testing.assert_allclose(fits["value"], alone["value"], rtol=1e-10)
        assert sum(fits["lanes"]) == 40
    for fits in (apart, together):
        assert fits["used"] == [0, 1, 2]
        assert min(fits["lanes"]) >= 1
    assert on_one["used"] == [2]
    assert on_one["lanes"] == [0, 0, 40]


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_processes_share_the_datasets_and_what_they_keep_outlives_them(tmp_path, alone, monkeypatch):
    """Two that work together and one that is killed after its first file; this one need fit only what is missing."""
    shared, left = tmp_path / "shared", tmp_path / "left"
    together = """
        port, process, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
        jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
        gathered = told(kx.fit_many(model(), sets(), checkpoint=folder))
        own = told(kx.fit_many(model(), sets(), gather=False))
        print(json.dumps({"gathered": gathered, "own": own}))
    """
    killed = """
        from kernax.fitting import _collect

        _collect._WRITE_EVERY, write = 0.0, _collect.Checkpoint.write

        def last_words(self, part):
            write(self, part)
            os.kill(os.getpid(), 9)

        _collect.Checkpoint.write = last_words
        kx.fit_many(model(), sets(), checkpoint=sys.argv[1])
    """
    port = free_port()
    with started(together, port, 0, shared) as first, started(together, port, 1, shared) as second:
        answers = [answer(process) for process in (first, second)]
    for number, given in enumerate(answers):
        assert_same(given["gathered"], alone, rtol=1e-12)
        assert_same(given["own"], {name: column[number::2] for name, column in alone.items()}, rtol=1e-12)

    with started(killed, left) as process:
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
    assert len(list(left.glob("part-*.npz"))) == 1
    fitted, run = [], _many.run_blocks

    def recorded(spec, blocks, *rest, **options):
        fitted.extend(int(number) for block in blocks for number in block.numbers)
        return run(spec, blocks, *rest, **options)

    monkeypatch.setattr(_many, "run_blocks", recorded)
    assert_same(told(kx.fit_many(model(), sets(), checkpoint=shared)), alone, rtol=1e-12)
    assert fitted == []
    assert_same(told(kx.fit_many(model(), sets(), checkpoint=left)), alone, rtol=1e-12)
    assert 0 < len(fitted) < 40


def test_h39_h43_lanes_together_end_on_two_cores_and_ctrl_c_from_outside_is_heard(alone):
    """Under vmap there is no batched LAPACK call on CPU; and a run that would last for weeks returns what it has."""
    code = """
        import itertools, signal
        from kernax.fitting import _fit_block

        # A process started in the background may have been told to ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        done = told(kx.fit_many(model(), sets(), together=True, memory_budget=16 * 10 * 8 * 16**2))
        advance, rounds = _fit_block.advance_lanes, itertools.count(1)

        def counted(*args):
            answer = advance(*args)
            if next(rounds) == 3:
                print("on its way", flush=True)
            return answer

        _fit_block.advance_lanes = counted
        never = {"gradient_tolerance": -1.0, "value_tolerance": 0.0, "patience": 10**8, "max_steps": 10**8}
        stopped = told(kx.fit_many(model(), sets(), **never))
        print(json.dumps({"done": done, "stopped": stopped}))
    """
    with started(code, NPROC="2") as process:
        assert process.stdout.readline().strip() == "on its way"
        process.send_signal(signal.SIGINT)
        answers = answer(process)
    assert_same(answers["done"], alone, rtol=1e-8)
    stopped = answers["stopped"]
    assert stopped["keys"] == alone["keys"]
    assert set(stopped["results"]) == {"interrupted"}
    # Those that were on their way hold the best point met, the others what they were given.
    begun = np.array(stopped["steps"]) > 0
    assert 0 < begun.sum() < 40
    np.testing.assert_array_equal(np.isfinite(stopped["value"]), begun)
    np.testing.assert_array_equal(np.array(stopped["noise"]) == 0.5, ~begun)


def likelihoods(mesh):
    """Value and gradient by the solvers that spread rows over devices; the rows do not divide by the devices."""
    x, y = made(45, 0)
    data = kx.Data(x, y)
    vector, rebuild = kx.parameters.ravel(kx.Model(kx.Matern32(1.0), noise=0.1))
    answers = []
    for solver in (kx.Vecchia(5, mesh=mesh), kx.CG(kx.LowRank(inducing=x[:5]), tolerance=1e-10, stored=False, mesh=mesh)):

        def value(v, data, solver=solver):
            return kx.log_marginal_likelihood(kx.condition(rebuild(v), data, solver))

        both = jax.jit(jax.value_and_grad(value))(np.asarray(vector), jax.tree.map(np.asarray, data))
        answers += [np.append(*map(np.asarray, both)).tolist()]
    return answers


def test_one_likelihood_on_the_devices_of_two_processes():
    code = inspect.getsource(likelihoods) + textwrap.dedent("""
        port, process = sys.argv[1], int(sys.argv[2])
        jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
        assert len(jax.devices()) == 4
        print(json.dumps(likelihoods(jax.sharding.Mesh(np.array(jax.devices()), "rows"))))
    """)
    port, flags = free_port(), "--xla_force_host_platform_device_count=2"
    with started(code, port, 0, XLA_FLAGS=flags) as first, started(code, port, 1, XLA_FLAGS=flags) as second:
        together = [answer(process) for process in (first, second)]
    alone = likelihoods(None)
    for theirs in together:
        np.testing.assert_allclose(theirs, alone, rtol=1e-10)
