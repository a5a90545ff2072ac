"""What `optimize` rewrites gives the bits that it gave before, and all else stays."""

import ctypes
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import helper
from onnx_models import OPERATORS, model, ort_value

import quark_numba
from quark_numba import from_tensor_proto, optimize, to_tensor_proto
from quark_numba.element_types import find
from quark_numba.optimization import CODES, CONSTANT, FUSED, ROUND_TRIP, SHARED, optimized

pytestmark = pytest.mark.compiled

MODELS = Path(__file__).parent / "models"
X = np.random.default_rng(40).normal(0, 3, (2, 4, 6)).astype(np.float32)
Q, DQ = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"


def exact_session(source, **options):
    """Every node by itself: ONNX Runtime computes the same floats for both models."""
    session_options = onnxruntime.SessionOptions()
    session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session_options.log_severity_level = 4
    quark_numba.register(session_options, **options)
    return onnxruntime.InferenceSession(source.SerializeToString(), session_options, providers=["CPUExecutionProvider"])


def names_of(graph):
    return {output for node in graph.node for output in node.output} | {each.name for each in graph.initializer}


def with_outputs(source, names):
    """The same model, which also puts out these values."""
    result = onnx.ModelProto()
    result.CopyFrom(source)
    present = {output.name for output in result.graph.output}
    result.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in present)
    return result


def assert_same_values(before, after, feeds, **options):
    """Of all values that both models have, the graph's outputs among them."""
    assert [each.name for each in before.graph.output] == [each.name for each in after.graph.output]
    produced = {output for node in before.graph.node for output in node.output}
    names = sorted(produced & names_of(after.graph))
    results = []
    for source in (before, after):
        node_session = exact_session(with_outputs(source, names), **options)
        inputs = [each.name for each in node_session.get_inputs()]
        values = {name: ort_value(np.asarray(feeds[name])) for name in inputs}
        outputs = node_session.run_with_ort_values(names, values)
        results.append([content(value) for value in outputs])
    for name, *values in zip(names, *results, strict=True):
        assert values[0] == values[1], name
    return names


