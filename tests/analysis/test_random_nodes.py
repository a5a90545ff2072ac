"""Tensors that depend on random numbers are named and not measured; all others are measured as in a model without such
nodes."""

import re

import numpy as np
import onnx
import pytest
from onnx import defs
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import RandomData
from quark_numba.analysis.twin import random_nodes
from quark_numba.models.model_files import Source

pytestmark = pytest.mark.compiled

X = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)
SHAPE = "<shape = [2, 6]>"


def rounded(x, y):
    return pair(x, f"{y}_codes", y, ["s", "z"], "")


def network(noise, **constants):
    """Return a model with an output `y` that depends on `n`, which `noise` computes, and an output `u` that does not."""
    nodes = [*rounded("x", "a"), *noise, "b = Add (a, n)", *rounded("b", "c"), "d = Neg (c)", *rounded("d", "y")]
    nodes += [*rounded("w", "v"), "u = MatMul (a, v)"]
    initializers = [*floats(s=0.05, w=np.eye(6)), constant("z", 0, np.int8)]
    initializers += [constant(name, value) for name, value in constants.items()]
    return model(nodes, [("x", "float32", [2, 6])], ["y", "u"], initializers=initializers, domains=[])


DRAWING = {
    "RandomNormal": [f"n = RandomNormal {SHAPE} ()"],
    "RandomUniform": [f"n = RandomUniform {SHAPE} ()"],
    "RandomNormalLike": ["n = RandomNormalLike <seed = 1.0> (a)"],
    "RandomUniformLike": ["m = RandomUniformLike (a)", "n = Neg (m)"],
    "Bernoulli": ["p = Sigmoid (a)", "n = Bernoulli (p)"],
    "Multinomial": ["m = Multinomial <sample_size = 6> (a)", "n = Cast <to = 1> (m)"],
    "Dropout": ["n = Dropout (a, ratio, mode)"],
}
CONSTANTS = {"ratio": np.float32(0.5), "mode": np.True_}


@pytest.mark.parametrize("operator", DRAWING)
def test_what_depends_on_random_numbers_is_named(operator):
    whole = network(DRAWING[operator], **(CONSTANTS if operator == "Dropout" else {}))
    found = quark_numba.analyze(whole, [X], sweep=True, what_if=["bfloat16"], histograms=9)
    assert [each.name for each in found.tensors if each.kind == "activation"] == ["x"]
    assert {each.name for each in found.sweep} == {"x", "w", "all weights", "all activations"}
    assert {*found.unmatched} == {"b", "d"}
    assert [each.name for each in found.outputs] == [each.name for each in found.optimizations] == ["u"]
    reasons = [*found.unmatched.values(), found.not_compared["y"]]
    assert all(reason.startswith(f"downstream of {operator} of ") for reason in reasons)
    assert found.outputs == quark_numba.analyze(network(["n = Neg (a)"]), [X], outputs=["u"]).outputs
    evaluation = quark_numba.evaluate(whole, [X])
    assert [each.name for each in evaluation.outputs] == ["u"]
    assert evaluation.not_compared == {"y": found.not_compared["y"]}
    with pytest.raises(quark_numba.ModelError, match=f"no output can be compared: y is downstream of {operator} of"):
        quark_numba.evaluate(whole, [{"x": X, "l": np.zeros(2, np.int64)}], outputs=["y"], labels="l")


def test_if_all_depends_on_random_numbers_nothing_is_measured():
    found = quark_numba.analyze(network(DRAWING["RandomNormal"]), [X], outputs=["y"], sweep=True, what_if=["bfloat16"])
    assert [found.outputs, found.twin, found.optimizations] == [[], [], []]
    assert {*found.not_compared} == {"y"}
    assert all(np.isnan(each.on_sqnr_db) and np.isnan(each.off_sqnr_db) for each in found.sweep)
    evaluation = quark_numba.evaluate(network(DRAWING["RandomNormal"]), [X], outputs=["y"])
    assert not evaluation.outputs
    assert "downstream of RandomNormal of n" in str(evaluation)


@pytest.mark.parametrize(
    ("noise", "constants"),
    [
        (["n = Dropout (a)"], {}),
        (["n = Dropout (a, ratio)"], {"ratio": np.float32(0.5)}),
        (["n = Dropout (a, ratio, mode)"], {"ratio": np.float32(0.5), "mode": np.False_}),
    ],
)
def test_dropout_that_does_not_train_is_measured(noise, constants):
    found = quark_numba.analyze(network(noise, **constants), [X])
    assert {each.name for each in found.tensors} == {"x", "b", "d", "w"}
    assert not found.unmatched
    assert not found.not_compared


def test_random_numbers_in_a_branch_and_in_the_reference():
    """If a branch draws, the output of the node with the branch is named. If a reference draws, its node is named."""
    branches = "then_branch = then () => (m) { m = RandomNormalLike (a) }, else_branch = other () => (k) { k = Neg (a) }"
    whole = network([f"n = If (cond) <{branches}>"], cond=np.True_)
    reason = random_nodes.random_outputs(Source(whole), None, ["y", "u"])
    assert {*reason} == {"y"}
    assert "RandomNormalLike of m" in reason["y"]
    plain = network(["n = Neg (a)"])
    found = quark_numba.analyze(plain, RandomData(1), network(DRAWING["RandomNormal"]))
    assert [each.name for each in found.outputs] == ["u"]
    assert found.not_compared["y"].startswith("the reference's is downstream of RandomNormal of n, ")
    assert not found.unmatched


def test_the_command_names_the_node(tmp_path, terminal):
    onnx.save(network(DRAWING["RandomUniform"]), tmp_path / "m.onnx")
    onnx.save(network(["n = Neg (a)"]), tmp_path / "f.onnx")
    paths = tmp_path / "m.onnx", "--reference", tmp_path / "f.onnx"
    for command in (
        ["run", *paths, "--runs", "1"],
        ["evaluate", *paths, "--random", "2"],
        ["analyze", *paths, "--random", "2"],
    ):
        text = terminal.text(*command)
        assert re.search(r"│ y +│ downstream of RandomUniform of n, which draws random", text)
        assert not re.search(r"│ y +│ +-?[\d.]", text)


@pytest.mark.skipif(not hasattr(defs.OpSchema, "node_determinism"), reason="this release of onnx does not say what draws")
def test_the_operators_are_those_of_onnx():
    """Besides nodes with graphs, and AffineGrid, which is a function with an If."""
    others = {"Dropout", "AffineGrid", "If", "Loop", "Scan", "SequenceMap"}
    drawing = {each.name for each in defs.get_all_schemas_with_history() if each.node_determinism.name == "NonDeterministic"}
    assert drawing == {*random_nodes.DRAWING, *others}
