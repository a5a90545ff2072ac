"""Outputs that cannot be compared are listed with the reason, all others are compared, and samples are counted."""

import math

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, parsed
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Data, Execution
from quark_numba.running.data import open_batches
from quark_numba.running.inputs import ModelInput

pytestmark = pytest.mark.compiled

rng = np.random.default_rng(11)
X = rng.normal(0, 0.3, (4, 8)).astype(np.float32)
SCALES = [*floats(s=0.5), constant("z", 0, np.int8)]


def round_trip(x, y, domain="com.amd.quark"):
    return pair(x, f"{y}_codes", y, ["s", "z"], domain)


def detector():
    """Return a model that finds the elements other than 0. Rounding makes many elements 0, so that the model finds fewer
    positions and fewer values. One output is a sequence, and one is text."""
    nodes = [*round_trip("x", "y"), "places = NonZero (y)", "found = Transpose (places)", "values = GatherND (y, found)"]
    nodes += [*round_trip("values", "rounded"), "parts = SplitToSequence <axis = 0> (y)", "text = Cast <to = 8> (y)"]
    outputs = ["y", ("places", "int64", None), "rounded", ("text", "string", None)]
    made = model(nodes, [("x", "float32", [None, 8])], outputs, initializers=SCALES)
    made.graph.output.append(helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None))
    return made


@pytest.fixture
def path(tmp_path):
    onnx.save(detector(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    return str(tmp_path / "m.onnx"), str(tmp_path / "x.npz")


REASONS = {
    "places": "has shape (2, ",
    "rounded": "has shape (",
    "text": "cannot be compared because it is text, not an array of numbers",
    "parts": "cannot be compared because it is a sequence, not",
}


def check(found):
    assert [each.name for each in found.outputs] == ["y"]
    assert set(found.not_compared) == set(REASONS)
    for name, reason in REASONS.items():
        assert found.not_compared[name].startswith(reason)


def test_evaluate():
    found = quark_numba.evaluate(detector(), [X, X[:1]])
    check(found)
    assert found.outputs == quark_numba.evaluate(detector(), [X, X[:1]], outputs=["y"]).outputs
    assert (found.samples, found.batches) == (5, 2)


def test_an_output_of_another_shape_in_one_batch_is_not_compared():
    """The sums of other batches, before that batch or after it, make no difference."""
    ones = np.ones_like(X)
    for batches in ([ones, X, ones], [X, ones], [ones, X]):
        found = quark_numba.evaluate(detector(), batches)
        assert "places" in found.not_compared
        assert [each.name for each in found.outputs] == ["y"]
    found = quark_numba.evaluate(detector(), [ones, ones[:2]])  # shapes differ between batches, not between models
    assert [each.name for each in found.outputs] == ["y", "places", "rounded"]
    assert set(found.not_compared) == {"text", "parts"}


@pytest.mark.slow
def test_the_sums_are_the_same_on_a_cluster(path):
    pytest.importorskip("distributed", exc_type=ImportError)
    for function in (quark_numba.evaluate, quark_numba.analyze):
        for outputs in (None, ["y", "rounded"]):
            here, there = (
                function(path[0], Data(path[1], batch=1), outputs=outputs, execution=Execution(threads=1, workers=workers))
                for workers in (None, 1)
            )
            assert here == there
            assert here.samples == 4
            assert "rounded" in here.not_compared
            assert ("places" in here.not_compared) == (outputs is None)


def test_analyze():
    """The sweep and the trade-offs leave out the same outputs. A tensor whose shape differs in the float model has only its own
    error."""
    found = quark_numba.analyze(detector(), [X, X[:2]], sweep=True, what_if=["bfp16"])
    assert [each.name for each in found.outputs] == ["y"]
    assert {*REASONS} == {*found.not_compared}
    tensors = {each.name: each for each in found.tensors}
    assert tensors["x"].sqnr_db == pytest.approx(found.outputs[0].sqnr_db)
    values = tensors["values"]
    rounded = np.rint(X / 0.5) * 0.5
    both = np.concatenate([X, X[:2]]), np.concatenate([rounded, rounded[:2]])
    own = 10 * np.log10(np.sum(both[0].astype(np.float64) ** 2) / np.sum((both[0] - both[1].astype(np.float64)) ** 2))
    assert values.own_sqnr_db == pytest.approx(own)
    assert (values.sqnr_db, values.inherited_sqnr_db, values.cosine, values.max_abs_error) == (None,) * 4
    assert "its shape differs in the float model" in found.unmatched["values"]
    assert {each.name: each.off_sqnr_db for each in found.sweep}["x"] == math.inf
    assert found.trade_offs[0].sqnr_db > found.outputs[0].sqnr_db


def test_what_can_be_compared_but_in_the_sweep_is_told():
    """One element of the difference is zero if both tensors are float, or both rounded, but not if only one is rounded."""
    nodes = [*round_trip("x", "a"), *round_trip("w", "b"), "d = Sub (a, b)", "n = NonZero (d)"]
    outputs = ["d", ("n", "int64", None)]
    whole = model(nodes, [("x", "float32", [None, 2])], outputs, initializers=[*SCALES, *floats(w=[0.2, 0.2])])
    found = quark_numba.analyze(whole, [np.array([[0.2, 1.2]], np.float32)], sweep=True)
    assert [each.name for each in found.outputs] == ["d", "n"]
    assert found.not_compared["n"].startswith("in the sweep it has shape (2, ")


def test_types_that_numpy_lacks(tmp_path, terminal):
    """Outputs of these types are compared as numbers, but cannot be written to files of numpy."""
    nodes = ["wide = Cast <to = 16> (x)", *round_trip("x", "y"), "b = Cast <to = 16> (y)"]
    outputs = ["y", ("wide", "bfloat16", None), ("b", "bfloat16", None)]
    whole = model(nodes, [("x", "float32", [None, 8])], outputs, initializers=SCALES)
    for function in (quark_numba.evaluate, quark_numba.analyze):
        found = function(whole, [X])
        errors = {each.name: each.sqnr_db for each in found.outputs}
        assert errors["wide"] == math.inf
        assert errors["b"] == pytest.approx(errors["y"], abs=0.1)
        assert found.not_compared == {}
    onnx.save(whole, tmp_path / "m.onnx")
    words = ["run", str(tmp_path / "m.onnx"), "--dim", "x[0]=4", "--runs", "1", "--save-outputs", str(tmp_path / "y.npz")]
    assert "output wide is bfloat16, which .npz files cannot hold" in terminal.error(*words)


@pytest.mark.slow
def test_commands(path, tmp_path, terminal):
    pytest.importorskip("matplotlib")
    for words in (["evaluate"], ["analyze", "--html", str(tmp_path / "page.html")]):
        words = [*words, path[0], "--data", path[1]]
        text = terminal.text(*words)
        assert "Outputs that are not compared" in text
        assert "cannot be compared because it is text, not an array of numbers" in text
        report = terminal.report(*words, "--outputs", "y", "text")
        assert [each["name"] for each in report["outputs"]] == ["y"]
        assert report["not_compared"] == {"text": "cannot be compared because it is text, not an array of numbers"}
        assert terminal.text(*words, "--outputs", "y", "--fail-below", "-100")
        assert terminal.text(*words, "--fail-below", "-100")
        error = terminal.error(*words, "--outputs", "y", "text", "--fail-below", "-100")
        assert "output text is not compared" in error
        error = terminal.error(*words, "--outputs", "nothing")
        assert "the model has no output named 'nothing'; it has y, places, rounded, text, parts" in error
    assert "cannot be compared because it is text" in (tmp_path / "page.html").read_text()


def test_none_compared_fails_below(tmp_path, terminal):
    whole = detector()
    del whole.graph.output[0], whole.graph.output[2]
    onnx.save(whole, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    words = ["evaluate", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "x.npz")]
    assert "against the reference: no output can be compared" in terminal.text(*words)
    assert "no output is compared" in terminal.error(*words, "--fail-below", "-100")


def test_run_lists_them_too(path, tmp_path, terminal):
    """With a reference, `run` lists outputs that cannot be compared. With --expected, they are an error."""
    reference = detector()
    del reference.graph.node[:2]
    reference.graph.node.insert(0, *parsed("y = Identity (x)"))
    onnx.save(reference, tmp_path / "float.onnx")
    words = ["run", path[0], "--reference", str(tmp_path / "float.onnx"), "--data", path[1], "--runs", "1"]
    report = terminal.report(*words)["reference"]
    assert [each["output"] for each in report["outputs"]] == ["y"]
    assert set(report["not_compared"]) == set(REASONS)
    assert "cannot be compared because it is a sequence, not an array of numbers" in terminal.text(*words)
    outputs = {"y": X, "places": np.zeros((2, 1), np.int64), "rounded": X, "text": X, "parts": X}
    np.savez(tmp_path / "y.npz", **outputs)
    error = terminal.error("run", path[0], "--data", path[1], "--runs", "1", "--expected", tmp_path / "y.npz")
    assert "output places has shape (2, " in error


@pytest.mark.parametrize("function", [quark_numba.evaluate, quark_numba.analyze])
@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        ("y", TypeError, "outputs is 'y'; expected a sequence of names"),
        ([1], TypeError, r"outputs is \[1\]; expected a sequence of names"),
        ([], ValueError, "outputs is empty; expected at least one name"),
        (["y", "q"], quark_numba.ModelError, "outputs: the model has no output named 'q'; it has y, places, "),
    ],
)
def test_wrong_names(function, outputs, error, message):
    with pytest.raises(error, match=message):
        function(detector(), [X], outputs=outputs)


