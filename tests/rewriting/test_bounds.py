"""Bounds of values: no element of a value is beyond its bound, for any input of the model."""

import math

import numpy as np
import onnx_ir as ir
import oracle
import pytest
from onnx import TensorProto, helper
from onnx_models import array_of, model, ort_value, run, session
from rewritten_models import constant, exact_session, pair, scale_and_zero_point, with_outputs
from standard_models import in_standard_operators, plain_session

from quark_numba.rewriting import bounds
from quark_numba.rewriting.bounds import Bounds
from quark_numba.rewriting.graph import Graph, Settings
from quark_numba.rewriting.optimize import rewrite_model

SHAPE = (2, 4, 6, 6)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, 3e38, -3e38])
RANDOM = np.random.default_rng(58)
WEIGHT = RANDOM.normal(0, 2, (6, 6)).astype(np.float32)

# For each operator that has a bound: inputs and attributes of its nodes. x is a value with a bound, an array a constant, and ""
# an input that is left out.
CASES = {
    "Abs": [(["x"], {})],
    "Add": [(["x", "x"], {}), (["x", np.float32(-1e20)], {})],
    "AveragePool": [(["x"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})],
    "Cast": [(["x"], {"to": TensorProto.FLOAT16}), (["x"], {"to": TensorProto.BFLOAT16})],
    "Clip": [
        (["x", np.float32(-1), np.float32(2)], {}),
        (["x", "", np.float32(6)], {}),
        (["x", np.float32(-6), ""], {}),
        (["x", np.float32(40)], {}),
        (["x", "", np.float32(-40)], {}),
        (["x", np.float32(50), np.float32(40)], {}),
        (["x"], {}),
    ],
    "Concat": [(["x", np.full(SHAPE, 99, np.float32)], {"axis": 1})],
    "Conv": [(["x", RANDOM.normal(0, 2, (5, 4, 3, 3)).astype(np.float32), np.full(5, -9, np.float32)], {})],
    "DepthToSpace": [(["x"], {"blocksize": 2})],
    "Div": [(["x", np.float32(-0.01)], {}), (["x", np.float32(1e-45)], {})],
    "Erf": [(["x"], {})],
    "Expand": [(["x", np.int64([2, 2, 4, 6, 6])], {})],
    "Flatten": [(["x"], {})],
    "Gather": [(["x", np.int64([1, 0])], {})],
    "GatherElements": [(["x", np.zeros(SHAPE, np.int64)], {})],
    "GatherND": [(["x", np.int64([[1, 0]])], {})],
    "Gemm": [
        (["r", WEIGHT, np.full(6, 7, np.float32)], {"alpha": -3.0, "beta": 5.0}),
        (["r", WEIGHT], {"alpha": 0.5, "transB": 1}),
    ],
    "HardSigmoid": [(["x"], {"alpha": 3.0})],
    "HardSwish": [(["x"], {})],
    "Identity": [(["x"], {})],
    "MatMul": [(["x", WEIGHT], {}), (["x", WEIGHT[0]], {})],
    "Max": [(["x", np.float32(1000)], {})],
    "MaxPool": [(["x"], {"kernel_shape": [2, 2]})],
    "Min": [(["x", np.float32(-1000)], {})],
    "Mul": [(["x", "x"], {}), (["x", np.float32(1e-45)], {})],
    "Neg": [(["x"], {})],
    "Pad": [(["x", np.int64([0, 0, 1, 1] * 2), np.float32(-77)], {}), (["x", np.int64([0, 0, 1, 1] * 2)], {})],
    "Relu": [(["x"], {})],
    "Reshape": [(["x", np.int64([-1])], {})],
    "Round": [(["x"], {})],
    "Sigmoid": [(["x"], {})],
    "Slice": [(["x", np.int64([1]), np.int64([2])], {})],
    "Softmax": [(["x"], {})],
    "Softsign": [(["x"], {})],
    "SpaceToDepth": [(["x"], {"blocksize": 2})],
    "Split": [(["x"], {"num_outputs": 1})],
    "Squeeze": [(["x"], {})],
    "Sub": [(["x", np.float32(1e20)], {}), (["x", "x"], {})],
    "Sum": [(["x", "x", "x"], {})],
    "Tanh": [(["x"], {})],
    "Tile": [(["x", np.int64([1, 1, 2, 1])], {})],
    "Transpose": [(["x"], {})],
    "Trilu": [(["x"], {})],
    "Unsqueeze": [(["x", np.int64([0])], {})],
    "Where": [([np.bool_(True), "x", np.float32(-500)], {}), ([np.bool_(False), "x", np.float32(-500)], {})],
}


def node_model(nodes, constants=(), opset=22):
    """Return a model in which these nodes use x, the result of a round trip of the input, or r, that as a matrix."""
    rows = [*pair("input"), helper.make_node("Identity", ["y"], ["x"]), helper.make_node("Reshape", ["x", "matrix"], ["r"])]
    given = [*scale_and_zero_point(), constant("matrix", np.int64([-1, 6])), *constants]
    return model([*rows, *nodes], [("input", "float32", SHAPE)], ["x"], initializers=given, opset=opset)