def content(value):
    """All bytes of an OrtValue of any element type."""
    bits = find(value.element_type()).bits
    return ctypes.string_at(value.data_ptr(), -(-math.prod(value.shape()) * bits // 8))


def constant(name, value, dtype=None):
    return to_tensor_proto(np.asarray(value, dtype), name)


def pair(x="x", codes="codes", y="y", parameters=("scale", "zero_point"), domain="com.amd.quark", **attributes):
    own = domain if domain.startswith("com.") and domain != "com.microsoft" else ""
    names = OPERATORS[own, "quantize"], OPERATORS[own, "dequantize"]
    return [
        helper.make_node(names[0], [x, *parameters], [codes], domain=domain, **attributes),
        helper.make_node(names[1], [codes, *parameters], [y], domain=domain, **attributes),
    ]


def scale_and_zero_point(name="int8", scale=0.25, zero_point=0):
    return [constant("scale", scale, np.float32), constant("zero_point", zero_point, oracle.dtype(name))]


def operators(source):
    return [node.op_type for node in source.graph.node]


# Whole models that Quark wrote.

VARIANTS = ("bf16", "fp16", "i32", "u32", "bfp16", "mx9", "mxfp8")


@pytest.fixture(scope="module")
def inputs():
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return {"x": arrays["x"]}


@pytest.mark.parametrize("keep_codes", [False, True], ids=["floats", "codes"])
@pytest.mark.parametrize("variant", [*VARIANTS, "a8w8"])
def test_every_place_in_real_models(variant, keep_codes, inputs):
    before = onnx.load(MODELS / f"textline_cls_{variant}.onnx")
    after = optimize(before, keep_codes=keep_codes)
    names = assert_same_values(before, after, inputs)
    if variant == "a8w8":
        assert operators(after) == operators(before)
        return
    quantizes = [name for name in operators(before) if "uantize" in name]
    rewritten = [name for name in operators(after) if "uantize" in name]
    assert {node.output[0] for node in after.graph.node if "uantize" in node.op_type} <= set(names)
    assert len(rewritten) < len(quantizes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_whole_real_models(variant, inputs):
    """ONNX Runtime lays convolutions out otherwise where weights are constants ("all"), and a last bit may flip a rounding to
    float16, of which the output has 11 bits."""
    path = MODELS / f"textline_cls_{variant}.onnx"
    for level, tolerance in [("EXTENDED", 1e-5), ("ALL", 2**-11 if variant == "fp16" else 1e-5)]:
        outputs = []
        for make in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
            options.add_session_config_entry("session.disable_quant_qdq", "1")
            quark_numba.register(options)
            outputs += make(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=tolerance)


# One rule at a time.


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


@pytest.mark.parametrize("name", oracle.EXTENDED)
def test_pairs_are_fused(name):
    nodes = [*pair(), helper.make_node("Relu", ["y"], ["z"])]
    zero_point = 1 if isinstance(oracle.TYPES[name], oracle.Integer) else 0.5
    before = model(
        nodes,
        [("x", "float32", X.shape)],
        [("z", "float32", X.shape)],
        initializers=scale_and_zero_point(name, 0.3, zero_point),
    )
    result = optimized(before)
    assert operators(result.model) == ["QuantizeDequantizeLinear", "Relu"]
    assert [(each.domain, each.version) for each in result.model.opset_import][-1] == ("quark_numba", 1)
    assert result.done == {(f"com.amd.quark::{Q}", FUSED): 1, (f"com.amd.quark::{DQ}", FUSED): 1}
    assert assert_same_values(before, result.model, {"x": X}) == ["y", "z"]
    onnx.checker.check_model(result.model)


def test_a_missing_zero_point_is_zero():
    for per_axis in (False, True):
        scale = constant("scale", np.linspace(0.1, 1, 4) if per_axis else 0.1, np.float32)
        nodes = [*pair("x", "a", "y", ["scale"], axis=1), *pair("y", "b", "z", ["scale"], axis=1)]
        before = model(nodes, ["x"], ["z"], initializers=[scale])
        result = optimized(before)
        assert operators(result.model) == ["QuantizeDequantizeLinear"]
        assert len(result.model.graph.initializer) == 2
        assert_same_values(before, result.model, {"x": X})


def test_what_dequantizes_equally_is_shared():
    nodes = [
        *pair(),
        helper.make_node(DQ, ["codes", "scale_too", "zero_point"], ["y2"], domain="com.amd.quark", axis=0),
        helper.make_node("Add", ["y", "y2"], ["z"]),
    ]
    initializers = [*scale_and_zero_point(), constant("scale_too", 0.25, np.float32)]
    before = model(nodes, ["x"], ["z"], initializers=initializers)
    result = optimized(before)
    assert operators(result.model) == ["QuantizeDequantizeLinear", "Add"]
    assert result.done[f"com.amd.quark::{DQ}", SHARED] == 1
    assert [each.name for each in result.model.graph.initializer] == ["scale", "zero_point"]
    assert_same_values(before, result.model, {"x": X})


@pytest.mark.parametrize("name", [*oracle.EXTENDED, "int4", "uint2"])
def test_round_trips_are_dropped_where_all_codes_come_back(name):
    """Of integers of up to 16 bits; float types give 0 for -0."""
    domain = "com.amd.quark" if name in oracle.EXTENDED else ""
    row, dtype = oracle.TYPES[name], oracle.dtype(name)
    zero_point = 3 if isinstance(row, oracle.Integer) and row.bits > 2 else 0
    first, second = pair(domain=domain), pair("y", "codes2", "z", domain=domain)
    before = model([first[1], *second], [("codes", name, None)], ["z"], domains=[domain], opset=25)
    before.graph.initializer.extend(scale_and_zero_point(name, 0.25, zero_point))
    result = optimized(before, standard_ops=not domain)
    drops = sum(count for (_, what), count in result.done.items() if what == ROUND_TRIP)
    assert drops == 2 * (isinstance(row, oracle.Integer) and row.bits < 32)
    if drops:
        assert len(result.model.graph.node) == 1
        codes = np.arange(2**row.bits).astype(f"u{dtype.itemsize}").view(dtype)
        scale, zero = np.float32(0.25), np.array(zero_point, dtype)
        oracle.assert_same_bits(oracle.quantize(oracle.dequantize(codes, scale, zero, name), scale, zero, name), codes)


def test_a_scale_that_loses_codes_keeps_its_round_trip():
    """By 0 all codes become 0, by 2e38 most become infinity."""
    nodes = [pair()[1], *pair("y", "codes2", "z")]
    for scale in (0.0, 2e38):
        before = model(nodes, [("codes", "int8", None)], ["z"], initializers=scale_and_zero_point("int8", scale))
        assert not optimized(before).done[f"com.amd.quark::{Q}", ROUND_TRIP]


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        (pair(), [("codes", "int8", None), "y"], "its codes are an output of its graph"),
        ([*pair(), helper.make_node("Cast", ["codes"], ["z"], to=1)], ["y", "z"], "its codes are used elsewhere"),
        ([pair()[0]], ["codes"], "its codes are an output of its graph"),
        ([pair()[0], helper.make_node("Relu", ["x"], ["y"])], ["y"], "nothing uses it"),
        (
            [pair()[0], pair(parameters=("scale2", "zero_point"))[1]],
            ["y"],
            "what is behind it dequantizes with other parameters",
        ),
        ([pair(axis=0)[0], pair(axis=1)[1]], ["y"], None),
        ([pair(parameters=("scales", "zeros"), axis=1)[0], pair(parameters=("scales", "zeros"), axis=-2)[1]], ["y"], "other"),
        ([pair(parameters=("scale_in",))[0], pair(parameters=("scale_in",))[1]], ["y"], "the shape of its scale is not known"),
    ],
)
def test_what_is_left_and_why(nodes, outputs, reason):
    initializers = [*scale_and_zero_point(), constant("scale2", 0.5, np.float32)]
    initializers += [constant("scales", np.ones(4), np.float32), constant("zeros", np.zeros(4), np.int8)]
    inputs = ["x", "scale_in"] if reason and "shape" in reason else ["x"]
    outputs = [("codes", "int8", None) if each == "codes" else each for each in outputs]
    before = model(nodes, inputs, outputs, initializers=initializers)
    result = optimized(before)
    if reason is None:
        assert not result.left
    else:
        assert operators(result.model) == operators(before)
        assert any(reason in text for _, text in result.left)
    assert_same_values(before, result.model, {"x": X, "scale_in": np.float32(0.5)})
