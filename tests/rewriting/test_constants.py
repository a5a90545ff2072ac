"""The pass `constants` folds nodes whose inputs are all constants."""

import numpy as np
import oracle
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import DQ, Q, X, assert_same_values, constant, operators, pair, scale_and_zero_point

from quark_numba import from_tensor_proto
from quark_numba.rewriting.constants import CODES, CONSTANT
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


@pytest.mark.parametrize("operator", ["BFPQuantizeDequantize", "MXQuantizeDequantize"])
def test_constants_of_block_formats_are_computed(operator):
    weight = np.random.default_rng(42).normal(0, 3, (40, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["weight"], value=constant("", weight)),
        helper.make_node(operator, ["weight"], ["y"], domain="com.amd.quark", axis=0),
        helper.make_node("MatMul", ["x", "y"], ["z"]),
    ]
    before = model(nodes, ["x"], ["z"])
    for keep_codes in (False, True):
        result = optimized(before, keep_codes=keep_codes)
        assert operators(result.model) == ["MatMul"]
        assert result.done == {(f"com.amd.quark::{operator}", CONSTANT): 1}
        assert_same_values(before, result.model, {"x": np.ones((2, 40), np.float32)})


def test_codes_are_kept():
    weight = np.random.default_rng(43).normal(0, 3, (64, 64)).astype(np.float32)
    nodes = [*pair("weight"), helper.make_node("MatMul", ["x", "y"], ["z"])]
    before = model(nodes, ["x"], ["z"], initializers=[constant("weight", weight), *scale_and_zero_point()])
    result = optimized(before, keep_codes=True)
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
        assert operators(result.model) == ["QuantizeLinear", "DequantizeLinear", "MatMul"]
        assert {name for name, _ in result.left} == {"ai.onnx::QuantizeLinear", "ai.onnx::DequantizeLinear"}
        assert all(f"not valid: {why}" in reason for name, reason in result.left if name == "ai.onnx::QuantizeLinear")
