"""`evaluate`, and the data that it reads: batches from files, folders and functions give the same numbers."""

import math
import threading

import numpy as np
import onnx
import pytest
from marks import sizes
from onnx_models import model, session
from rewritten_models import floats
from textline import BF16, EXPECTED, FLOAT, X, path_of

import quark_numba
from quark_numba import Data, Execution, RandomData
from quark_numba.analysis.twin import float_twin
from quark_numba.running import runs
from quark_numba.running.data import open_batches
from quark_numba.running.inputs import ModelInput

pytestmark = pytest.mark.compiled


def feeds():
    yield {"x": X[:4]}
    yield {"x": X[4:]}


def nothing():
    return iter(())


def broken():
    yield {"x": X[:4]}
    raise OSError("the disk is gone")


def largest(outputs, reference, feed):
    (y,), (expected,) = outputs.values(), reference.values()
    assert len(feed["x"]) == len(y)
    return {"largest": np.abs(y - expected).max(), "one": 1}


def run_whole(path, backend="native"):
    return session(path, backend=backend, disable_quant_qdq="1").run(None, {"x": X})[0].astype(np.float64)


def test_numbers():
    """The numbers equal those of numpy for whole arrays, with labels and a metric of the user, too."""
    y, expected = run_whole(BF16), run_whole(FLOAT)
    labels = np.array([0, 1, 0, 0, 1, 1])
    calls = []
    found = quark_numba.evaluate(
        BF16,
        [{"x": X[:4], "l": labels[:4]}, {"x": X[4:], "l": labels[4:]}],
        FLOAT,
        labels="l",
        metric=largest,
        execution=Execution(progress=lambda *each: calls.append(each)),
    )
    (output,) = found.outputs
    noise = y - expected
    np.testing.assert_allclose(output.sqnr_db, 10 * np.log10(np.sum(expected**2) / np.sum(noise**2)), rtol=1e-9)
    cosine = np.sum(y * expected) / np.sqrt(np.sum(y**2) * np.sum(expected**2))
    np.testing.assert_allclose(output.cosine, cosine, rtol=1e-12)
    assert output.max_abs_error == np.abs(noise).max()
    np.testing.assert_allclose(output.mean_abs_error, np.abs(noise).mean(), rtol=1e-12)
    assert output.same_top == np.mean(y.argmax(1) == expected.argmax(1))
    assert output.accuracy == np.mean(y.argmax(1) == labels)
    assert output.reference_accuracy == np.mean(expected.argmax(1) == labels)
    halves = [np.abs(noise[:4]).max(), np.abs(noise[4:]).max()]
    np.testing.assert_allclose(found.metrics["largest"], (4 * halves[0] + 2 * halves[1]) / 6)
    assert found.metrics["one"] == 1
    assert (found.samples, found.batches, calls) == (6, 2, [(1, 2), (2, 2)])
    assert found.samples_per_second > 0 < found.reference_samples_per_second


@pytest.mark.slow
def test_any_source_of_the_same_batches_gives_the_same(tmp_path, monkeypatch):
    folder, arrays = tmp_path / "folder", tmp_path / "arrays"
    folder.mkdir()
    arrays.mkdir()
    for index in range(2):
        np.savez(folder / f"{index}.npz", x=X[3 * index : 3 * index + 3], other=np.zeros(3))
        np.save(arrays / f"{index}.npy", X[3 * index : 3 * index + 3].astype(">f4"))
    (folder / "notes.txt").write_text("left alone")
    np.savez(tmp_path / "stack.npz", x=X.reshape(2, 3, *X.shape[1:]))
    np.savez(tmp_path / "whole.npz", x=X)
    np.save(tmp_path / "whole.npy", X)
    (tmp_path / "own_feeds.py").write_text(
        f"import numpy as np\nX = np.load({EXPECTED!r})['x']\ndef get():\n    yield X[:3]\n    yield X[3:]\n"
    )
    monkeypatch.chdir(tmp_path)
    sources = [folder, arrays, "stack.npz", "own_feeds:get", [X[:3], X[3:]], lambda: iter([{"x": X[:3]}, {"x": X[3:]}])]
    found = [quark_numba.evaluate(BF16, source, FLOAT) for source in sources]
    found += [quark_numba.evaluate(BF16, Data(name, batch=3), FLOAT) for name in ("whole.npz", "whole.npy")]
    assert [each.outputs for each in found] == [found[0].outputs] * len(found)
    assert {(each.samples, each.batches) for each in found} == {(6, 2)}
    limited = quark_numba.evaluate(BF16, Data(folder, limit=1), FLOAT)
    assert limited.outputs == quark_numba.evaluate(BF16, str(folder / "0.npz"), FLOAT).outputs
    assert limited.samples == 3


