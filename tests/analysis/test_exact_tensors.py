"""Tensors and outputs that rounding does not change, zeros among them: their ratio is infinite, and they rank as the best."""

import csv
import json
import math

import numpy as np
import onnx
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Data, Execution
from quark_numba.analysis.experiments import what_if
from quark_numba.analysis.experiments.sweep import Effect, _worst_first

rng = np.random.default_rng(3)
X = rng.normal(size=(8, 16)).astype(np.float32)
W1, W2 = rng.normal(size=(2, 16, 16)).astype(np.float32)
SCALES = [*floats(fine=0.03, coarse=1.0), constant("z", 0, np.int8)]


def layers(*, quantized, bias=0.0):
    """Return a model of two layers and an output that is zero. Quantized, the first layer keeps its bias of zeros exactly,
    and the second one, "crude", has a scale that is far too coarse."""
    weights = floats(w1=W1, w2=W2, b1=np.full(16, bias), zero=0.0)
    nodes, names = [], {}
    for name, scale in (("w1", "fine"), ("b1", "fine"), ("w2", "coarse")):
        names[name] = f"{name}_rounded" if quantized else name
        if quantized:
            nodes += pair(name, f"{name}_codes", names[name], [scale, "z"], "")
    nodes.append(f"a = Gemm (x, {names['w1']}, {names['b1']})")
    nodes += [f"y = MatMul (a, {names['w2']})", "empty = Mul (y, zero)"]
    inputs, outputs = [("x", "float32", [None, 16])], ["y", "empty"]
    made = model(nodes, inputs, outputs, initializers=[*SCALES, *weights], domains=[])
    for node in made.graph.node:
        node.name = {"y": "crude", "a": "fine"}.get(node.output[0], "")
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    onnx.save(layers(quantized=True), folder / "q.onnx")
    onnx.save(layers(quantized=False), folder / "f.onnx")
    np.savez(folder / "x.npz", x=X)
    return folder


def strict(text):
    """Return the value of a JSON text. By default, Python's parser accepts NaN and Infinity; others do not."""

    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_ranks():
    found = quark_numba.analyze(
        layers(quantized=True), [X], layers(quantized=False), sweep=True, what_if=["bfp16"], histograms=3
    )
    assert [each.name for each in found.tensors] == ["w2", "w1", "b1"]
    zeros = found.tensors[2]
    assert (zeros.own_sqnr_db, zeros.sqnr_db, zeros.inherited_sqnr_db, zeros.cosine) == (math.inf, math.inf, math.inf, 1)
    assert zeros.what_if == {"bfp16": math.inf}
    assert [each.name for each in found.histograms] == ["w2", "w1", "b1"]
    assert found.sweep[-1].name in ("b1", "all activations")
    assert {each.name: each.on_sqnr_db for each in found.sweep}["b1"] == math.inf
    assert {each.name: each.sqnr_db for each in found.outputs}["empty"] == math.inf


def test_evaluate_of_equal_outputs():
    (output,) = quark_numba.evaluate(layers(quantized=True), [X], layers(quantized=False), outputs=["empty"]).outputs
    assert (output.sqnr_db, output.cosine, output.max_abs_error, output.mean_abs_error) == (math.inf, 1, 0, 0)


def test_commands(files, tmp_path, terminal):
    pytest.importorskip("matplotlib")
    words = [files / "q.onnx", "--reference", files / "f.onnx", "--data", files / "x.npz"]
    assert terminal.text("evaluate", *words, "--outputs", "empty", "--fail-below", "20")
    assert "output y has an SQNR of" in terminal.error("evaluate", *words, "--fail-below", "200")
    written = {name: tmp_path / name for name in ("t.csv", "p.html", "e.json", "kept.json")}
    options = ["--csv", written["t.csv"], "--html", written["p.html"], "--exclude-config", written["e.json"]]
    options += ["--resume", written["kept.json"], "--json", "--exclude", "3", "--sweep", "--what-if", "bfp16"]
    report = strict(terminal.text("analyze", *words, *options))
    assert report["tensors"][-1]["own_sqnr_db"] == "inf"
    # "fine" is there because of its weight, and follows "crude"; its exact bias would have put it first.
    assert strict(written["e.json"].read_text()) == {"exclude": ["crude", "fine"]}
    with written["t.csv"].open() as file:
        assert {row["name"]: row["own_sqnr_db"] for row in csv.DictReader(file)}["b1"] == "inf"
    assert "<td class=n>inf</td>" in written["p.html"].read_text(encoding="utf-8")
    assert "Infinity" not in written["kept.json"].read_text()
    strict(written["kept.json"].read_text())