@pytest.mark.parametrize(
    ("shape", "feed", "batch", "samples"),
    [
        ([None, 8], (4, 8), None, 4),
        (["n", 8], (4, 8), 2, 4),
        ([8], (8,), None, 1),  # without a batch dimension: a run is a sample
        ([8], (3, 8), None, 3),  # a stack of samples
        (["n"], (8,), None, 1),
        (["n"], (8,), 3, 8),  # cut into batches: rows are samples
        ([3, 4, 8], (3, 4, 8), None, 1),
        ([3, 8], (5, 3, 8), None, 5),
        ([2, 8], (4, 8), 2, 4),
        (None, (4, 8), None, 4),
        (None, (8,), None, 1),
        ([], (), None, 1),
    ],
)
def test_samples(shape, feed, batch, samples):
    x = np.resize(X, feed)
    whole = model(round_trip("x", "y", ""), [("x", "float32", shape)], ["y"], initializers=SCALES, domains=[])
    for function in (quark_numba.evaluate, quark_numba.analyze):
        assert function(whole, Data([x], batch=batch)).samples == samples


def test_samples_are_rows_of_an_input_that_has_some():
    inputs = [ModelInput("n", "tensor(float)", ("n",)), ModelInput("x", "tensor(float)", ("n", 8))]
    (batch,) = open_batches(inputs, [{"n": np.zeros(3, np.float32), "x": X}]).parts()
    assert batch.layout.samples(batch.load()) == 4
