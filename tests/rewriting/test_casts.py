"""The pass `casts`: a Cast to 16 bits and those back to float32 become one node with the same bits."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, session
from rewritten_models import assert_rewritten, assert_same_values, exact_session, floats, operators

import quark_numba
from quark_numba import optimize
from quark_numba.rewriting import casts
from quark_numba.rewriting.optimize import has_nodes_to_rewrite, rewrite_model

pytestmark = pytest.mark.compiled

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
types = pytest.mark.parametrize("name", DTYPES)

X = np.random.default_rng(50).normal(0, 3, (4, 30)).astype(np.float32)
SPECIAL = [0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, -1e-9, 65504, 65519.99, 65520, -65520, 3.39e38, 3.4e38, -3.4e38]
X.reshape(-1)[: len(SPECIAL)] = SPECIAL
INPUTS, FEEDS = [("x", "float32", X.shape)], {"x": X}


def number(name):
    return TensorProto.DataType.Value(name.upper())


def pair(x, y, name="bfloat16", codes="h", **attributes):
    """Return a Cast to a type and one back."""
    return [
        helper.make_node("Cast", [x], [codes], to=number(name), **attributes),
        helper.make_node("Cast", [codes], [y], to=TensorProto.FLOAT),
    ]


def rounded(x, name="bfloat16"):
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[name]).astype(np.float32)


@types
@pytest.mark.slow
def test_a_pair_is_a_step(name):
    """Values beyond the range become Inf, and small ones keep their sign, as in ONNX Runtime's own nodes."""
    before = model(["a = HardSwish (x)", *pair("a", "b", name), "y = Abs (b)"], INPUTS, ["y"], opset=17)
    assert_rewritten(before, ["Region"], FEEDS)
    alone = model(pair("x", "y", name, saturate=1), INPUTS, ["y"], opset=21)
    assert_rewritten(alone, ["FakeQuantize"], FEEDS)
    (y,) = session(optimize(alone)).run(None, FEEDS)
    np.testing.assert_array_equal(y.view(np.uint32), rounded(X, name).view(np.uint32))


@types
@pytest.mark.parametrize("columns", [3, 3000])
@pytest.mark.by_default(1)
def test_weights_are_folded(name, columns):
    """Pairs of Cast of weights are folded. Large weights are rounded when they are written."""
    w = np.random.default_rng(51).normal(0, 1, (30, columns)).astype(np.float32)
    w[:2, 0] = 1e-9, -1e-9
    before = model([*pair("w", "v", name), "y = MatMul (x, v)"], INPUTS, ["y"], initializers=floats(w=w), opset=17)
    after = assert_rewritten(before, ["MatMul"], FEEDS).model
    (constant,) = after.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(constant), rounded(w, name))
    kept = assert_rewritten(before, ["ExtendedDequantizeLinear", "MatMul"], FEEDS, keep_quantized_weights=True).model
    codes, _ = kept.graph.initializer
    assert (codes.data_type, list(codes.dims)) == (number(name), [30, columns])
    (y,) = quark_numba.InferenceSession(before, keep_quantized_weights=True).run(None, FEEDS)
    np.testing.assert_allclose(y[1:], X[1:] @ rounded(w, name), rtol=1e-3, atol=1e-3)


def test_users_of_the_codes():
    """A Cast to 16 bits stays for other users. Equal Casts back become one node, except for outputs of the graph."""
    back = [helper.make_node("Cast", ["h"], [name], to=TensorProto.FLOAT) for name in ("a", "b", "c")]
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), *back, "y = MatMul (a, w)", "z = MatMul (b, w)"]
    constants = floats(w=np.eye(30, 2))
    before = model(nodes, INPUTS, ["y", "z", "c"], initializers=constants, opset=17)
    assert_rewritten(before, ["FakeQuantize", "FakeQuantize", "MatMul", "MatMul"], FEEDS)
    with_codes = model(nodes, INPUTS, ["y", "z", ("h", "bfloat16", X.shape)], initializers=constants, opset=17)
    assert_rewritten(with_codes, ["Cast", "FakeQuantize", "MatMul", "MatMul"], FEEDS)
    double = [*pair("x", "y"), helper.make_node("Cast", ["h"], ["z"], to=TensorProto.DOUBLE)]
    before = model(double, INPUTS, ["y", ("z", "float64", X.shape)], opset=17)
    assert_rewritten(before, ["Cast", "FakeQuantize", "Cast"], FEEDS)


def between(operator):
    first, second = pair("x", "y", "float16")
    second.input[0] = "g"
    return [first, helper.make_node(operator, ["h"], ["g"]), second]


