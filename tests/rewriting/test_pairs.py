"""The pass `pairs`: a quantize node and the equal dequantize nodes after it become one node."""

import numpy as np
import onnx
import oracle
import pytest
from marks import default_of
from onnx import helper
from onnx_models import RELEASE, model
from rewritten_models import (
    DQ,
    Q,
    X,
    assert_rewritten,
    assert_same_values,
    constant,
    floats,
    operators,
    pair,
    scale_and_zero_point,
)

from quark_numba import optimize
from quark_numba.catalog import OPERATORS
from quark_numba.element_types import find
from quark_numba.ort import c_api
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.pairs import FUSED, SHARED

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("name", oracle.EXTENDED)
@pytest.mark.by_default(1)
def test_pairs_are_fused(name):
    parameters = scale_and_zero_point(name, 0.3, 1 if isinstance(oracle.TYPES[name], oracle.Integer) else 0.5)
    before = model([*pair(), "z = Relu (y)"], [("x", "float32", X.shape)], [("z", "float32", X.shape)], initializers=parameters)
    result = rewrite_model(before, Settings(native_operators=False))
    assert operators(result.model) == ["QuantizeDequantizeLinear", "Relu"]
    assert [(each.domain, each.version) for each in result.model.opset_import][-1] == ("quark_numba", 1)
    assert result.done == {(f"com.amd.quark::{Q}", FUSED): 1, (f"com.amd.quark::{DQ}", FUSED): 1}
    assert assert_same_values(before, result.model, {"x": X}) == ["y", "z"]
    onnx.checker.check_model(result.model)


STANDARD = [name for name, row in OPERATORS.find("", "QuantizeLinear").formats.items() if row.has_tensors()]


@pytest.mark.skipif(RELEASE < c_api.FLOAT_QDQ_RELEASE, reason='qdq="float" needs a newer ONNX Runtime')
@pytest.mark.parametrize("name", default_of(STANDARD, "uint8", "int4", "float8e4m3fn"))
@pytest.mark.by_default(1)
def test_a_missing_zero_point_of_any_type(name):
    """With `qdq` = "float", a pair of ONNX's own operators without a zero point is fused, and gets a zero point of its type."""
    quantize, dequantize = pair(parameters=["scale"], domain="")
    quantize.attribute.append(helper.make_attribute("output_dtype", find(name).number))
    values = [("x", "float32", X.shape)], [("y", "float32", X.shape)]
    before = model([quantize, dequantize], *values, initializers=floats(scale=0.3), domains=[], opset=25)
    result = assert_rewritten(
        before, ["QuantizeDequantizeLinear"], {"x": X}, qdq="float", native_operators=False, session_qdq="float"
    )
    zero_point = result.model.graph.initializer[1]
    assert (zero_point.name, zero_point.data_type) == (f"zero_point_{name}_0", find(name).number)


def test_names_are_new():
    """Zero points that `optimize` adds get names that the model does not use."""
    nodes = [*pair(parameters=["scale"]), "zero_point_uint8_1 = Relu (zero_point_uint8_0)"]
    before = model(nodes, ["x", "zero_point_uint8_0"], ["y", "zero_point_uint8_1"], initializers=floats(scale=0.3))
    after = optimize(before, regions=False)
    assert after.graph.initializer[1].name == "zero_point_uint8_2"
    assert_same_values(before, after, {"x": X, "zero_point_uint8_0": X})


def test_what_dequantizes_equally_is_shared():
    nodes = [*pair(), f"y2 = com.amd.quark.{DQ} <axis = 0> (codes, scale_too, zero_point)", "z = Add (y, y2)"]
    before = model(nodes, ["x"], ["z"], initializers=[*scale_and_zero_point(), *floats(scale_too=0.25)])
    result = assert_rewritten(before, ["QuantizeDequantizeLinear", "Add"], {"x": X}, native_operators=False)
    assert result.done[f"com.amd.quark::{DQ}", SHARED] == 1
    assert [each.name for each in result.model.graph.initializer] == ["scale", "zero_point"]


OTHER = "the dequantize node after it has other parameters"


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        (pair(), [("codes", "int8", None), "y"], "its codes are an output of its graph"),
        ([*pair(), "z = Cast <to = 1> (codes)"], ["y", "z"], "its codes are used by ai.onnx::Cast"),
        ([pair()[0]], ["codes"], "its codes are an output of its graph"),
        ([pair()[0], "y = Relu (x)"], ["y"], "nothing uses its codes"),
        ([pair()[0], pair(parameters=("scale2", "zero_point"))[1]], ["y"], OTHER),
        ([pair(parameters=("scale", "one"))[0], pair(parameters=("scale",))[1]], ["y"], OTHER),
        ([*pair(), pair(y="y2", parameters=("scale2", "zero_point"))[1], "z = Add (y, y2)"], ["z"], "downstream of it differ"),
        ([*pair(), pair(y="y2")[1]], ["y", "y2"], "differ, or are outputs of their graph"),
        ([pair(axis=0)[0], pair(axis=1)[1]], ["y"], None),
        ([pair(parameters=("scales", "zeros"), axis=1)[0], pair(parameters=("scales", "zeros"), axis=-2)[1]], ["y"], "other"),
        ([pair(parameters=("scale_in",))[0], pair(parameters=("scale_in",))[1]], ["y"], "the shape of its scale is not known"),
    ],
)
def test_what_is_left_and_why(nodes, outputs, reason):
    initializers = [*scale_and_zero_point(), *floats(scale2=0.5, scales=np.ones(4))]
    initializers += [constant("zeros", np.zeros(4), np.int8), constant("one", 1, np.int8)]
    inputs = ["x", "scale_in"] if reason and "shape" in reason else ["x"]
    outputs = [("codes", "int8", None) if each == "codes" else each for each in outputs]
    before = model(nodes, inputs, outputs, initializers=initializers)
    result = rewrite_model(before, Settings(native_operators=False))
    if reason is None:
        assert not result.left
    else:
        assert operators(result.model) == operators(before)
        assert any(reason in text for _, text in result.left)
    assert_same_values(before, result.model, {"x": X, "scale_in": np.float32(0.5)})


def test_outputs_keep_types_and_shapes():
    """Outputs keep their types and shapes, also a scalar, and outputs that are listed after others."""
    nodes = [*pair(), *pair("x", "more_codes", "z"), "w = Relu (y)"]
    values = [(name, "float32", []) for name in ("z", "w", "y")]
    before = model(nodes, [("x", "float32", [])], values, initializers=scale_and_zero_point())
    after = optimize(before, regions=False)
    assert after.graph.output == before.graph.output
    assert_same_values(before, after, {"x": np.float32(3.3)})
