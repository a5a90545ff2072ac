"""`evaluate` and `analyze` in several processes give the numbers of one process, to the last bit, whatever happens to any of
them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair, scale_and_zero_point
from textline import BF16, EXPECTED, FLOAT, X

import quark_numba
from quark_numba import Data, Execution, RandomData, cli
from quark_numba.analysis import evaluate

dask = pytest.importorskip("dask")
# Under Wine psutil cannot be loaded, and the error is no ModuleNotFoundError.
psutil = pytest.importorskip("psutil", exc_type=ImportError)
distributed = pytest.importorskip("distributed", exc_type=ImportError)

from quark_numba.running.cluster import interruptions  # noqa: E402  # needs the modules above

pytestmark = pytest.mark.compiled

COUNT = 500


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return the path of a model, and a folder of 500 files for it. The model is a matrix product between quantization nodes,
    for three rows."""
    folder = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(7)
    nodes = [*pair(y="d"), "t = MatMul (d, w)", "m = Reshape (t, shape)", *pair("m", "codes_of_m")]
    initializers = [*scale_and_zero_point("int8", 0.03, 1), *floats(w=rng.normal(0, 0.3, (32, 10)))]
    initializers.append(constant("shape", [3, 10], np.int64))
    onnx.save(model(nodes, [("x", "float32", [None, 32])], ["y"], initializers=initializers), folder / "m.onnx")
    data = folder / "data"
    data.mkdir()
    for index in range(COUNT):
        np.savez(data / f"{index:03}.npz", x=rng.normal(0, 1, (3, 32)).astype(np.float32), l=rng.integers(0, 10, 3))
    return str(folder / "m.onnx"), data


@pytest.fixture(scope="module")
def whole(small):
    return quark_numba.evaluate(small[0], small[1], labels="l", execution=Execution(threads=1))


def own_workers():
    """Return the worker processes that this process has started."""
    return [each for each in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(each.cmdline())]


def biggest_difference(outputs, reference, feed):
    return {"largest": max(np.abs(outputs[name] - reference[name]).max() for name in outputs), "mean": feed["x"].mean()}


@pytest.mark.slow
def test_the_same_bytes_and_only_loopback(small, terminal, monkeypatch):
    words = ["evaluate", small[0], "--data", str(small[1]), "--labels", "l", "--metric", "test_cluster:biggest_difference"]
    alone = terminal.text(*words, "--json")
    listening = []
    shown = cli.evaluate.progress

    def look(what):
        listening.extend(
            each.laddr.ip
            for process in [psutil.Process(), *own_workers()]
            for each in process.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        )

    class Progress:
        def __init__(self, what):
            self.inner = shown(what)

        def __enter__(self):
            update = self.inner.__enter__()
            return lambda *, completed, total: (
                look(completed) if completed == 100 else None,
                update(completed=completed, total=total),
            )

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(cli.evaluate, "progress", Progress)
    assert terminal.text(*words, "--workers", "2", "--json") == alone
    assert len(listening) >= 3  # the scheduler and two workers
    assert set(listening) == {"127.0.0.1"}
    assert own_workers() == []


@pytest.mark.slow
def test_a_worker_that_ends_is_replaced(small, whole):
    before, ended = [], []

    def end_one(done, total):
        assert total == COUNT
        if done == 60:
            before.extend(each.pid for each in own_workers())
            ended.append(before[0])
            os.kill(before[0], signal.SIGKILL)
        if done == COUNT:
            after = {each.pid for each in own_workers()}
            assert ended[0] not in after

    found = quark_numba.evaluate(small[0], small[1], labels="l", execution=Execution(threads=1, workers=2, progress=end_one))
    assert len(before) == 2
    assert found == whole


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_interrupted_goes_on(workers, small, whole, tmp_path):
    kept = tmp_path / "kept.json"

    def evaluated(progress=None):
        execution = Execution(threads=1, workers=workers, resume=kept, progress=progress)
        return quark_numba.evaluate(small[0], small[1], labels="l", execution=execution)

    def interrupt(done, total):
        if done == stop:
            raise KeyboardInterrupt

    for stop in (123, 321):
        with pytest.raises(KeyboardInterrupt):
            evaluated(interrupt)
        assert json.loads(kept.read_text())["_Batch"]["done"] == stop
    calls = []
    assert evaluated(lambda *each: calls.append(each)) == whole
    assert calls == [(done, COUNT) for done in range(321, COUNT + 1)]
    assert evaluated() == whole  # nothing is left to run


def test_an_interruption_while_sums_are_added_counts_nothing_twice(small, whole, tmp_path, monkeypatch):
    kept = tmp_path / "kept.json"
    arguments = {"labels": "l", "execution": Execution(threads=1, resume=kept)}
    add = evaluate._Batch.add

    def interrupted(self, other):
        add(self, other)
        if self.samples == 99:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluate._Batch, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quark_numba.evaluate(*small, **arguments)
    assert json.loads(kept.read_text())["_Batch"]["done"] == 32
    assert quark_numba.evaluate(*small, **arguments) == whole


