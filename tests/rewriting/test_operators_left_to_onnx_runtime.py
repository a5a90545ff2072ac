"""The pass `standard_operators`: which of ONNX's own operators are left to ONNX Runtime."""

import numpy as np
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import X, assert_same_values, constant, operators, pair, scale_and_zero_point

from quark_numba import optimize
from quark_numba.rewriting.optimize import optimized

pytestmark = pytest.mark.compiled


def test_integer_models_are_onnx_runtimes():
    nodes = [*pair(domain=""), helper.make_node("Relu", ["y"], ["z"])]
    values = [("x", "float32", X.shape)], [("z", "float32", X.shape)]
    before = model(nodes, *values, initializers=scale_and_zero_point(), domains=[])
    result = optimized(before, regions=False)
    assert operators(result.model) == operators(before)
    assert {text for _, text in result.left} == {"ONNX Runtime may fuse it with its neighbours into an integer operator"}
    before.graph.value_info.append(helper.make_tensor_value_info("x", 1, X.shape))
    result = optimized(before, standard_ops=True, regions=False)
    assert operators(result.model) == ["QuantizeDequantizeLinear", "Relu"]
    assert_same_values(before, result.model, {"x": X})


def test_what_onnx_runtime_computes_otherwise_is_its_own():
    """Operators stay if ONNX Runtime's result may differ from the specification's, for example with float8 types."""
    nodes = [*pair("weight", domain=""), helper.make_node("Add", ["x", "y"], ["z"])]
    initializers = [constant("weight", [-1e-9, 3.0], np.float32), *scale_and_zero_point("float8e4m3fn")]
    before = model(nodes, ["x"], ["z"], initializers=initializers, domains=[])
    assert operators(optimize(before)) == operators(before)
    assert operators(optimize(before, standard_ops=True)) == ["Add"]


def test_int32_zero_points_are_onnx_runtimes():
    """In ONNX Runtime, the difference between an int32 code and its zero point wraps around."""
    nodes = [helper.make_node("DequantizeLinear", ["codes", "scale", "zero_point"], ["y"], domain="com.microsoft")]
    nodes.append(helper.make_node("Add", ["x", "y"], ["z"]))
    for zero_point, left in [(5, True), (0, False)]:
        initializers = [
            *scale_and_zero_point("int32", 0.3, zero_point),
            constant("codes", [[[2**31 - 1]], [[-(2**31)]]], np.int32),
        ]
        before = model(nodes, ["x"], ["z"], initializers=initializers, domains=["com.microsoft"])
        assert (operators(optimize(before)) == operators(before)) is left
        if not left:  # older releases of ONNX Runtime refuse to run the model with zero point 5
            assert_same_values(before, optimize(before), {"x": X})