def bounds_of(source):
    graph = Graph(ir.from_proto(source), Settings(keep_quantized_weights=True))
    known = Bounds(graph)
    return {value.name: known.find(value) for node in graph.model.graph.all_nodes() for value in node.outputs}


def assert_bounds_hold(source):
    """Assert it for random inputs with special numbers among them. Return the bounds."""
    found = bounds_of(source)
    named = [name for name, bound in found.items() if math.isfinite(bound)]
    assert "x" in named
    made = exact_session(with_outputs(source, named), qdq="float")
    for size in (1e-3, 10, 1e6):
        values = RANDOM.normal(0, size, SHAPE).astype(np.float32)
        values.reshape(-1)[: SPECIAL.size] = SPECIAL
        for name, value in zip(named, made.run_with_ort_values(named, {"input": ort_value(values)}), strict=True):
            magnitudes = np.abs(array_of(value).astype(np.float64))
            assert (magnitudes <= found[name]).all(), name  # nor NaN
    return found


@pytest.mark.parametrize("op_type", sorted(bounds._RULES))
@pytest.mark.compiled
def test_operators(op_type):
    finite = 0
    for inputs, attributes in CASES[op_type]:
        names = [each if isinstance(each, str) else f"c{index}" for index, each in enumerate(inputs)]
        constants = [constant(name, each) for name, each in zip(names, inputs, strict=True) if not isinstance(each, str)]
        node = helper.make_node(op_type, names, ["z"], **attributes)
        finite += math.isfinite(assert_bounds_hold(node_model([node], constants))["z"])
    assert finite


@pytest.mark.parametrize("limits", [{"min": 40.0, "max": 50.0}, {"min": 40.0}, {"max": -40.0}, {}])
@pytest.mark.compiled
def test_limits_of_a_clip_were_attributes(limits):
    source = node_model([helper.make_node("Clip", ["x"], ["z"], **limits)], opset=10)
    assert math.isfinite(assert_bounds_hold(source)["z"])


@pytest.mark.parametrize("name", ["float8e4m3fn", "float8e5m2", "float4e2m1", "bfloat16", "float16", "int8", "uint4"])
@pytest.mark.parametrize("scale", [0.37, 0.003, 1e-30, 1e20])
@pytest.mark.by_default(1)
@pytest.mark.compiled
def test_round_trips(name, scale):
    """Of numbers up to several limits, which are rounded away from 0 by as much as the type has."""
    nodes, given = [], [constant("s", scale, np.float32), constant("p", 0, oracle.dtype(name))]
    for k in range(16):
        limit = np.float32(0.37 * 2 ** (1.001 * k / 16))
        given += [constant(f"least{k}", -limit), constant(f"most{k}", limit)]
        domain = "com.amd.quark" if name in ("bfloat16", "float16") else ""
        nodes.append(helper.make_node("Clip", ["x", f"least{k}", f"most{k}"], [f"clipped{k}"]))
        nodes += pair(f"clipped{k}", f"codes{k}", f"z{k}", ("s", "p"), domain=domain)
        nodes.append(helper.make_node("Tanh", [f"z{k}"], [f"t{k}"]))
    in_one = rewrite_model(node_model(nodes, given, opset=25), Settings(qdq="float", native_operators=False)).model
    found = assert_bounds_hold(in_one)
    assert all(math.isfinite(found[f"z{k}"]) for k in range(16))


@pytest.mark.parametrize("op_type", ["Mul", "Add"])
@pytest.mark.compiled
def test_sums_and_products_of_float16_may_overflow(op_type):
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node(op_type, ["h", "c"], ["z"]),
    ]
    found = assert_bounds_hold(node_model(nodes, [constant("c", 6e4, np.float16)]))
    assert math.isfinite(found["h"])
    assert math.isinf(found["z"])


@pytest.mark.parametrize("clip", [("x", "", "six"), ("x", "minus_six", "")])
@pytest.mark.compiled
def test_a_clip_without_one_limit_in_standard_operators(clip):
    """The square is beyond float32, so that the product with 0 is NaN, for which the round trip needs a rule."""
    nodes = [
        *pair("input", "codes", "x", ("large", "zero_point")),
        helper.make_node("Clip", clip, ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("Mul", ["b", "zero"], ["c"]),
        *pair("c", "d", "y", ("half", "zero_point")),
    ]
    numbers = {"large": 2.0**90, "six": 6, "minus_six": -6, "zero": 0, "half": 0.5}
    given = [*(constant(name, each, np.float32) for name, each in numbers.items()), constant("zero_point", 0, np.int8)]
    source = model(nodes, [("input", "float32", [4])], [("y", "float32", [4])], initializers=given, opset=17)
    x = np.float32([-(2.0**97), 2.0**96, 0, np.nan])
    expected = run(session(source, qdq="float", level="DISABLE_ALL"), input=x)
    oracle.assert_same_bits(run(plain_session(in_standard_operators(source)), input=x), expected)
    assert np.isfinite(expected).all()