@pytest.mark.parametrize("variant", ["bf16", "fp16", "bfp16", "mx9", "mxfp8"])
@pytest.mark.by_default(1)
def test_without_a_reference_the_model_itself_is_it(variant):
    """The twin has the weights of the float model, and gives its outputs, without the package's operators."""
    twin = float_twin.make_twin(float_twin.load(path_of(variant))).model
    assert not any(node.domain for node in twin.graph.node)
    ours, theirs = session(twin, backend=None).run(None, {"x": X})[0], run_whole(FLOAT)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("variant", "agreement_db"), [("i32", 120), ("u32", 120), ("a8w8", 60)])
@pytest.mark.by_default(1)
def test_a_reference_gives_weights_and_activation_functions(variant, agreement_db):
    """The model has its weights only as codes, and the range of the codes replaces a Relu or a Clip. The reference provides
    both."""
    twin = float_twin.make_twin(float_twin.load(path_of(variant)), float_twin.load(FLOAT))
    weights = [each for each in twin.quantizers if each.kind == "weight"]
    assert sum(each.floats is None for each in weights) == 1  # of the matrix product that Quark turned into a Gemm
    assert len(twin.found.unmatched) == 1
    ours, theirs = session(twin.model, backend=None).run(None, {"x": X})[0].astype(np.float64), run_whole(FLOAT)
    assert 10 * np.log10(np.sum(theirs**2) / np.sum((ours - theirs) ** 2)) > agreement_db


def test_top_k(tmp_path):
    scores = np.array([[4, 3, 2, 1], [1, 2, 3, 4], [1, 4, 3, 2]], np.float32)
    others = np.array([[3, 4, 2, 1], [4, 3, 2, 1], [1, 4, 2, 3]], np.float32)
    path = tmp_path / "m.onnx"
    onnx.save(model(["y = Identity (x)"], [("x", "float32", [None, 4])], ["y"], domains=[]), path)
    swap = model(["y = Add (x, d)"], [("x", "float32", [3, 4])], ["y"], initializers=floats(d=scores - others), domains=[])
    feeds = {"x": others, "l": np.array([0, 3, 0])}
    shares = [quark_numba.evaluate(swap, [feeds], path, labels="l", top_k=k).outputs[0] for k in (1, 2, 4)]
    assert [each.same_top for each in shares] == [1 / 3, 2 / 3, 1]
    assert [each.accuracy for each in shares] == [2 / 3, 2 / 3, 1]
    assert [each.reference_accuracy for each in shares] == [0, 1 / 3, 1]


def test_random_batches_differ_and_come_again():
    inputs = [ModelInput("x", "tensor(float)", (None, 4)), ModelInput("n", "tensor(int64)", ())]
    batches = [list(open_batches(inputs, RandomData(3, seed=5, dimensions={"x[0]": 2}))) for _ in range(2)]
    assert [each["x"].shape for each in batches[0]] == [(2, 4)] * 3
    assert len({each["x"].tobytes() for each in batches[0]}) == 3
    for one, two in zip(*batches, strict=True):
        assert one["x"].tobytes() == two["x"].tobytes()
        assert one["n"].dtype == np.int64


