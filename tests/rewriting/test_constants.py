"""The pass `constants` folds nodes whose inputs are all constants."""

import numpy as np
import onnx
import oracle
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import DQ, Q, X, assert_same_values, constant, operators, pair, scale_and_zero_point

from quark_numba import from_tensor_proto, mx_quantize
from quark_numba.block.formats import MX_ELEMENT_TYPES
from quark_numba.element_types import FLOAT8E8M0, FLOAT32
from quark_numba.rewriting import block_codes
from quark_numba.rewriting.constants import CODES, CONSTANT
from quark_numba.rewriting.onnx_runtime import RELEASE
from quark_numba.rewriting.optimize import optimized

pytestmark = pytest.mark.compiled


def test_constants_are_computed():
    weight = np.random.default_rng(41).normal(0, 3, (6, 3)).astype(np.float32)
    for name, domain in [
        ("bfloat16", "com.amd.quark"),
        ("uint16", "com.vai.quantize"),
        ("int8", ""),
        ("uint8", "com.microsoft"),
    ]:
        nodes = [*pair("weight", domain=domain), helper.make_node("MatMul", ["x", "y"], ["z"])]
        initializers = [constant("weight", weight), *scale_and_zero_point(name)]
        before = model(nodes, ["x"], ["z"], initializers=initializers, domains=[domain])
        result = optimized(before)
        assert operators(result.model) == ["MatMul"]
        (initializer,) = result.model.graph.initializer
        zero = oracle.TYPES[name].dtype(0)
        codes = oracle.quantize(weight, np.float32(0.25), zero, name)
        expected = oracle.dequantize(codes, np.float32(0.25), zero, name)
        oracle.assert_same_bits(from_tensor_proto(initializer), expected)
        assert initializer.name == "y"
        assert sum(result.done.values()) == 2
        assert not result.left
        assert_same_values(before, result.model, {"x": X})


def blocks_model(weight, operator="MXQuantizeDequantize", axis=0, **attributes):
    nodes = [
        helper.make_node("Constant", [], ["weight"], value=constant("", weight)),
        helper.make_node(operator, ["weight"], ["y"], domain="com.amd.quark", axis=axis, **attributes),
        helper.make_node("Mul", ["x", "y"], ["z"]),
    ]
    return model(nodes, [("x", "float32", [1])], ["z"])


ONE = {"x": np.ones(1, np.float32)}


@pytest.mark.parametrize("operator", ["BFPQuantizeDequantize", "MXQuantizeDequantize"])
def test_constants_of_block_formats_are_computed(operator):
    weight = np.random.default_rng(42).normal(0, 3, (40, 3)).astype(np.float32)
    before = blocks_model(weight, operator)
    result = optimized(before)
    assert operators(result.model) == ["Mul"]
    assert result.done == {(f"com.amd.quark::{operator}", CONSTANT): 1}
    assert_same_values(before, result.model, ONE)
    # BFP has no codes in tensors, and no backend but the native one has the node that dequantizes MX's.
    after = optimized(before, keep_quantized_weights=True, regions=operator != "MXQuantizeDequantize").model
    assert after.graph == result.model.graph


SHAPES_AND_AXES = [((70, 50), 0), ((70, 50), -1), ((130,), 3), ((4, 3, 65, 2), 2), ((1, 1, 33), -1), ((1, 900, 70), 1)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES_AND_AXES)
@pytest.mark.parametrize("name", list(MX_ELEMENT_TYPES))
@pytest.mark.by_default(8)
def test_codes_of_block_formats_are_kept(name, shape, axis):
    weight = np.random.default_rng(44).normal(0, 3, shape).astype(np.float32)
    before = blocks_model(weight, axis=axis, element_dtype=name, block_size=20)
    result = optimized(before, keep_quantized_weights=True)
    assert_same_values(before, result.model, ONE)
    row = MX_ELEMENT_TYPES[name]
    if not row.has_tensors(RELEASE):
        assert operators(result.model) == ["Mul"]
        return
    assert operators(result.model) == ["Dequantize", "Mul"]
    assert result.done == {("com.amd.quark::MXQuantizeDequantize", block_codes.STORED): 1}
    codes, scales = result.model.graph.initializer
    oracle.assert_same_bits(from_tensor_proto(codes), mx_quantize(weight, element_dtype=name, axis=axis, block_size=20)[0])
    assert scales.data_type == (FLOAT32 if row.is_integer else FLOAT8E8M0).number
    for after in (optimized(result.model, keep_quantized_weights=True), optimized(result.model)):
        assert_same_values(before, after.model, ONE)
    assert operators(after.model) == ["Mul"]


# Inf has no code in most types. The scale of the last block should be 2**-128, but there is none below 2**-127.
SPECIAL = [
    ("fp4_e2m1", np.inf, np.inf, False),
    ("fp8_e4m3", np.inf, 1, False),
    ("int8", -np.inf, 1, False),
    ("fp8_e5m2", np.inf, 1, True),
    ("fp4_e2m1", np.nan, np.nan, False),
    ("fp8_e4m3", np.nan, 1, False),
    ("fp4_e2m1", 1.5 * 2.0**-126, 2.0**-129, False),
]