def test_what_costs_nothing_is_not_excluded(files, tmp_path, terminal):
    """Only tensors that lose accuracy are among the worst, even if more are asked for."""
    made = layers(quantized=True)
    for initializer in made.graph.initializer:
        if initializer.name == "w1":
            initializer.CopyFrom(floats(w1=np.zeros((16, 16)))[0])
    onnx.save(made, tmp_path / "m.onnx")
    words = ["analyze", tmp_path / "m.onnx", "--data", files / "x.npz", "--exclude-config", tmp_path / "e.json"]
    for more in ([], ["--sweep"]):
        terminal.text(*words, *more)
        excluded = strict((tmp_path / "e.json").read_text())["exclude"]
        assert excluded == ([] if more else ["crude"])  # zeros come into the second layer, so that its weight does not matter


def test_a_run_with_infinities_continues(files, tmp_path):
    kept = tmp_path / "kept.json"
    how = {"data": Data(files / "x.npz", batch=4), "execution": Execution(resume=kept)}
    path, reference = files / "q.onnx", files / "f.onnx"
    first = quark_numba.analyze(path, reference=reference, **how)
    strict(kept.read_text())
    assert quark_numba.analyze(path, reference=reference, **how) == first


def test_points_that_another_one_beats_are_left_out():
    mixes = [what_if.Mix(float(bits), {}) for bits in (9, 8, 7, 6, 5, 4)]
    for ratios, left in (
        ([9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4]),
        ([5, 9, 6, 6, 7, 4], [8, 5, 4]),
        ([math.inf] * 6, [4]),
        ([9, 8, math.nan, 6, math.nan, math.nan], [9, 8, 6, 4]),
    ):
        best = what_if._best(mixes, ratios)
        assert [mix.bits for mix, _ in best] == left
        np.testing.assert_equal(
            [ratio for _, ratio in best], [dict(zip((9, 8, 7, 6, 5, 4), ratios, strict=True))[b] for b in left]
        )


def test_noise_that_is_not_finite_is_the_most():
    """A type that gives NaN is never taken for the one with the least noise, nor does it stop the line."""
    wide, narrow, broken = (what_if.Format(name, bits, abs) for name, bits in (("wide", 16), ("narrow", 8), ("broken", 4)))
    noise = {("t", "wide"): 0.0, ("t", "narrow"): 1.0, ("t", "broken"): math.inf, ("u", "broken"): math.inf}
    noise |= {("u", "wide"): math.inf, ("u", "narrow"): 2.0}
    every = [wide, narrow, broken]
    line = what_if._line({"t": every, "u": every}, {"t": 1.0, "u": 1.0}, noise)
    assert [[mix.chosen[name].name for name in "tu"] for mix in line] == [
        ["wide", "narrow"],
        ["narrow", "narrow"],
        ["broken", "narrow"],
        ["broken", "broken"],
    ]


def test_effects_with_the_worst_first():
    effects = [Effect("same", 1.0, 5.0), Effect("exact", math.inf, math.inf), Effect("nan", 1.0, math.nan)]
    effects += [Effect("helps", 9.0, 5.0), Effect("unknown", math.nan, 5.0)]
    assert [each.name for each in sorted(effects, key=_worst_first)] == ["nan", "helps", "same", "unknown", "exact"]
