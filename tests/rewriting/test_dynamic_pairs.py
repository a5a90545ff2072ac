"""The passes `dynamic_pairs` and `renamed_operators`: blocks with computed scales, and nodes that ONNX Runtime lacks."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model
from other_quantizers import expectation
from paths import MODELS
from rewritten_models import assert_rewritten, assert_same_values, constant, floats, operators

import quark_numba
from quark_numba.element_types import find
from quark_numba.rewriting.constants import CONSTANT, KEPT
from quark_numba.rewriting.dynamic_pairs import FUSED, SHARED
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.renamed_operators import RENAMED

pytestmark = pytest.mark.compiled

X = np.random.default_rng(40).normal(0, 3, (3, 64)).astype(np.float32)
DEQUANTIZE, MXFP8 = "ai.onnx::DequantizeLinear", "trt::TRT_MXFP8DequantizeLinear"


def nvfp4(x="x", scale="scale", quantize="axis = -1, block_size = 16", dequantize=None):
    """Return the three nodes. `quantize` and `dequantize` are attributes; by default, both are the same."""
    return [
        f"codes, blocks = trt.TRT_FP4DynamicQuantize <{quantize}> ({x}, scale)",
        f"factors = DequantizeLinear (blocks, {scale})",
        f"y = DequantizeLinear <{dequantize or quantize}> (codes, factors)",
    ]


def mxfp8(x="x", attributes=""):
    return [
        f"codes, blocks = trt.TRT_MXFP8DynamicQuantize ({x})",
        f"y = trt.TRT_MXFP8DequantizeLinear {attributes} (codes, blocks)",
    ]


def of_nodes(*nodes, outputs=(("z", "float32", X.shape),), scale=0.01, **others):
    """Return a model of nodes. Its initializers are the scale and others."""
    initializers = floats(scale=scale, **others)
    return model(nodes, [("x", "float32", X.shape)], outputs, initializers=initializers, domains=["trt"], opset=23)


RELU = "z = Relu (y)"
NVFP4 = ["NVFP4QuantizeDequantize", "Relu"]


@pytest.mark.parametrize("qdq", ["onnxruntime", "float"])
@pytest.mark.slow
def test_three_nodes_become_one(qdq):
    result = assert_rewritten(of_nodes(*nvfp4(), RELU), NVFP4, {"x": X}, qdq=qdq, session_qdq="float")
    assert result.done == {("trt::TRT_FP4DynamicQuantize", FUSED): 1, (DEQUANTIZE, FUSED): 2}
    onnx.checker.check_model(result.model)


@pytest.mark.slow
def test_two_nodes_become_one():
    result = assert_rewritten(of_nodes(*mxfp8(), RELU), ["MXFP8QuantizeDequantize", "Relu"], {"x": X})
    assert result.done == {("trt::TRT_MXFP8DynamicQuantize", FUSED): 1, (MXFP8, FUSED): 1}


@pytest.mark.slow
def test_special_values():
    x = X.copy()
    x[0, :8] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -1e-38
    for nodes in (nvfp4(), mxfp8()):
        before = of_nodes(*nodes, RELU)
        assert_same_values(before, rewrite_model(before).model, {"x": x}, qdq="float")


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.slow
def test_any_axis(axis):
    other = axis - 2 if axis >= 0 else axis + 2
    block_size = 3 if axis in (0, -2) else 16
    nodes = nvfp4("x", "scale", *(f"axis = {each}, block_size = {block_size}" for each in (axis, other)))
    assert_rewritten(of_nodes(*nodes, RELU), NVFP4, {"x": X}, session_qdq="float")


@pytest.mark.slow
def test_equal_dequantize_nodes_are_shared():
    twice = "y2 = DequantizeLinear <axis = 1, block_size = 16> (codes, factors)"
    before = of_nodes(*nvfp4(), twice, "z = Add (y, y2)")
    result = assert_rewritten(before, ["NVFP4QuantizeDequantize", "Add"], {"x": X}, session_qdq="float")
    assert result.done[DEQUANTIZE, SHARED] == 1


def test_scales_of_another_shape():
    """One scale is a scalar, the other has a dimension."""
    before = of_nodes(*nvfp4(scale="scale_too"), RELU, scale_too=[0.01])
    after = assert_rewritten(before, NVFP4, {"x": X}, session_qdq="float").model
    assert [each.name for each in after.graph.initializer] == ["scale"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "why"),
    [
        ([*nvfp4(scale="other"), RELU], ["z"], f"{DEQUANTIZE} after its scales has another scale"),
        ([*nvfp4(dequantize="axis = -1, block_size = 20"), RELU], ["z"], f"{DEQUANTIZE} after it has other blocks"),
        ([*nvfp4(), RELU], ["z", ("codes", "float4e2m1", None)], "its codes or scales are an output of its graph"),
        ([*nvfp4(), RELU], ["z", ("blocks", "float8e4m3fn", None)], "its codes or scales are an output of its graph"),
        ([nvfp4()[0]], [("codes", "float4e2m1", None)], "nothing uses its codes or scales"),
        ([*mxfp8(attributes="<output_dtype = 10>")], [("y", "float16", X.shape)], f"{MXFP8} after it is not known"),
        ([*mxfp8(attributes="<block_size = 16>"), RELU], ["z"], f"{MXFP8} after it has other blocks"),
    ],
)
def test_what_stays(nodes, outputs, why):
    result = rewrite_model(of_nodes(*nodes, outputs=outputs, other=0.02))
    (reason,) = [reason for name, reason in result.left if "DynamicQuantize" in name]
    assert reason.startswith(why)


def test_nodes_that_onnx_runtime_lacks_are_renamed():
    """Nodes that ONNX Runtime lacks are renamed, so that a session runs them by default."""
    before = of_nodes(*nvfp4(scale="other"), RELU, other=0.02)
    result = rewrite_model(before)
    assert operators(result.model) == ["TRT_FP4DynamicQuantize", "Dequantize", "Dequantize", "Relu"]
    assert result.done == {(DEQUANTIZE, RENAMED): 2}
    (y,) = quark_numba.InferenceSession(before).run(None, {"x": X})
    (expected,) = quark_numba.InferenceSession(before, qdq="float").run(None, {"x": X})
    assert y.tobytes() == expected.tobytes()
    assert rewrite_model(before, Settings(qdq="float")).done == result.done
    assert rewrite_model(before, Settings(qdq="onnxruntime")).done == {(DEQUANTIZE, RENAMED): 1}
    left = rewrite_model(before, Settings(native_operators=False)).left
    assert "only the native backend has the node that would replace it" in " ".join(reason for _, reason in left)


def weights():
    """Return a model whose weights are NVFP4."""
    codes, blocks = quark_numba.nvfp4_quantize(np.random.default_rng(0).normal(0, 1, (200, 96)).astype(np.float32), 0.01)
    nodes = [
        "factors = DequantizeLinear (blocks, scale)",
        "weight = DequantizeLinear <axis = -1, block_size = 16> (codes, factors)",
        "y = MatMul (x, weight)",
    ]
    initializers = [constant("codes", codes), constant("blocks", blocks), *floats(scale=[0.01])]
    values = [("x", "float32", [2, 200])], [("y", "float32", [2, 96])]
    return model(nodes, *values, initializers=initializers, domains=[], opset=23)


@pytest.mark.parametrize("are_inputs", [False, True])
@pytest.mark.parametrize("keep_quantized_weights", [False, True])
@pytest.mark.by_default(1)
def test_weights(keep_quantized_weights, are_inputs):
    """Weights are folded. With `keep_quantized_weights` the scales of their blocks are folded, and the codes stay."""
    before = weights()
    x = {"x": np.random.default_rng(1).normal(0, 1, (2, 200)).astype(np.float32)}
    if are_inputs:
        held = [(each.name, each.data_type, each.dims) for each in before.graph.initializer]
        before.graph.input.extend(helper.make_tensor_value_info(*each) for each in held)
    how = {"keep_quantized_weights": keep_quantized_weights, "keep_initializers_as_inputs": False}
    result = rewrite_model(before, Settings(**how))
    assert operators(result.model) == (["Dequantize", "MatMul"] if keep_quantized_weights else ["MatMul"])
    assert result.done[DEQUANTIZE, CONSTANT] == 2 - keep_quantized_weights
    if keep_quantized_weights:
        assert result.done[DEQUANTIZE, RENAMED] == 1
        assert result.left["quark_numba::Dequantize", KEPT] == 1
        kept = [each for each in result.model.graph.initializer if each.data_type == find("float4e2m1").number]
        assert len(kept) == 1
    assert [each.name for each in result.model.graph.input] == ["x"]
    (y,) = quark_numba.InferenceSession(before, **how).run(None, x)
    (expected,) = quark_numba.InferenceSession(weights(), qdq="float").run(None, x)
    # ONNX Runtime adds in another order if the weights are not constants.
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-3 if keep_quantized_weights else 0)


@pytest.mark.slow
def test_constant_inputs_are_folded():
    for nodes in (nvfp4("w"), mxfp8("w")):
        assert_rewritten(of_nodes(*nodes, "z = Add (x, y)", w=X), ["Add"], {"x": X}, session_qdq="float")


@pytest.mark.parametrize("name", ["nvfp4", "fp8"])
@pytest.mark.by_default(1)
def test_models_of_modelopt(name):
    """No quantization node is left but round trips, and all values that both models have are equal."""
    path = MODELS / "nvidia" / f"{name}_m.onnx"
    before, (feeds, _) = onnx.load(path), expectation(path)
    after = rewrite_model(path, Settings(keep_initializers_as_inputs=False)).model
    found = [(node.domain, node.op_type) for node in after.graph.node if node.domain]
    expected = {"fp8": ("quark_numba", "Region"), "nvfp4": ("quark_numba", "NVFP4QuantizeDequantize")}[name]
    assert found == [expected] * 8
    assert [each.name for each in after.graph.input] == ["input"]
    held = {each.name for each in before.graph.initializer}
    for value in [each for each in before.graph.input if each.name in held]:
        before.graph.input.remove(value)
    assert len(assert_same_values(before, after, feeds, qdq="float" if name == "nvfp4" else "auto")) > 20


@pytest.mark.parametrize("declared", [None, "uint8", "float8e4m3fn"])
def test_float8_pairs(declared):
    """A pair becomes one step of a region with its neighbours, whatever type the model gives for the codes."""
    nodes = [
        "codes = trt.QuantizeLinear <saturate = 1> (x, scale, zero_point)",
        "y = trt.DequantizeLinear (codes, scale)",
        "z = Add (x, y)",
    ]
    before = of_nodes(*nodes, scale=0.3)
    before.graph.initializer.append(constant("zero_point", [0], find("float8e4m3fn").dtype))
    if declared:
        before.graph.value_info.append(helper.make_tensor_value_info("codes", find(declared).number, X.shape))
    after = rewrite_model(before).model
    assert operators(after) == ["Region"]
    (z,) = quark_numba.InferenceSession(before).run(None, {"x": X})
    codes = quark_numba.quantize(X, np.float32(0.3), dtype="float8e4m3fn")
    assert z.tobytes() == (X + quark_numba.dequantize(codes, np.float32(0.3))).tobytes()
