"""Shares of places: over all batches or none, with labels that fit, and with the number of places that they are taken over."""

import json

import numpy as np
import onnx
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Data, Execution, ModelError
from quark_numba.analysis.measures.classes import Classes, count, labels_of

pytestmark = pytest.mark.compiled

CONTINUE = Execution(on_error="continue")

rng = np.random.default_rng(3)
SCORES = rng.uniform(-1, 1, (2, 8, 5, 10)).astype(np.float32)


def scores(*, others=(), shape=("n", "p", 10)):
    """Return a model that rounds scores to int8, so that the largest of some places is another one, with further outputs."""
    nodes = [*pair("x", "codes", "y", ["s", "z"], ""), *(node for node, _ in others)]
    initializers = [*floats(s=0.02), constant("z", 0, np.int8)]
    initializers += [constant("rows", [1], np.int64), constant("both", [0, 1], np.int64)]
    outputs = ["y", *((name, "float32", None) for _, name in others)]
    return model(nodes, [("x", "float32", shape)], outputs, initializers=initializers, domains=[])


def rounded(x):
    return np.clip(np.rint(x / np.float32(0.02)), -128, 127) * np.float32(0.02)


@pytest.mark.parametrize("axis", [-1, 2, 1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_numbers(axis, keepdims):
    """The shares equal those computed with numpy without the places of the ignored label, whose number is reported."""
    x = np.moveaxis(SCORES, -1, 2) if axis == 1 else SCORES
    shape = ("n", 10, "p") if axis == 1 else ("n", "p", 10)
    labels = SCORES.argmax(-1)
    labels[rng.uniform(size=labels.shape) < 0.5] = 3
    labels[rng.uniform(size=labels.shape) < 0.3] = 255
    given = np.expand_dims(labels, axis + 1 if axis > 0 else axis).astype(np.uint8) if keepdims else labels
    feeds = [{"x": a, "l": b} for a, b in zip(x, given, strict=True)]
    found = quark_numba.evaluate(scores(shape=shape), feeds, labels="l", class_axis=axis, ignore_label=255)
    (output,) = found.outputs
    y, expected = rounded(SCORES).argmax(-1), SCORES.argmax(-1)
    counted = labels != 255
    assert (output.labelled, output.places, output.ignored) == (counted.sum(), counted.sum(), (~counted).sum())
    assert output.same_top == np.mean((y == expected)[counted])
    assert output.accuracy == np.mean((y == labels)[counted])
    assert output.reference_accuracy == np.mean((expected == labels)[counted])
    assert found.not_labelled == {}


def test_labels_that_fit_in_some_batches():
    """Labels that fit only in some batches are refused, with the batch, the output and both shapes; or the batch is left
    out."""
    right = SCORES.argmax(-1)
    good = [{"x": x, "l": label} for x, label in zip(SCORES, right, strict=True)]
    for wrong in (
        right[1][:, :4],
        right[1].T,
        right[1][:, 0],
        right[1].reshape(5, 8),
        right[1].reshape(-1),
        right[1][..., None, None],
    ):
        feeds = [good[0], {"x": SCORES[1], "l": wrong}, good[1]]
        with pytest.raises(ModelError) as error:
            quark_numba.evaluate(scores(), feeds, labels="l")
        text = str(error.value)
        assert text.startswith("the data, number 1: labels l have shape ")
        assert str(wrong.shape) in text
        assert "output y has shape (8, 5, 10)" in text
        found = quark_numba.evaluate(scores(), feeds, labels="l", execution=CONTINUE)
        assert [*found.failed] == ["the data, number 1"]
        assert found.outputs == quark_numba.evaluate(scores(), good, labels="l").outputs


def test_an_output_is_labelled_in_every_batch_or_in_none():
    """The rows of `first` fit the labels of one place a row, and those of y only if a row has one place."""
    first = ("first = ReduceMean <keepdims = 0> (y, rows)", "first")
    whole = scores(others=[first])
    labels = rng.integers(0, 10, (2, 8))
    several = [{"x": SCORES[0], "l": labels[0]}, {"x": SCORES[1], "l": labels[1]}]
    found = quark_numba.evaluate(whole, several, labels="l")
    assert [(each.name, each.labelled) for each in found.outputs] == [("y", None), ("first", 16)]
    assert found.not_labelled == {"y": "labels l have shape (8,), output y has shape (8, 5, 10)"}
    one = {"x": SCORES[1][:, :1], "l": labels[1][:, None]}
    for feeds in ([several[0], one], [one, several[0]]):
        with pytest.raises(
            ModelError, match=r"number 1: labels l .*output y has shape .*; in the first batch labels l have shape"
        ):
            quark_numba.evaluate(whole, feeds, labels="l")
        found = quark_numba.evaluate(whole, [*feeds, feeds[0]], labels="l", execution=CONTINUE)
        assert [*found.failed] == ["the data, number 1"]
        assert {each.labelled for each in found.outputs} <= {None, 16}


@pytest.mark.parametrize("value", [255, -100, 10, -1])
@pytest.mark.parametrize("batch", [None, 3])
def test_labels_that_are_no_class(value, batch):
    x, labels = SCORES[0, :, 0], SCORES[0, :, 0].argmax(-1)
    labels[6] = value
    whole, data = scores(shape=("n", 10)), Data({"x": x, "l": labels}, batch=batch)
    name = "number 0, batch 2" if batch else "number 0"
    with pytest.raises(ModelError, match=f"{name}: labels l have {value}; expected 0 to 9, .* output y along axis -1"):
        quark_numba.evaluate(whole, data, labels="l")
    (output,) = quark_numba.evaluate(whole, data, labels="l", ignore_label=value).outputs
    assert (output.labelled, output.ignored, output.reference_accuracy) == (7, 1, 1.0)
    for other in (labels.astype(np.int16), labels.astype(np.uint64) if value > 0 else labels.astype(np.int32)):
        same = quark_numba.evaluate(whole, Data({"x": x, "l": other}, batch=batch), labels="l", ignore_label=value)
        assert same.outputs == [output]


def test_nothing_is_labelled():
    """All labels are ignored, so the accuracy is NaN."""
    x = SCORES[0, :, 0]
    feeds = [{"x": x, "l": np.full(8, 255)}]
    (output,) = quark_numba.evaluate(scores(shape=("n", 10)), feeds, labels="l", ignore_label=255).outputs
    assert (output.labelled, output.ignored, output.places) == (0, 8, 0)
    assert np.isnan([output.accuracy, output.reference_accuracy, output.same_top]).all()


def test_outputs_that_have_no_classes():
    """A score a row, and a scalar, have no class axis with several elements, so that labels do not fit them."""
    others = [
        ("one = ReduceMax <keepdims = 1> (y, rows)", "one"),
        ("all = ReduceSum <keepdims = 0> (y, both)", "all"),
    ]
    feeds = [{"x": SCORES[0, :, 0], "l": rng.integers(0, 10, 8)}]
    found = quark_numba.evaluate(scores(others=others, shape=("n", 10)), feeds, labels="l")
    assert [(each.name, each.labelled, each.places) for each in found.outputs] == [
        ("y", 8, 8),
        ("one", None, None),
        ("all", None, None),
    ]
    assert [*found.not_labelled] == ["one", "all"]


@pytest.mark.parametrize("axis", [2, -3])
def test_a_class_axis_that_no_output_has(axis):
    with pytest.raises(ModelError, match=f"number 0: class_axis is {axis}; expected an axis of an output: y has shape"):
        quark_numba.evaluate(scores(shape=("n", 10)), [SCORES[0, :, 0]], class_axis=axis)


def test_the_class_axis_has_one_element_in_a_batch():
    """Places of a batch whose class axis has one element do not count, as there is nothing to choose from."""
    whole = scores(shape=("n", "k"))
    found = quark_numba.evaluate(whole, [SCORES[0, :, 0], SCORES[1, :, 0, :1], SCORES[1, :, 0, :0]])
    (output,) = found.outputs
    hits = np.sum(rounded(SCORES[0, :, 0]).argmax(-1) == SCORES[0, :, 0].argmax(-1))
    assert (output.places, output.same_top) == (8, hits / 8)


def test_a_metric_over_all_batches():
    """If a batch returned other names, means would be over some batches only. A batch without rows has no weight. Without rows,
    there is no mean."""
    whole, x = scores(shape=("n", 10)), SCORES[0, :, 0]

    def metric(outputs, reference, feed):
        return {"a": feed["x"].mean()} | ({"b": 1} if len(feed["x"]) > 2 else {})

    with pytest.raises(ModelError, match="number 1: metric: it returns a; expected a, b, as in the first batch"):
        quark_numba.evaluate(whole, [x, x[:2]], metric=metric)
    found = quark_numba.evaluate(whole, [x, x[:2]], metric=metric, execution=CONTINUE)
    assert ([*found.failed], found.samples) == (["the data, number 1"], 8)
    found = quark_numba.evaluate(whole, [x[:0], x, x[:0]], metric=metric)
    assert (found.metrics["b"], found.samples, found.failed) == (1, 8, {})
    assert found.metrics["a"] == pytest.approx(x.mean())
    assert quark_numba.evaluate(whole, [x[:0]], metric=metric).metrics == {}
    assert np.isnan(quark_numba.evaluate(whole, [x, x], metric=lambda *_: np.nan).metrics["<lambda>"])
    answers = iter([{"a": 1.0}, {}])
    with pytest.raises(ModelError, match="number 1: metric: it returns nothing; expected a, as in the first batch"):
        quark_numba.evaluate(whole, [x, x], metric=lambda *_: next(answers))


@pytest.mark.parametrize("top_k", [1, 2])
def test_nan_is_the_largest_score(top_k):
    y = np.array([[np.nan, 3, 2, 1], [0, 1, 2, 3]], np.float32)
    found = count(y, y, "y", labels_of(np.array([0, 3]), Classes()), Classes(-1, top_k, "l", None))
    assert (found.places, found.same, found.right) == (2, 2, 2)


def test_one_element_along_the_class_axis_is_no_choice():
    x = np.ones((6, 1), np.float32)
    assert count(x, x, "y", None, Classes(-1, 1, None, None)).places == 0


def test_sums_of_an_interrupted_run(tmp_path):
    """What the first batch decides is kept with the sums."""
    feeds = [{"x": x, "l": x.argmax(-1)} for x in SCORES[:, :, 0]]
    whole, kept = scores(shape=("n", 10)), tmp_path / "kept.json"
    alone = quark_numba.evaluate(whole, feeds, labels="l")

    def stop(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quark_numba.evaluate(whole, feeds, labels="l", execution=Execution(resume=kept, progress=stop))
    assert json.loads(kept.read_text())["_Batch"]["done"] == 1
    assert quark_numba.evaluate(whole, feeds, labels="l", execution=Execution(resume=kept)) == alone
    with pytest.raises(ModelError, match="from another run, with other ignore_label"):
        quark_numba.evaluate(whole, feeds, labels="l", ignore_label=3, execution=Execution(resume=kept))


def test_command(tmp_path, terminal):
    x = SCORES.reshape(16, 5, 10)
    onnx.save(scores(shape=("n", 5, "p")), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=x, l=x.argmax(1))
    np.savez(tmp_path / "y.npz", x=x, l=np.where(np.arange(16)[:, None] < 4, 255, x.argmax(1)))
    words = ["evaluate", tmp_path / "m.onnx", "--labels", "l", "--class-axis", "1", "--batch", "4", "--data"]
    assert terminal.report(*words, tmp_path / "x.npz")["outputs"][0]["reference_accuracy"] == 1
    error = terminal.error(*words, tmp_path / "y.npz")
    assert "y.npz, batch 0: labels l have 255; expected 0 to 4" in error
    text = terminal.text(*words, tmp_path / "y.npz", "--ignore-label", "255")
    assert "labels of y that count" in text
    assert "120 of 160" in text
    assert "labels" in terminal.refusal("evaluate", "m.onnx", "--random", "1", "--ignore-label", "0")