def wrong_files(folder):
    np.savez(folder / "missing.npz", y=X)
    np.savez(folder / "dtype.npz", x=X.astype(np.float64))
    np.savez(folder / "shape.npz", x=X[:, :2])
    np.savez(folder / "rank.npz", x=X[0, 0])
    np.savez(folder / "pickled.npz", x=np.array([{}]))
    np.save(folder / "pickled.npy", np.array([{}]))
    (folder / "text.npz").write_text("no zip file")
    (folder / "text.npy").write_text("no array")
    np.savez(folder / "labels.npz", x=X, l=np.zeros(6, np.float32))
    np.savez(folder / "lengths.npz", x=X, l=np.zeros(5, np.int64))
    (folder / "empty").mkdir()
    (folder / "last").mkdir()
    np.savez(folder / "last" / "0.npz", x=X)
    np.savez(folder / "last" / "1.npz", x=X.astype(np.int32))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("none.npz", {}, "none.npz: No such file"),
        ("missing.npz", {}, "missing.npz: no array named x; it has y"),
        ("dtype.npz", {}, r"dtype.npz: input x is float64; the model takes tensor\(float\)"),
        ("shape.npz", {}, r"shape.npz: input x has shape \(6, 2, 48, 192\); the model takes \["),
        ("rank.npz", {}, r"rank.npz: input x has shape \(48, 192\)"),
        ("pickled.npz", {}, "pickled.npz: .*pickled"),
        ("pickled.npy", {}, "pickled.npy: .*pickled"),
        ("text.npz", {}, "text.npz: not a file of numbers"),
        ("text.npy", {}, "text.npy: not a file of numbers"),
        ("empty", {}, "empty: no .npz and no .npy file"),
        ("last", {}, "1.npz: input x is int32"),
        ("labels.npz", {"labels": "l"}, "labels l are float32; expected integers"),
        ("labels.npz", {"labels": "k"}, "no array named k; it has x, l"),
        ("lengths.npz", {"labels": "l", "batch": 2}, "expected arrays of the same length"),
        ("nonsense", {}, "nonsense: No such file"),
        ("test_evaluate:nobody", {}, "test_evaluate:nobody: AttributeError"),
        ("no_such_module:feeds", {}, "no_such_module:feeds: ModuleNotFoundError"),
        ("test_evaluate:X", {}, "is a ndarray; expected a function"),
        ("test_evaluate:nothing", {}, "there are no data"),
        ("test_evaluate:broken", {}, "test_evaluate:broken, number 1: OSError: the disk is gone"),
        ([1], {}, "the data, number 0: a int; expected a mapping"),
        ([{"y": X}], {}, "the data, number 0: no array named x; it has y"),
        (3, {}, "the data: a int; expected an iterable of feeds"),
    ],
)
@pytest.mark.by_default(3)
def test_wrong_data(source, options, message, tmp_path, monkeypatch):
    """Wrong data are refused before anything runs, except for an error that a function raises later."""
    wrong_files(tmp_path)
    ran = []
    monkeypatch.setattr("quark_numba.running.sessions.run", lambda *_: ran.append(1) or {})
    place = str(tmp_path / source) if isinstance(source, str) and ":" not in source else source
    place = Data(place, batch=options.pop("batch")) if "batch" in options else place
    with pytest.raises(quark_numba.ModelError, match=message):
        quark_numba.evaluate(BF16, place, FLOAT, **options)
    assert len(ran) <= (2 if source == "test_evaluate:broken" else 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomData(0), "batches is 0"),
        (lambda: RandomData(True), "batches is True"),
        (lambda: Data(EXPECTED, batch="2"), "batch is '2'"),
        (lambda: Data(EXPECTED, limit=-1), "limit is -1"),
        (lambda: quark_numba.evaluate(BF16, EXPECTED, top_k=0), "top_k is 0"),
    ],
)
def test_wrong_numbers(make, message):
    with pytest.raises(ValueError, match=f"{message}; expected a positive integer"):
        make()


@pytest.mark.parametrize("function", [quark_numba.evaluate, quark_numba.analyze])
def test_data_are_needed(function):
    with pytest.raises(TypeError, match="data"):
        function(BF16)
    with pytest.raises(quark_numba.ModelError, match="the data: a NoneType; expected an iterable of feeds"):
        function(BF16, None)


@sizes("count", 300, slow=10_000)
def test_many_small_files(count, tmp_path):
    """Files of a folder are read one by one."""
    path = tmp_path / "m.onnx"
    onnx.save(model(["y = Neg (x)"], [("x", "float32", [2])], ["y"], domains=[]), path)
    folder = tmp_path / "data"
    folder.mkdir()
    for index in range(count):
        (folder / f"{index:05}.npy").write_bytes(npy(np.full(2, index, np.float32)))
    found = quark_numba.evaluate(path, folder, path)
    assert (found.batches, found.samples) == (count, count)
    assert found.outputs[0].sqnr_db == math.inf