@pytest.mark.parametrize(("name", "first", "others", "is_kept"), SPECIAL)
def test_codes_that_cannot_hold_a_constant(name, first, others, is_kept):
    weight = np.random.default_rng(45).normal(0, 3, (64, 5)).astype(np.float32)
    weight[32:, 3] = others
    weight[32, 3] = first
    before = blocks_model(weight, element_dtype=name)
    after = optimized(before, keep_quantized_weights=True).model
    assert_same_values(before, after, ONE)
    assert operators(after) == [*["Dequantize"] * is_kept, "Mul"]


def test_codes_that_take_more_room_than_floats():
    """Blocks of three elements have a float32 factor each."""
    weight = np.random.default_rng(47).normal(0, 3, (512, 3)).astype(np.float32)
    for name, is_kept in (("int8", True), ("fp8_e4m3", True)):
        after = optimized(blocks_model(weight, axis=1, element_dtype=name), keep_quantized_weights=True).model
        assert operators(after) == [*["Dequantize"] * is_kept, "Mul"]
    after = optimized(blocks_model(weight[:, :1], axis=1, element_dtype="int8"), keep_quantized_weights=True).model
    assert operators(after) == ["Mul"]


@pytest.mark.parametrize("behind", ["pair", "blocks", "gather"])
def test_nodes_behind_codes_of_blocks(behind):
    """They are folded as they are behind floats. A Gather takes rows of floats."""
    weight = np.random.default_rng(48).normal(0, 3, (64, 5)).astype(np.float32)
    before = blocks_model(weight, element_dtype="fp8_e4m3")
    more = {
        "pair": pair("v"),
        "blocks": [helper.make_node("BFPQuantizeDequantize", ["v"], ["y"], domain="com.amd.quark", axis=0)],
        "gather": [helper.make_node("Gather", ["v", "i"], ["y"])],
    }[behind]
    before.graph.node[1].output[0] = "v"
    nodes = [*before.graph.node[:2], *more, before.graph.node[2]]
    initializers = [*scale_and_zero_point(), constant("i", np.array([3, 60]))]
    before = model(nodes, [("x", "float32", [1])], ["z"], initializers=initializers)
    after = optimized(before, keep_quantized_weights=True).model
    assert operators(after) == {"pair": [DQ, "Mul"], "blocks": ["Mul"], "gather": ["Gather", "Mul"]}[behind]
    assert_same_values(before, after, ONE)


def test_equal_nodes_of_block_formats_share_codes():
    weight = np.random.default_rng(46).normal(0, 3, (64, 5)).astype(np.float32)
    before = blocks_model(weight, element_dtype="fp8_e4m3")
    again = onnx.NodeProto()
    again.CopyFrom(before.graph.node[1])
    again.output[0] = "y2"
    before.graph.node[2].input[0] = "y2"
    before.graph.node.insert(2, again)
    before.graph.input.pop()
    after = optimized(before, keep_quantized_weights=True).model
    assert operators(after) == ["Dequantize", "Dequantize", "Mul"]
    assert len(after.graph.initializer) == 2
    assert_same_values(before, after, {})


def test_codes_are_kept():
    weight = np.random.default_rng(43).normal(0, 3, (64, 64)).astype(np.float32)
    nodes = [*pair("weight"), helper.make_node("MatMul", ["x", "y"], ["z"])]
    before = model(nodes, ["x"], ["z"], initializers=[constant("weight", weight), *scale_and_zero_point()])
    result = optimized(before, keep_quantized_weights=True)
    assert operators(result.model) == [DQ, "MatMul"]
    codes = {each.name: from_tensor_proto(each) for each in result.model.graph.initializer}["codes"]
    oracle.assert_same_bits(codes, oracle.quantize(weight, np.float32(0.25), None, "int8"))
    assert result.done == {(f"com.amd.quark::{Q}", CODES): 1}
    assert result.model.ByteSize() < 0.3 * before.ByteSize()
    assert_same_values(before, result.model, {"x": np.ones((2, 64), np.float32)})


def test_invalid_nodes_are_left():
    """A node that ONNX Runtime refuses is not folded: its zero point has a type that the operator lacks, or its `output_dtype`
    is another type."""
    for zero_point, attributes, why in [
        (np.int32(0), {}, "y_zero_point has element type"),
        (np.int8(0), {"output_dtype": 2}, "output_dtype is 2, and the zero point is int8"),
    ]:
        nodes = [
            helper.make_node("QuantizeLinear", ["weight", "scale", "zero_point"], ["codes"], **attributes),
            helper.make_node("DequantizeLinear", ["codes", "scale", "zero_point"], ["y"]),
            helper.make_node("MatMul", ["x", "y"], ["z"]),
        ]
        constants = [constant("weight", np.ones((6, 3), np.float32)), constant("scale", np.float32(0.25))]
        before = model(nodes, ["x"], ["z"], initializers=[*constants, constant("zero_point", zero_point)])
        result = optimized(before)
        assert operators(result.model)[::2] == ["QuantizeLinear", "MatMul"]
        assert len(result.left) == 2
        assert all(f"not valid: {why}" in reason for name, reason in result.left if name == "ai.onnx::QuantizeLinear")
