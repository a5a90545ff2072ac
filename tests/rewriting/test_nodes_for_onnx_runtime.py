"""The passes `nodes_for_onnx_runtime` and `renamed_operators`: which of ONNX's own nodes are left to ONNX Runtime, and
the names of the others."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper, parser
from onnx_models import model, session, session_options
from rewritten_models import X, assert_rewritten, assert_same_values, constant, floats, operators, pair, scale_and_zero_point

import quark_numba
from quark_numba import optimize
from quark_numba.models.model_files import Source
from quark_numba.ort import DISABLE_QUANT_QDQ, DISABLED_OPTIMIZERS, config_entry
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import choose_qdq, rewrite_model
from quark_numba.session.build import get_or_build
from quark_numba.session.request import SessionRequest

pytestmark = pytest.mark.compiled


# A model on the CPU with the native backend, and what differs from it in a row.
ON_THE_CPU = Settings(integers="here")
OTHER, RUN = {"has_other_providers": True}, {"runs_all": True}


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({}, "auto"),
        ({"integers": "anywhere"}, "auto"),
        ({"integers": "nowhere"}, "float"),
        ({"native_operators": False}, "onnxruntime"),
        ({"native_operators": False, "integers": "nowhere"}, "onnxruntime"),
        ({"operators": "standard"}, "float"),
        ({"operators": "webgpu"}, "float"),
        ({"operators": "standard", "native_operators": False}, "float"),
        ({"operators": "cuda"}, "float"),
        ({"operators": "cuda", **OTHER, **RUN}, "float"),
        ({"operators": "standard", **OTHER, **RUN}, "onnxruntime"),
        ({"operators": "standard", **OTHER}, "float"),
        ({"operators": "custom", **OTHER, **RUN}, "onnxruntime"),
        ({"operators": "custom", **OTHER}, "float"),
        ({"native_operators": False, **OTHER}, "float"),
    ],
)
def test_what_becomes_of_onnxs_own_nodes(differs, expected):
    """The rows of the table in the page of sessions."""
    runs_all = differs.get("runs_all", False)
    settings = ON_THE_CPU._replace(**{name: value for name, value in differs.items() if name != "runs_all"})
    for qdq in ("auto", "float", "onnxruntime"):
        chosen = choose_qdq(settings._replace(qdq=qdq), lambda: runs_all)
        assert chosen == (expected if qdq == "auto" else qdq)


@pytest.fixture
def rounded_relu():
    """Return the model of a Relu after a quantize and a dequantize node."""
    values = [("x", "float32", X.shape)], [("z", "float32", X.shape)]
    return model([*pair(domain=""), "z = Relu (y)"], *values, initializers=scale_and_zero_point(), domains=[])


def test_integer_models_are_onnx_runtimes(rounded_relu):
    before = rounded_relu
    result = rewrite_model(before, Settings(qdq="onnxruntime", native_operators=False))
    assert operators(result.model) == operators(before)
    assert {text for _, text in result.left} == {"ONNX Runtime may fuse it with its neighbours into an integer operator"}
    before.graph.value_info.append(helper.make_tensor_value_info("x", 1, X.shape))
    assert_rewritten(before, ["QuantizeDequantizeLinear", "Relu"], {"x": X}, qdq="float", native_operators=False)


def test_what_onnx_runtime_computes_otherwise_is_its_own():
    """Operators stay if ONNX Runtime's result may differ from the specification's, for example with float8 types."""
    initializers = [*floats(weight=[-1e-9, 3.0]), *scale_and_zero_point("float8e4m3fn")]
    before = model([*pair("weight", domain=""), "z = Add (x, y)"], ["x"], ["z"], initializers=initializers, domains=[])
    assert operators(optimize(before, qdq="onnxruntime")) == operators(before)
    for qdq in ("float", "auto"):
        assert operators(optimize(before, qdq=qdq)) == ["Add"]


def test_int32_zero_points_are_onnx_runtimes():
    """In ONNX Runtime, the difference between an int32 code and its zero point wraps around."""
    nodes = ["y = com.microsoft.DequantizeLinear (codes, scale, zero_point)", "z = Add (x, y)"]
    codes = constant("codes", [[[2**31 - 1]], [[-(2**31)]]], np.int32)
    for zero_point, left in [(5, True), (0, False)]:
        initializers = [*scale_and_zero_point("int32", 0.3, zero_point), codes]
        before = model(nodes, ["x"], ["z"], initializers=initializers, domains=["com.microsoft"])
        assert (operators(optimize(before, qdq="onnxruntime")) == operators(before)) is left
        if not left:  # older releases of ONNX Runtime refuse to run the model with zero point 5
            assert_same_values(before, optimize(before), {"x": X})


@pytest.mark.parametrize("qdq", ["auto", "float"])
def test_no_node_keeps_a_name_that_onnx_runtimes_optimizers_know(qdq):
    """Neither in branches nor in local functions that are not inlined."""
    before = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (bool c, int8[2, 4] x) => (float[] o, float[] p) <float s = {0.5}, int8[1] z = {1}, float[1] t = {0.25}> {
          o = If (c) <
            then_branch: graph = yes () => (float[] y) { y = DequantizeLinear (x, t, z) },
            else_branch: graph = no () => (float[] n) { k = com.microsoft.DequantizeLinear (x, t, z) n = Neg (k) } >
          p = local.f (o, s)
        }
        <domain: "local", opset_import: ["" : 10]> f (a, s) => (b) {
          q = QuantizeLinear (a, s)
          b = DequantizeLinear (q, s)
          r = Resize (a, s)
        }
        """)
    before.opset_import.add(domain="com.microsoft", version=1)
    after = rewrite_model(before, Settings(qdq=qdq)).model
    branches = [attribute.g for node in after.graph.node for attribute in node.attribute if attribute.HasField("g")]
    found = [node.op_type for graph in (*branches, *after.functions) for node in graph.node]
    assert sorted(found) == ["Dequantize", "Dequantize", "Dequantize", "Neg", "Quantize", "Resize"]
    assert "quark_numba" in {each.domain for each in after.functions[0].opset_import}


