"""Figures over no elements are NaN or absent, a NaN in any batch is seen, and each histogram is drawn."""

import math

import numpy as np
import onnx
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Data
from quark_numba.analysis.measures import sums

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore:the model has no quantization nodes")]

HUGE = np.finfo(np.float32).max
X = np.random.default_rng(9).uniform(-1, 1, (4, 10)).astype(np.float32)
EMPTY = {"x": X[:0], "l": np.zeros(0, np.int64)}


def round_trip(scale=0.01):
    initializers = [*floats(s=np.ravel(scale) if np.ndim(scale) else scale), constant("z", np.zeros(np.shape(scale)), np.int8)]
    nodes = pair("x", "codes", "y", ["s", "z"], "")
    return model(nodes, [("x", "float32", ["n", 10])], ["y"], initializers=initializers, domains=[])


def figures(found, *names):
    return {name: getattr(found, name) for name in names}


def test_evaluate_over_no_rows():
    found = quark_numba.evaluate(round_trip(), [EMPTY, EMPTY], labels="l", metric=lambda *_: 1 / 0)
    assert (found.samples, found.batches, found.metrics) == (0, 2, {})
    (output,) = found.outputs
    assert (output.places, output.labelled, output.ignored) == (0, 0, 0)
    names = ("sqnr_db", "cosine", "max_abs_error", "mean_abs_error", "same_top", "accuracy", "reference_accuracy")
    assert all(math.isnan(value) for value in figures(output, *names).values())
    some = quark_numba.evaluate(round_trip(), [EMPTY, {"x": X, "l": X.argmax(1)}, EMPTY], labels="l")
    assert some.outputs == quark_numba.evaluate(round_trip(), [{"x": X, "l": X.argmax(1)}], labels="l").outputs


@pytest.mark.parametrize("scale", [0.01, np.full(10, 0.01)], ids=["per tensor", "per axis"])
def test_analyze_over_no_rows(scale):
    found = quark_numba.analyze(round_trip(scale), [EMPTY], sweep=True, what_if=["bfloat16", "bfp16"], histograms=1)
    (tensor,) = found.tensors
    names = ("sqnr_db", "own_sqnr_db", "inherited_sqnr_db", "cosine", "max_abs_error", "saturated", "flushed_to_zero")
    assert figures(tensor, *names, "range_used") == dict.fromkeys([*names, "range_used"])  # None: it ranks last
    assert tensor.what_if == {}
    assert math.isnan(found.trade_offs[0].bits)
    assert (sum(found.histograms[0].counts), found.samples) == (0, 0)
    whole = quark_numba.analyze(round_trip(scale), [X])
    assert quark_numba.analyze(round_trip(scale), [EMPTY, X, EMPTY]).tensors == whole.tensors


def test_files_without_rows(tmp_path):
    for name, x in {"a": X[:0], "b": X, "c": X[:0]}.items():
        np.save(tmp_path / f"{name}.npy", x)
    fixed = model(["y = Neg (x)"], [("x", "float32", [2, 10])], ["y"], domains=[])
    found = quark_numba.evaluate(fixed, Data(tmp_path, batch=2))
    assert (found.batches, found.samples) == (2, 4)
    with pytest.raises(quark_numba.ModelError, match="there are no data"):
        quark_numba.evaluate(fixed, Data(tmp_path / "a.npy", batch=2))


@pytest.mark.parametrize("scale", [0.01, np.full(10, 0.01)], ids=["per tensor", "per axis"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_in_any_batch(scale, place):
    """The largest error is NaN, whichever batch has the NaN. The range is that of the numbers."""
    batches = [X, X, X]
    batches[place] = np.where(np.arange(10) == 3, np.float32(np.nan), X)
    (tensor,) = quark_numba.analyze(round_trip(scale), batches).tensors
    (whole,) = quark_numba.analyze(round_trip(scale), [X]).tensors
    assert math.isnan(tensor.max_abs_error)
    assert tensor.range_used == whole.range_used
    batches[place] = np.full_like(X, np.nan)
    (tensor,) = quark_numba.analyze(round_trip(scale), batches).tensors
    assert tensor.range_used == whole.range_used
    assert math.isnan(quark_numba.analyze(round_trip(scale), [batches[place]]).tensors[0].range_used)


def test_sums_keep_a_nan():
    for values in ([1.0, math.nan, 2.0], [math.nan, 1.0, 2.0], [1.0, 2.0, math.nan]):
        total, *others = (sums.TensorSums(largest=value, least_code=value) for value in values)
        for other in others:
            total.add(other)
        assert math.isnan(total.largest)
        assert math.isnan(total.least_code)


HISTOGRAMS = {
    "largest": (1e37, np.full((4, 10), HUGE)),
    "3e38": (1e37, np.full((4, 10), 3e38)),
    "both signs": (1e37, np.tile([HUGE, -HUGE], (4, 5))),
    "subnormal": (1, np.full((4, 10), 1e-45)),
    "subnormal and 0": (1, np.tile([1e-45, 0], (4, 5))),
    "zeros": (1, np.tile([0, -0.0], (4, 5))),
    "neighbours": (1, np.tile([1, np.nextafter(np.float32(1), np.float32(2))], (4, 5))),
    "one row": (0.1, np.full((1, 10), 7)),
    "inf": (1, np.full((4, 10), np.inf)),
    "nan": (1, np.full((4, 10), np.nan)),
    "inf and nan": (1, np.tile([np.inf, -np.inf, np.nan, np.nan, 1], (4, 2))),
    "no row": (1, np.zeros((0, 10))),
}


@pytest.mark.parametrize(("scale", "x"), HISTOGRAMS.values(), ids=HISTOGRAMS)
@pytest.mark.by_default(2)
def test_histograms(scale, x):
    """Each finite element is in a bin, and the others are counted."""
    pytest.importorskip("matplotlib")
    from quark_numba.analysis.page import page

    x = x.astype(np.float32)
    found = quark_numba.analyze(round_trip(scale), [x], histograms=1)
    (histogram,) = found.histograms
    finite = x[np.isfinite(x)]
    assert sum(histogram.counts) == finite.size
    assert histogram.not_finite == x.size - finite.size
    assert np.isfinite(histogram.edges).all()
    assert (np.diff(histogram.edges) > 0).all()
    assert (f", {histogram.not_finite} not finite" in page(found, "")) == bool(histogram.not_finite)


@pytest.mark.slow
def test_commands_over_no_rows(tmp_path, terminal):
    pytest.importorskip("matplotlib")
    onnx.save(round_trip(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **EMPTY)
    words = [tmp_path / "m.onnx", "--data", tmp_path / "x.npz"]
    assert "0 in 1 batch" in terminal.text("evaluate", *words, "--labels", "l")
    assert terminal.text("analyze", *words, "--sweep", "--what-if", "bfloat16", "--html", tmp_path / "page.html")
    assert terminal.report("analyze", *words)["tensors"][0]["saturated"] is None
