"""The pass `channels_last`: QONNX nodes with channels on the last axis become nodes of ONNX, with the same bits."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, session
from other_quantizers import HAS_SAME_SUMS, expectation, models_of
from rewritten_models import exact_session, floats, operators

import quark_numba
from quark_numba import ModelError, optimize
from quark_numba.cli import inventory
from quark_numba.rewriting.channels_last import REWRITTEN
from quark_numba.rewriting.optimize import has_nodes_to_rewrite, rewrite_model

pytestmark = pytest.mark.compiled

DOMAIN = "qonnx.custom_op.channels_last"
PATHS = models_of("channels_last")
RNG = np.random.default_rng(70)
SPATIAL = (9, 8, 7)


def first(x):
    """Return an array with the channels moved from the last axis to axis 1."""
    return np.moveaxis(x, -1, 1) if x.ndim > 2 else x


def node(operator, inputs, output="y", *, domain=DOMAIN, **attributes):
    return helper.make_node(operator, inputs, [output], domain=domain, **attributes)


def of_conv(rank, group=1, bias=True):
    """Return the constants of a Conv of 4 channels, in the layout of ONNX."""
    w = {"w": RNG.normal(0, 1, (6, 4 // group, *[3, 2, 2][: rank - 2]))}
    return w | ({"b": RNG.normal(0, 1, 6)} if bias else {})


OF_BATCHES = {name: RNG.uniform(0.5, 2, 4) for name in ("scale", "bias", "mean", "variance")}
CASES = {
    **{f"conv {rank}": ("Conv", rank, of_conv(rank), {"pads": [1] * (2 * rank - 4)}) for rank in (3, 4, 5)},
    **{
        f"conv {pad}": ("Conv", 4, of_conv(4), {"auto_pad": pad, "strides": [2, 3]})
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "conv in groups": ("Conv", 4, of_conv(4, 2, False), {"group": 2, "dilations": [2, 1], "kernel_shape": [3, 2]}),
    "pool 3": ("MaxPool", 3, {}, {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    "pool 4": ("MaxPool", 4, {}, {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER"}),
    **{f"batches {rank}": ("BatchNormalization", rank, OF_BATCHES, {"epsilon": 0.01}) for rank in (2, 3, 4)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("has_shape", [True, False])
@pytest.mark.by_default(8)
def test_nodes(case, has_shape):
    """A node gives the bits of the node of ONNX on moved axes."""
    name, rank, constants, attributes = CASES[case]
    x = RNG.normal(0, 1, (2, *SPATIAL[: rank - 2], 4)).astype(np.float32)
    own = model(
        [node(name, ["x", *constants], domain="", **attributes)], ["x"], ["y"], initializers=floats(**constants), opset=17
    )
    expected = exact_session(own).run(None, {"x": first(x)})[0]
    moved = {each: np.moveaxis(value, 1, -1) if each == "w" else value for each, value in constants.items()}
    shape = [None] * rank if has_shape else None
    written = model(
        [node(name, ["x", *constants], **attributes)], [("x", "float32", shape)], ["y"], initializers=floats(**moved), opset=17
    )
    assert has_nodes_to_rewrite(written)
    result = rewrite_model(written)
    if name == "BatchNormalization" and not has_shape:
        ((operator, why),) = result.left
        assert operator == f"{DOMAIN}::BatchNormalization"
        assert "the rank of its x" in why
        return
    assert [what for _, what in result.done] == [REWRITTEN]
    np.testing.assert_array_equal(first(exact_session(result.model).run(None, {"x": x})[0]), expected)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.compiled
@pytest.mark.by_default(1)
def test_models_that_qonnx_wrote(path):
    """Models give the outputs of QONNX's executor, up to a step of the last quantizer where sums are added in another order."""
    feeds, (expected,) = expectation(path)
    after = optimize(path)
    assert {each.domain for each in after.graph.node} <= {"", "quark_numba"}
    for made in (session(after), quark_numba.InferenceSession(path)):
        (y,) = made.run(None, feeds)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 if HAS_SAME_SUMS else 0.071)
        assert np.mean(np.abs(y - expected) < 1e-6) > 0.8
    (types,) = [{each.type for each in quark_numba.analyze(path, [feeds]).tensors}]
    assert types == {"int8", "int4", "uint4"}