@pytest.mark.parametrize("scale", ["float s", "float[] s"])
def test_types_of_codes_are_known_without_shapes(scale):
    """A session infers the type of codes from the zero point, which is written where the model gives a type alone."""
    before = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[] x, int8[] z, {scale}) => (float[] y) {{
          t = Identity (s)
          q = QuantizeLinear <output_dtype = 3> (x, t)
          y = DequantizeLinear (q, t, z)
        }}""")
    for each in before.graph.input[: 3 if "[]" in scale else 2]:
        each.type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).normal(0, 9, (3, 5)).astype(np.float32)
    feeds = {"x": x, "z": np.array(3, np.int8), "s": np.array(0.25, np.float32)}
    (y,) = quark_numba.InferenceSession(before).run(None, feeds)
    assert np.array_equal(y, (np.rint(x / 0.25).clip(-128, 127) - 3) * 0.25)


def test_other_execution_providers(rounded_relu):
    """Other providers may have their own integer operators, so all nodes stay."""
    for others in (["OpenVINOExecutionProvider"], []):
        providers = [*others, "CPUExecutionProvider"]
        request = SessionRequest(None, onnxruntime.SessionOptions(), providers)
        with get_or_build(request, Source(rounded_relu)) as made:
            assert any("Linear" in operator for operator, _ in made.left) is bool(others)


def test_what_is_beside_onnx_runtimes_nodes_stays():
    """ONNX Runtime would quantize folded weights anew, to 8 bits."""
    nodes = [*pair(domain=""), *pair("weight", "weight_codes", "w", ("fine", "wide_zero_point")), "v = MatMul (y, w)"]
    nodes += pair("v", "v_codes", "z", domain="")
    weight = np.random.default_rng(1).integers(-1000, 1001, (6, 5)).astype(np.float32) / 1024
    initializers = [*scale_and_zero_point("int8", 0.125), *floats(weight=weight, fine=2.0**-10)]
    initializers.append(constant("wide_zero_point", 0, np.int16))
    before = model(nodes, [("x", "float32", X.shape)], ["z"], initializers=initializers)
    assert operators(optimize(before, qdq="onnxruntime")) == operators(before)
    for qdq in ("auto", "float", "onnxruntime"):
        (z,) = quark_numba.InferenceSession(before, qdq=qdq).run(None, {"x": X})
        x = np.rint(X / 0.125).clip(-128, 127) * 0.125
        assert np.array_equal(z, np.rint(x @ weight.astype(np.float64) / 0.125).clip(-128, 127) * 0.125)


@pytest.mark.parametrize("qdq", ["auto", "float"])
@pytest.mark.by_default(1)
def test_no_optimizer_quantizes_the_input_of_kept_codes(qdq):
    """ONNX Runtime turns a DequantizeLinear in front of a MatMul into a product that quantizes its other input."""
    random = np.random.default_rng(2)
    nodes = ["d = DequantizeLinear <axis = 1> (w, s)", "y = MatMul (x, d)"]
    codes, scale = random.integers(-8, 8, (64, 32)).astype(ml_dtypes.int4), np.exp2(random.integers(-4, 0, 32))
    before = model(nodes, [("x", "float32", [3, 64])], ["y"], initializers=[constant("w", codes), *floats(s=scale)], domains=[])
    x = random.integers(-99, 99, (3, 64)).astype(np.float32) / 64
    for keep_quantized_weights in (True, False):
        named = {"keep_quantized_weights": keep_quantized_weights, "qdq": qdq}
        for made in (quark_numba.InferenceSession(before, **named), session(optimize(before, **named))):
            assert np.array_equal(made.run(None, {"x": x})[0], x @ (codes.astype(np.float64) * scale))


def test_codes_of_a_type_that_onnx_runtime_lacks():
    initializers = [constant("scale", 0.5, ml_dtypes.bfloat16), constant("zero_point", 0, np.int8)]
    nodes, values = ["y = QuantizeLinear (x, scale, zero_point)"], ([("x", "bfloat16", [4])], [("y", "int8", [4])])
    before = model(nodes, *values, initializers=initializers, domains=[], opset=25)
    x = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.float32([1, 2, -3, 900]).astype(ml_dtypes.bfloat16), 16)
    for qdq in ("auto", "onnxruntime"):
        (y,) = quark_numba.InferenceSession(before, qdq=qdq).run_with_ort_values(None, {"x": x})
        assert y.numpy().tolist() == [2, 4, -6, 127]


@pytest.mark.slow
def test_a_model_that_onnx_runtime_refuses_for_its_fusions(caplog, capfd):
    """The optimizer of Clip in ONNX Runtime does not know codes of 4 bits in com.microsoft."""
    domain = "com.microsoft"
    nodes = [*pair(y="d", domain=domain), "c = Clip (d, low, high)", *pair("c", "codes_of_c", domain=domain)]
    initializers = [*scale_and_zero_point("int4", 0.5, -3), *floats(low=0, high=5)]
    before = model(nodes, [("x", "float32", X.shape)], ["y"], initializers=initializers, domains=[domain], opset=13)
    with pytest.raises(Exception, match="clip_quantizelinear"):
        onnxruntime.InferenceSession(before.SerializeToString())
    expected = (np.rint(X / 0.5).clip(-5, 10) * 0.5).clip(0, 5)
    assert np.array_equal(session(before, qdq="float").run(None, {"x": X})[0], expected)
    for qdq, is_logged in [("auto", False), ("float", False), ("onnxruntime", True)]:
        caplog.clear()
        options = session_options()
        made = quark_numba.InferenceSession(before, options, qdq=qdq)
        assert np.array_equal(made.run(None, {"x": X})[0], expected)
        assert ("refused the model" in caplog.text) is is_logged
        made.set_providers(["CPUExecutionProvider"])
        assert np.array_equal(made.run(None, {"x": X})[0], expected)
        if qdq != "float":
            assert config_entry(options, DISABLE_QUANT_QDQ) is config_entry(options, DISABLED_OPTIMIZERS) is None
        assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert "already exists" not in capfd.readouterr().err


def test_a_model_that_is_refused_in_any_case():
    nodes = [*pair(domain=""), "z = Reshape (y, shape)"]
    before = model(nodes, ["x"], ["z"], initializers=[*scale_and_zero_point(), *floats(shape=[2.5])], domains=[])
    for qdq in ("auto", "float", "onnxruntime"):
        with pytest.raises(Exception, match="Reshape"):
            quark_numba.InferenceSession(before, qdq=qdq)