def test_a_file_of_another_run(small, tmp_path):
    path = tmp_path / "kept.json"
    quark_numba.evaluate(small[0], Data(small[1], limit=3), execution=Execution(resume=path))
    with pytest.raises(quark_numba.ModelError, match="from another run, with other top_k"):
        quark_numba.evaluate(small[0], Data(small[1], limit=3), top_k=2, execution=Execution(resume=path))
    with pytest.raises(quark_numba.ModelError, match=r"from another run, with other .*data"):
        quark_numba.evaluate(small[0], Data(small[1] / "003.npz", limit=3), execution=Execution(resume=path))
    for text in ("[1]", "no JSON", "{}"):
        path.write_text(text)
        with pytest.raises(quark_numba.ModelError, match="not a file that keeps a run"):
            quark_numba.evaluate(small[0], Data(small[1], limit=3), execution=Execution(resume=path))
    with pytest.raises(quark_numba.ModelError, match="Is a directory"):
        quark_numba.evaluate(small[0], Data(small[1], limit=3), execution=Execution(resume=tmp_path))
    with pytest.raises(quark_numba.ModelError, match="not a regular file; expected one"):
        quark_numba.evaluate(small[0], Data(small[1], limit=3), execution=Execution(resume=os.devnull))


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_batch_that_fails(workers, small, tmp_path, terminal, capsys):
    """The batch has four rows, and the model takes three."""
    names = [f"{index:03}.npz" for index in range(9)]
    for name in names:
        (tmp_path / name).write_bytes((small[1] / name).read_bytes())
    np.savez(tmp_path / "004.npz", x=np.zeros((4, 32), np.float32))
    words = ["evaluate", small[0], "--data", str(tmp_path)] + (["--workers", str(workers)] if workers else [])
    assert "004.npz: the model does not run: " in terminal.error(*words)
    assert cli.main([*words, "--on-error", "continue", "--json"]) == 0
    text = capsys.readouterr()
    assert "left out: " in text.err
    report = json.loads(text.out)
    assert [Path(each).name for each in report["failed"]] == ["004.npz"]
    (tmp_path / "004.npz").unlink()
    good = terminal.report(*words)
    assert (report["outputs"], report["samples"], report["batches"]) == (good["outputs"], good["samples"], good["batches"] + 1)
    for name in names:
        np.savez(tmp_path / name, x=np.zeros((4, 32), np.float32))
    assert "no batch could be run; the first: " in terminal.error(*words, "--on-error", "continue")


@pytest.mark.slow
def test_files_that_workers_have_not_are_sent(small, whole, tmp_path):
    """The files get new times during the run, so the workers do not take them for the same files."""
    for path in small[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def touch(done, total):
        if done == 1:
            for path in tmp_path.iterdir():
                os.utime(path)

    assert (
        quark_numba.evaluate(small[0], tmp_path, labels="l", execution=Execution(threads=1, workers=2, progress=touch)) == whole
    )


@pytest.mark.slow
def test_a_running_cluster(small, whole):
    """A running cluster takes data of all kinds. The content of the model is sent."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        here, there = Execution(threads=1), Execution(threads=1, scheduler=cluster.scheduler_address)
        assert quark_numba.evaluate(*small, labels="l", execution=there) == whole
        for data in (Data(EXPECTED, batch=2), [X[:1], X[1:4], X[4:]], lambda: iter([X])):
            one, two = (quark_numba.evaluate(BF16, data, FLOAT, execution=execution) for execution in (here, there))
            assert one == two
        random = RandomData(3, dimensions={"x[0]": 3})
        assert quark_numba.evaluate(small[0], random, execution=there) == quark_numba.evaluate(small[0], random)


def test_numbers_do_not_depend_on_the_threads_of_a_session():
    one, two = (
        quark_numba.evaluate(BF16, Data(EXPECTED, batch=3), FLOAT, execution=Execution(threads=threads)) for threads in (1, 2)
    )
    assert one == two


@pytest.mark.slow
def test_analyze(small, terminal, tmp_path):
    words = ["analyze", small[0], "--data", str(small[1]), "--limit", "20", "--sweep", "--what-if", "bfloat16", "bfp16"]
    alone = terminal.text(*words, "--json")
    kept = str(tmp_path / "kept.json")
    assert terminal.text(*words, "--workers", "2", "--resume", kept, "--json") == alone
    assert terminal.text(*words, "--resume", kept, "--json") == alone
    content = json.loads(Path(kept).read_text())
    del content["_Points"]
    Path(kept).write_text(json.dumps(content))
    assert terminal.text(*words, "--resume", kept, "--json") == alone


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"workers": 0}, ValueError, "workers is 0"),
        ({"workers": 1, "scheduler": "tcp://127.0.0.1:1"}, TypeError, "one of them at most"),
        ({"on_error": "go"}, ValueError, "on_error is 'go'"),
        ({"scheduler": "tcp://127.0.0.1:1"}, quark_numba.ModelError, "127.0.0.1:1: no dask scheduler answers there"),
        ({"scheduler": "nonsense://x"}, quark_numba.ModelError, "nonsense://x: no dask scheduler"),
    ],
)
def test_wrong_arguments(arguments, error, message, small):
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(error, match=message):
        quark_numba.evaluate(small[0], Data(small[1], limit=1), execution=Execution(**arguments))


def test_without_dask(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "quark_numba.running.cluster", raising=False)
    with pytest.raises(quark_numba.ModelError, match=r"pip install 'quark_numba\[dask\]'"):
        quark_numba.evaluate(small[0], Data(small[1], limit=1), execution=Execution(workers=2))


@pytest.fixture
def heeded_ctrl_c():
    """Let the process heed Ctrl-C. A shell makes processes in the background ignore it, and child processes inherit this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_in_a_finalizer_is_not_lost():
    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with interruptions() as check:
        check()
        Dropped()
        with pytest.raises(KeyboardInterrupt):
            check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_comes_to_all_processes_of_a_terminal_and_ends_them(small, tmp_path):
    words = [sys.executable, "-m", "quark_numba", "evaluate", small[0], "--random", "100000", "--dim", "x[0]=3"]
    words += ["--workers", "2", "--resume", str(tmp_path / "kept.json")]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "kept.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 130
    assert psutil.wait_procs(children, timeout=10)[1] == []