def test_transposes_between_two_nodes_are_left_out():
    constants = {name: np.ones(6) for name in OF_BATCHES} | {"w": RNG.normal(0, 1, (6, 1, 1, 4))}
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("BatchNormalization", ["c", *OF_BATCHES], "d", name="second"),
        node("MaxPool", ["d"], kernel_shape=[2, 2]),
    ]
    source = model(nodes, ["x"], ["y", "d"], initializers=floats(**constants), opset=17)
    after = optimize(source)
    own = ["Transpose", "Transpose", "Conv", "BatchNormalization", "Transpose", "MaxPool", "Transpose"]
    assert operators(after) == own
    (second,) = [each for each in after.graph.node if each.op_type == "BatchNormalization"]
    assert second.name == "second"
    x = RNG.normal(0, 1, (1, 5, 5, 4)).astype(np.float32)
    y, d = session(after).run(None, {"x": x})
    c = x @ constants["w"][:, 0, 0].T.astype(np.float32)
    np.testing.assert_allclose(d, c / np.sqrt(1 + 1e-5) - 1 / np.sqrt(1 + 1e-5) + 1, rtol=1e-4, atol=1e-5)
    windows = [d[:, i : i + 4, j : j + 4] for i, j in itertools.product(range(2), repeat=2)]
    np.testing.assert_array_equal(y, np.max(windows, axis=0))


@pytest.mark.parametrize("where", ["graph", "branch", "function"])
def test_where_nodes_are(where):
    """ONNX Runtime names the operator in a drop-in session, and the package says how to run it."""
    pool = node("MaxPool", ["x"], "y", kernel_shape=[2, 2])
    source = model([pool], ["x", ("flag", "bool", [])], ["y"], domains=["l", DOMAIN], opset=17)
    if where == "branch":
        branch = helper.make_graph([pool], "branch", [], [helper.make_empty_tensor_value_info("y")])
        del source.graph.node[:]
        source.graph.node.append(helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch))
    if where == "function":
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 17)]
        source.functions.append(helper.make_function("l", "F", ["x"], ["y"], [pool], imports))
        source.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["y"], domain="l"))
    x = RNG.normal(0, 1, (2, 4, 4, 3)).astype(np.float32)
    feeds = {"x": x, "flag": np.array(True)}
    (y,) = quark_numba.InferenceSession(source).run(None, feeds)
    windows = [x[:, i : i + 3, j : j + 3] for i, j in itertools.product(range(2), repeat=2)]
    np.testing.assert_array_equal(y, np.max(windows, axis=0))
    with pytest.raises(Exception, match=f"{DOMAIN}:MaxPool"):
        session(source)


def test_nodes_that_cannot_be_rewritten(tmp_path):
    """Such nodes are refused by name. If a session fails for another reason, its message gives that reason."""
    unknown = model(
        [node("BatchNormalization", ["x", *OF_BATCHES], name="culprit")], ["x"], ["y"], initializers=floats(**OF_BATCHES)
    )
    with pytest.raises(
        ModelError, match=r"node 'culprit' is a .*BatchNormalization, which cannot run: only optimize and quark_numba"
    ):
        quark_numba.InferenceSession(unknown)
    onnx.save(unknown, tmp_path / "m.onnx")
    (counted,) = inventory.quantization_nodes(tmp_path / "m.onnx")
    assert counted.why.startswith("only optimize and quark_numba.InferenceSession rewrite it")
    indices = model([node("MaxPool", ["x"], kernel_shape=[2, 2])], ["x"], ["y"])
    indices.graph.node[0].output.append("indices")
    assert operators(optimize(indices)) == ["MaxPool"]
    assert optimize(indices).graph.node[0].domain == DOMAIN
    wrong = model([node("MaxPool", ["x"], kernel_shape=[2, 2], bad=1)], ["x"], ["y"])
    with pytest.raises(Exception, match="attribute: bad for operator MaxPool"):
        quark_numba.InferenceSession(wrong)
