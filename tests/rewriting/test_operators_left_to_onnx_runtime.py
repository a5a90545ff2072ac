"""The pass `standard_operators`: which of ONNX's own operators are left to ONNX Runtime."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import compose, helper
from onnx_models import model
from rewritten_models import X, assert_same_values, constant, operators, pair, scale_and_zero_point

import quark_numba
from quark_numba import optimize
from quark_numba.element_types import find
from quark_numba.models.model_files import Source
from quark_numba.ort import DISABLE_QUANT_QDQ, entry
from quark_numba.rewriting import integer_operators
from quark_numba.rewriting.optimize import optimized
from quark_numba.session.prepared import prepared

pytestmark = pytest.mark.compiled


def test_integer_models_are_onnx_runtimes():
    nodes = [*pair(domain=""), helper.make_node("Relu", ["y"], ["z"])]
    values = [("x", "float32", X.shape)], [("z", "float32", X.shape)]
    before = model(nodes, *values, initializers=scale_and_zero_point(), domains=[])
    result = optimized(before, standard_ops=False, regions=False)
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
    assert operators(optimize(before, standard_ops=False)) == operators(before)
    for standard_ops in (True, None):
        assert operators(optimize(before, standard_ops=standard_ops)) == ["Add"]


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
        assert (operators(optimize(before, standard_ops=False)) == operators(before)) is left
        if not left:  # older releases of ONNX Runtime refuse to run the model with zero point 5
            assert_same_values(before, optimize(before), {"x": X})


# `standard_ops` = None: by what ONNX Runtime fuses.


def layers(kinds, element_type="uint8", shape=(4, 64), weights="int8"):
    """Return a model of layers of MatMul, Mul, Erf or Conv between pairs of quantize and dequantize nodes."""
    random = np.random.default_rng(51)
    middle = 0 if element_type.startswith("int") else 2 ** (find(element_type).bits - 1)
    scale = 16 / 2 ** find(element_type).bits
    initializers = scale_and_zero_point(element_type, scale, middle)
    initializers += [constant("weight_scale", 0.01, np.float32), constant("weight_zero_point", 0, find(weights).dtype)]
    nodes, x = pair("x", "codes", "x_back", domain=""), "x_back"
    for number, kind in enumerate(kinds):
        inputs = [x]
        if kind in ("MatMul", "Conv"):
            of_weight = (shape[1], shape[1]) if kind == "MatMul" else (shape[1], shape[1], 3, 3)
            codes = random.integers(0, 4, of_weight).astype(find(weights).dtype)
            initializers.append(constant(f"weight_{number}", codes))
            parameters = [f"weight_{number}", "weight_scale", "weight_zero_point"]
            nodes.append(helper.make_node("DequantizeLinear", parameters, [f"weight_{number}_back"]))
            inputs.append(f"weight_{number}_back")
        if kind == "Mul":
            inputs.append(x)
        attributes = {"pads": [1] * 4} if kind == "Conv" else {}
        nodes.append(helper.make_node(kind, inputs, [f"y_{number}"], **attributes))
        nodes += pair(f"y_{number}", f"codes_{number}", f"y_{number}_back", domain="")
        x = f"y_{number}_back"
    return model(nodes, [("x", "float32", shape)], [(x, "float32", shape)], initializers=initializers, domains=[])


ON_INTEGERS = "ONNX Runtime runs it on integers, in operators of its own, which is faster"
IMAGES = (1, 8, 12, 12)


@pytest.mark.parametrize(
    ("kinds", "element_type", "shape", "is_left"),
    [
        (["MatMul"] * 3, "uint8", (4, 64), True),
        (["MatMul"] * 3, "int8", (4, 64), True),
        (["MatMul"] * 3, "uint16", (4, 64), False),
        (["MatMul"] * 3, "float8e4m3fn", (4, 64), False),
        (["Conv", "Mul", "Mul"], "uint8", IMAGES, False),
        (["Conv", "Conv"], "uint8", (1, 64, 12, 12), True),
        (["Erf", "Erf"], "uint8", (4, 64), False),
    ],
)
def test_what_is_faster_on_integers(kinds, element_type, shape, is_left):
    before = layers(kinds, element_type, shape)
    result = optimized(before)
    reasons = {why for (operator, why) in result.left if "Linear" in operator}
    assert (reasons == {ON_INTEGERS}) is is_left
    assert ("DequantizeLinear" in operators(result.model)) is is_left
    x = np.random.default_rng(52).normal(0, 1, shape).astype(np.float32)
    assert_same_values(before, result.model, {"x": x}, standard_ops=True)


def test_only_what_is_fused_is_left():
    """Products of matrices stay, and 16-bit nodes beside them are rewritten."""
    before, others = layers(["MatMul"] * 3), layers(["Mul"], "uint16")
    joined = compose.merge_models(
        before, compose.add_prefix(others, "wide_"), io_map=[(before.graph.output[0].name, "wide_x")], outputs=["wide_y_0_back"]
    )
    result = optimized(joined)
    kinds = operators(result.model)
    assert kinds.count("MatMul") == 3
    assert kinds.count("Region") == 1
    assert kinds.count("DequantizeLinear") == 3 + 3 + 1
    assert "Mul" not in kinds
    x = np.random.default_rng(53).normal(0, 1, (4, 64)).astype(np.float32)
    assert_same_values(joined, result.model, {"x": x})


def test_unknown_shapes():
    """Some dimensions are unknown, and some models say -1 there."""
    for name in ("batch", -1):
        for kinds, shape, is_left in [(["MatMul"] * 4, (4, 64), True), (["Conv", "Mul", "Mul"], IMAGES, False)]:
            before = layers(kinds, shape=shape)
            for dimension in (before.graph.input[0].type.tensor_type.shape.dim[index] for index in {0, len(shape) - 2} - {1}):
                dimension.Clear()
                if name == -1:
                    dimension.dim_value = name
                else:
                    dimension.dim_param = name
            assert (ON_INTEGERS in {why for _, why in optimized(before).left}) is is_left


def test_onnx_runtime_refuses_the_model(monkeypatch):
    monkeypatch.setattr(integer_operators, "fused_by_onnx_runtime", lambda *_: (None, "a reason"))
    before = layers(["Conv", "Mul"], shape=IMAGES)
    assert operators(optimize(before)) == operators(before)


def test_subgraphs():
    """Nodes of a branch are found as well."""
    inner = onnx.shape_inference.infer_shapes(layers(["MatMul"] * 2)).graph
    branch = helper.make_graph(inner.node, "branch", [], inner.output, inner.initializer, value_info=inner.value_info)
    same = helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, None)
    plain = helper.make_graph([helper.make_node("Identity", ["x"], ["same"])], "plain", [], [same])
    nodes = [helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=plain)]
    before = model(nodes, [("condition", "bool", []), ("x", "float32", (4, 64))], [("y", "float32", None)], domains=[])
    assert {why for operator, why in optimized(before).left if "Linear" in operator} == {ON_INTEGERS}


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("disabled", [False, True])
def test_sessions_that_fuse_nothing(level, disabled):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if disabled:
        options.add_session_config_entry(DISABLE_QUANT_QDQ, "1")
    before = layers(["MatMul"])
    with prepared(Source(before), options, is_native=True) as made:
        is_left = not disabled and level in ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
        assert (ON_INTEGERS in {why for _, why in made.left}) is is_left


def test_other_execution_providers():
    """They may have integer operators of their own, so that all nodes stay."""
    before = layers(["Conv", "Mul", "Mul"], shape=IMAGES)
    for providers, is_left in [
        (["OpenVINOExecutionProvider", "CPUExecutionProvider"], True),
        (["CPUExecutionProvider"], False),
    ]:
        with prepared(Source(before), onnxruntime.SessionOptions(), providers, is_native=True) as made:
            assert any("Linear" in operator for operator, _ in made.left) is is_left


@pytest.mark.parametrize(
    ("kinds", "element_type", "shape", "is_exact"),
    [
        (["MatMul"] * 3, "uint8", (4, 64), False),
        (["MatMul"] * 3, "uint16", (4, 64), True),
        (["MatMul"] * 3, "float8e4m3fn", (4, 64), True),
        (["Conv", "Mul", "Mul"], "uint8", IMAGES, True),
    ],
)
def test_sessions(kinds, element_type, shape, is_exact):
    """What stays gives ONNX Runtime's own results, and the rest those of the model as it is written."""
    before = layers(kinds, element_type, shape)
    x = np.random.default_rng(54).normal(0, 1, shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    if is_exact:
        quark_numba.register(options, standard_ops=True)
    expected = onnxruntime.InferenceSession(before.SerializeToString(), options).run(None, {"x": x})
    options = onnxruntime.SessionOptions()
    actual = quark_numba.InferenceSession(before, options).run(None, {"x": x})
    # With other fusions, ONNX Runtime adds the products of a convolution in another order.
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=1e-5 if "Conv" in kinds else 0)
    assert entry(options, DISABLE_QUANT_QDQ) is None


def test_sessions_that_need_the_package():
    """Codes of a type that ONNX Runtime lacks are an output of the graph."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["y"])]
    scale = constant("scale", 0.5, ml_dtypes.bfloat16)
    zero_point = constant("zero_point", 0, np.int8)
    before = model(
        nodes, [("x", "bfloat16", [4])], [("y", "int8", [4])], initializers=[scale, zero_point], domains=[], opset=25
    )
    x = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.float32([1, 2, -3, 900]).astype(ml_dtypes.bfloat16), 16)
    loaded = quark_numba.InferenceSession(before)
    (y,) = loaded.run_with_ort_values(None, {"x": x})
    assert y.numpy().tolist() == [2, 4, -6, 127]
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        quark_numba.InferenceSession(before, standard_ops=False)