def npy(array):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {array.shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + array.tobytes()


def test_command(terminal):
    arguments = ["evaluate", BF16, "--reference", FLOAT, "--data", EXPECTED, "--batch", "3"]
    text = terminal.text(*arguments)
    assert all(each in text for each in ("SQNR, dB", "cosine", "same top", "6 in 2 batches", "samples a second"))
    report = terminal.report(*arguments, "--metric", "test_evaluate:largest", "--fail-below", "10")
    assert report["samples"] == 6
    assert set(report["metrics"]) == {"largest", "one"}
    sqnr = report["outputs"][0]["sqnr_db"]
    error = terminal.error(*arguments, "--json", "--fail-below", str(sqnr + 1))
    assert f"output save_infer_model/scale_0.tmp_1 has an SQNR of {sqnr:.1f} dB" in error


@pytest.mark.slow
def test_run_over_data(terminal, tmp_path):
    arguments = ["run", BF16, "--reference", FLOAT, "--runs", "1"]
    np.save(tmp_path / "x.npy", X)
    batches = ["--data", EXPECTED, "--batch", "4"]
    sources = [["--data", EXPECTED], ["--data", tmp_path / "x.npy"], batches, [*batches, "--limit", "1"]]
    reports = [terminal.report(*arguments, *source) for source in sources]
    assert [each["batches"] for each in reports] == [1, 1, 2, 1]
    assert [each["inputs"]["x"]["shape"][0] for each in reports] == [6, 6, 4, 4]
    sqnr = [each["reference"]["outputs"][0]["sqnr_db"] for each in reports]
    assert sqnr[0] == sqnr[1] == pytest.approx(sqnr[2], rel=1e-6)
    assert sqnr[0] != sqnr[3]
    error = terminal.error(*arguments, *batches, "--save-outputs", tmp_path / "y.npz")
    assert "are for one batch" in error
    assert terminal.report("run", BF16, "--random", "2", "--dim", "?=48", "--runs", "1")["batches"] == 2
    words = ["run", BF16, "--random", "3", "--limit", "2", "--dim", "?=48", "--runs", "1"]
    assert terminal.report(*words)["batches"] == 2


@pytest.mark.parametrize(
    "words",
    [["--data", EXPECTED, "--random", "1"], ["--data", EXPECTED, "--dim", "n=1"], ["--random", "1", "--batch", "1"], []],
)
def test_wrong_command(words, terminal):
    assert terminal.refusal("evaluate", BF16, *words)


@pytest.mark.slow
def test_data_are_read_again():
    """A function is called again. An iterator can be read only once."""
    calls = []

    def function():
        calls.append(1)
        return ({"x": X[i : i + 1]} for i in range(2))

    inputs = [ModelInput("x", "tensor(float)", None)]
    opened = open_batches(inputs, function)
    assert (len(list(opened)), len(list(opened)), len(calls)) == (2, 2, 2)
    assert open_batches(inputs, [X[:2], X]).count == 2
    assert open_batches(inputs, Data([X[:2], X], batch=2)).count == 4
    once = open_batches(inputs, iter([X]))
    assert (opened.is_reiterable, once.is_reiterable, once.count) == (True, False, None)
    with pytest.raises(quark_numba.ModelError, match="what_if reads the data twice"):
        quark_numba.analyze(BF16, iter([X]), what_if=["bfp16"])
    whole = model(["y = com.amd.quark.MXQuantizeDequantize (x)"], [("x", "float32", [2, 32])], ["y"])
    found = quark_numba.analyze(whole, RandomData(2), what_if=["bfp16"])
    assert found.batches == 2
    assert len(found.trade_offs) == 2


class NoSums:
    def add(self, other): ...


def test_batches_stop_after_an_error():
    """When the error arrives, no batch is running any more, and no thread is left."""

    def work():
        def run(batch):
            number = int(batch.load()["x"].ravel()[0])
            if number == 2:
                raise quark_numba.ModelError("a fault")
            if number > 2:
                stopped.wait(100)
            return NoSums()

        return run

    stopped, before = threading.Event(), threading.active_count()
    feeds = [{"x": np.full((1, 1), number, np.float32)} for number in range(12)]
    batches = open_batches([ModelInput("x", "tensor(float)", (1, 1))], quark_numba.Data(feeds))
    with pytest.raises(quark_numba.ModelError, match="a fault") as kept:
        runs.Runner(runs.Execution(), batches, {}, []).total(NoSums, work, threads=3, stopped=stopped)
    assert kept.value
    assert stopped.is_set()
    assert threading.active_count() <= before