STAY = {
    "computes in 16 bits": (between("Sqrt"), "float32"),
    "moves 16 bits": (between("Transpose"), "float32"),
    "double": (pair("x", "y"), "float64"),
    "integers": (pair("x", "y"), "int32"),
    "float8": (pair("x", "y", "float8e4m3fn"), "float32"),
    "back to double": ([pair("x", "y")[0], helper.make_node("Cast", ["h"], ["y"], to=TensorProto.DOUBLE)], "float32"),
    # ONNX Runtime drops both, so that nothing is rounded.
    "dropped": ([*pair("x", "a")[:1], "a = Cast <to = 1> (h)", "y = Neg (a)"], "float32"),
}


@pytest.mark.parametrize("case", STAY)
def test_casts_that_stay(case):
    nodes, dtype = STAY[case]
    before = model(nodes, [("x", dtype, X.shape)], [("y", "float64" if "back" in case else "float32", None)], opset=21)
    if case == "dropped":
        before.graph.node[0].name = "InsertedPrecisionFreeCast_a"
    result = rewrite_model(before)
    assert operators(result.model) == [node.op_type for node in before.graph.node]
    assert not result.done
    with np.errstate(invalid="ignore"):
        feeds = {"x": X.astype(dtype)}
    if case == "dropped":
        (y,) = exact_session(before).run(None, feeds)
        np.testing.assert_array_equal(y, -X)


def test_options_with_which_casts_stay():
    """Casts stay if another execution provider may run them, or if there is no native backend to run their replacement."""
    before = model([*pair("x", "a"), "y = Relu (a)"], INPUTS, ["y"], opset=17)
    for options in ({"qdq": "onnxruntime"}, {"regions": False}):
        assert operators(optimize(before, **options)) == ["Cast", "Cast", "Relu"]


def test_subgraphs_and_functions():
    """The Cast to 16 bits may be outside of a branch."""
    (x,), first, second = INPUTS, *pair("x", "a")
    y, z = map(helper.make_empty_tensor_value_info, "yz")
    branches = [
        helper.make_graph([second, helper.make_node("Relu", ["a"], ["y"])], "then", [], [y]),
        helper.make_graph([*pair("x", "b", codes="g"), helper.make_node("Neg", ["b"], ["z"])], "else", [], [z]),
    ]
    choice = helper.make_node("If", ["flag"], ["w"], then_branch=branches[0], else_branch=branches[1])
    before = model([first, choice], [x, ("flag", "bool", [])], ["w"], opset=17)
    after = optimize(before)
    inner = [[node.op_type for node in attribute.g.node] for attribute in after.graph.node[-1].attribute]
    assert sorted(inner) == [["Region"], ["Region"]]
    for flag in (False, True):
        assert_same_values(before, after, {"x": X, "flag": np.array(flag)})
    call = model([helper.make_node("Round", ["x"], ["y"], domain="l")], INPUTS, ["y"], opset=17)
    call.functions.append(helper.make_function("l", "Round", ["x"], ["y"], pair("x", "y"), [helper.make_opsetid("", 17)]))
    after = optimize(call)
    assert (operators(after), len(after.functions)) == (["FakeQuantize"], 0)
    assert_same_values(call, after, FEEDS)


@types
@pytest.mark.by_default(1)
def test_sessions(name):
    """`InferenceSession` has the bits of a session that runs every Cast, also between convolutions in the blocked layout."""
    rng = np.random.default_rng(52)
    x, w = rng.normal(0, 1, (1, 16, 6, 6)).astype(np.float32), rng.normal(0, 0.1, (16, 16, 1, 1)).astype(np.float32)
    nodes = [*pair("w", "v", name, "wh"), *pair("x", "a", name, "xh"), "c = Conv (a, v)", *pair("c", "b", name, "ch")]
    nodes += ["r = Relu (b)", *pair("r", "s", name, "rh"), "d = Conv (s, v)", *pair("d", "y", name, "dh")]
    source = model(nodes, [("x", "float32", x.shape)], ["y"], initializers=floats(w=w), opset=17)
    assert has_nodes_to_rewrite(source)
    expected = exact_session(source).run(None, {"x": x})[0]
    (y,) = quark_numba.InferenceSession(source).run(None, {"x": x})
    # ONNX Runtime adds a convolution up in another order if it is in the blocked layout.
    np.testing.assert_allclose(y, expected, rtol=2.0**-7, atol=1e-3)
    np.testing.assert_array_equal(y, rounded(y, name))
    assert_rewritten(source, ["Region", "Conv", "Region", "Conv", "Region"], {"x": x})


def test_what_begins_rewriting():
    assert [casts.is_to_16_bits(node) for node in pair("x", "y")] == [True, False]
    assert not casts.is_to_16_bits(onnx.NodeProto(op_type="Cast"))
