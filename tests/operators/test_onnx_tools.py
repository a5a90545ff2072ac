"""The tools of the onnx package: its backend tests, checker, shape inference and reference evaluator."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, checker, defs, helper, numpy_helper, parser, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeTypeError
from onnx_models import INFERS, OPERATORS, assert_inference_refuses, infers, model, node_tests
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.catalog import OPERATORS as CATALOG

QUARK = [each for each in CATALOG if each.family == "linear" and each.domain in ("com.amd.quark", "com.vai.quantize")]


@pytest.fixture(autouse=True, scope="module")
def _schemas():
    quark_numba.register_schemas()


def as_ml_dtypes(value):
    """Return an array in the dtypes of ml_dtypes, from a tensor or from an array in onnx's own dtypes."""
    return quark_numba.from_tensor_proto(value if isinstance(value, TensorProto) else numpy_helper.from_array(value))


def as_onnx(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def assert_same(actual, expected):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("case", node_tests())
@pytest.mark.parametrize("way", ["direct call", "evaluator"])
@pytest.mark.by_default(2)
def test_backend_case(case, way):
    (node,) = case.model.graph.node
    for inputs, (expected,) in case.data_sets:
        if way == "direct call":
            function = {"QuantizeLinear": quark_numba.quantize, "DequantizeLinear": quark_numba.dequantize}[node.op_type]
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            if "output_dtype" in attributes and function is quark_numba.quantize:
                attributes["dtype"] = attributes.pop("output_dtype")
            y = function(*map(as_ml_dtypes, inputs), **attributes, opset=case.model.opset_import[0].version)
        else:
            evaluator = ReferenceEvaluator(case.model, new_ops=quark_numba.reference_ops(qdq="float"))
            y = as_ml_dtypes(evaluator.run(None, dict(zip(node.input, map(as_onnx, inputs), strict=True)))[0])
        assert_same(y, as_ml_dtypes(expected))


def test_backend_cases_are_all_there():
    names = [case.values[0].name for case in node_tests()]
    assert "test_quantizelinear_blocked_asymmetric" in names
    assert "test_dequantizelinear_blocked" in names


def chain():
    """Return a model with operators of both domains: x of shape (N, 3, 2) → int16 per axis → float32 → bfloat16 → float32 →
    uint8. The last step has no zero point."""
    text = """(float[N, 3, 2] x) => (uint8[N, 3, 2] y)
        <float[3] scales = {0.5, 0.25, 3}, int16[3] int16_zeros = {7, -7, 32000}, float scale = {0.75}> {
        q1 = ExtendedQuantizeLinear <axis = -2> (x, scales, int16_zeros)
        f1 = ExtendedDequantizeLinear <axis = -2> (q1, scales, int16_zeros)
        q2 = com.vai.quantize.VitisQuantizeLinear (f1, scale, bfloat16_zero)
        f2 = com.vai.quantize.VitisDequantizeLinear <axis = 7> (q2, scale)
        y = ExtendedQuantizeLinear (f2, scale)
    }"""
    made = text_model(text, bfloat16_zero=np.array(1.5, ml_dtypes.bfloat16))
    made.graph.node[3].input.append("")  # omitted
    return made


def value_infos(inferred):
    """Return the element types and shapes of a model's values by name."""
    infos = {}
    for value in inferred.graph.value_info:
        tensor = value.type.tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim] if tensor.HasField("shape") else None
        infos[value.name] = (tensor.elem_type, shape)
    return infos


@pytest.mark.slow
def test_chain():
    checker.check_model(chain(), full_check=True)
    inferred = shape_inference.infer_shapes(chain(), check_type=True, strict_mode=True, data_prop=True)
    types = {"q1": TensorProto.INT16, "f1": TensorProto.FLOAT, "q2": TensorProto.BFLOAT16, "f2": TensorProto.FLOAT}
    shape = ["N", 3, 2] if INFERS else None
    assert value_infos(inferred) == {name: (element_type, shape) for name, element_type in types.items()}

    x = np.random.default_rng(7).normal(0, 20, (4, 3, 2)).astype(np.float32)
    scales = np.array([0.5, 0.25, 3.0], np.float32).reshape(3, 1)
    zeros = np.array([7, -7, 32000], np.int16).reshape(3, 1)
    q1 = oracle.quantize(x, scales, zeros, "int16")
    f1 = oracle.dequantize(q1, scales, zeros, "int16")
    q2 = oracle.quantize(f1, np.float32(0.75), np.array(1.5, ml_dtypes.bfloat16), "bfloat16")
    f2 = oracle.dequantize(q2, np.float32(0.75), np.array(0, ml_dtypes.bfloat16), "bfloat16")
    y = oracle.quantize(f2, np.float32(0.75), np.uint8(0), "uint8")
    results = ReferenceEvaluator(chain(), new_ops=quark_numba.reference_ops()).run(None, {"x": x}, intermediate=True)
    for name, expected in {"q1": q1, "f1": f1, "q2": q2, "f2": f2, "y": y}.items():
        assert_same(as_ml_dtypes(results[name]), expected)
    assert len(np.unique(y)) > 3


@pytest.mark.parametrize("variant", ["bf16", "fp16", "i32", "u32"])
def test_models_that_quark_wrote(variant):
    source = onnx.load(MODELS / f"textline_cls_{variant}.onnx")
    checker.check_model(source, full_check=True)
    infos = value_infos(shape_inference.infer_shapes(source, check_type=True, strict_mode=True, data_prop=True))
    if variant in ("bf16", "fp16"):  # all nodes are ONNX's or Quark's
        outputs = {output.name for output in source.graph.output}
        names = {output for node in source.graph.node for output in node.output} - outputs
        assert names <= set(infos)
        shapes = [infos[node.output[0]][1] for node in source.graph.node if node.output[0] in infos]
        assert all(shape is not None for shape in shapes) is INFERS


def node_model(operation, types, shapes, domain="com.amd.quark", output=None, **attributes):
    """Return a model of one node with inputs of these types and shapes. An input whose type is None is omitted."""
    names = ("x", "scale", "zero_point")
    given = [(name, each, shape) for name, each, shape in zip(names, types, shapes, strict=True) if each]
    node = helper.make_node(OPERATORS[domain, operation], [name for name, *_ in given], ["y"], domain=domain, **attributes)
    output = output or ("float32" if operation == "dequantize" else types[2] or "uint8")
    return model([node], given, [("y", output, shapes[0])], domains=[domain])


@pytest.mark.parametrize("version", QUARK, ids=lambda version: version.full_name)
def test_schemas_follow_the_table(version):
    for name in version.formats:
        types = ("float32" if version.operation == "quantize" else name, "float32", name)
        for left_out in (False, True):
            if left_out:
                types = (*types[:2], None)
            for shapes in ([["N", 3], [], []], [["N", 3], [3], [3]], [["N", "C"], [4], [4]], [[2, 5], [1], []]):
                checker.check_model(node_model(version.operation, types, shapes, version.domain), full_check=True)
    schema = defs.get_schema(version.name, 1, version.domain)
    assert {name: attribute.default_value.i for name, attribute in schema.attributes.items()} == {"axis": 1}
    assert schema.has_type_and_shape_inference_function is INFERS


F, I8 = "float32", "int8"
SCALAR = [[2, 3], [], []]
AS_MANY = "expected as many elements as x"


@pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize"])
@pytest.mark.parametrize(
    ("operation", "types", "message"),
    [
        ("quantize", ("float16", F, I8), "x has element type float16; expected float32"),
        ("quantize", (F, "float16", I8), "y_scale has element type float16; expected float32"),
        ("quantize", (F, F, "int4"), "y_zero_point has element type int4; expected uint8 or int8 or uint16"),
        ("dequantize", ("float8e5m2", F, None), "x has element type float8e5m2; expected uint8 or"),
        ("dequantize", (I8, F, "uint8"), "x_zero_point has element type uint8; expected int8"),
    ],
)
def test_wrong_types(operation, types, message, domain):
    wrong = node_model(operation, types, SCALAR, domain)
    with pytest.raises((checker.ValidationError, shape_inference.InferenceError)):
        checker.check_model(wrong, full_check=True)
    if INFERS:
        for strict in (True, False):
            assert_inference_refuses(wrong, message, strict_mode=strict)


def test_a_type_that_no_operator_has():
    wrong = node_model("dequantize", (I8, F, None), SCALAR)
    wrong.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    message = "x has element type int64; expected uint8 or" if INFERS else "int64"
    assert_inference_refuses(wrong, message, check_type=True, strict_mode=True)


@pytest.mark.parametrize(("zero_point", "output"), [(I8, "uint8"), pytest.param(None, I8, marks=infers)])
def test_wrong_output_type(zero_point, output):
    wrong = node_model("quantize", (F, F, zero_point), SCALAR, output=output)
    with pytest.raises(shape_inference.InferenceError):
        checker.check_model(wrong, full_check=True)


def test_wrong_nodes():
    attribute = node_model("quantize", (F, F, I8), SCALAR, block_size=2)
    inputs = node_model("quantize", (F, F, I8), SCALAR)
    inputs.graph.node[0].input.append("x")
    missing = node_model("quantize", (F, None, None), SCALAR)
    for wrong in (attribute, inputs, missing):
        with pytest.raises(checker.ValidationError):
            checker.check_model(wrong)


@infers
@pytest.mark.parametrize(
    ("shapes", "axis", "message"),
    [
        ([["N", 3], [2], [2]], None, rf"y_scale has shape \[2\]; {AS_MANY} of shape \[\?, 3\] has along axis 1"),
        ([["N", 3], [3], [3]], 2, r"axis is 2, out of range for x of shape \[\?, 3\]"),
        ([["N"], [3], [3]], None, r"axis is 1, out of range for x of shape \[\?\]"),
        ([[2, 3], [2, 3], [2, 3]], None, r"y_scale has shape \[2, 3\]; expected a scalar"),
        ([[2, 3], [3], []], None, r"y_zero_point has shape \[\]; expected the shape of y_scale, \[3\]"),
        ([[2, 3], [3], [2]], None, r"y_zero_point has shape \[2\]; expected the shape of y_scale, \[3\]"),
    ],
)
def test_wrong_shapes(shapes, axis, message):
    wrong = node_model("quantize", (F, F, I8), shapes, **({} if axis is None else {"axis": axis}))
    assert_inference_refuses(wrong, f"com.amd.quark::ExtendedQuantizeLinear: {message}", strict_mode=True)


@infers
def test_what_is_unknown_stays_unknown():
    graph = text_model("""(float[2] a, float[S] scale, int8[] zero_point) => (int8[2] y2) {
        u = other.Unknown (a)  y1 = ExtendedQuantizeLinear (u, scale, zero_point)
        y2 = ExtendedQuantizeLinear (a, scale, u)  y3 = ExtendedDequantizeLinear (u, u)
    }""")
    inferred = shape_inference.infer_shapes(graph, strict_mode=True)
    assert value_infos(inferred) == {"y1": (TensorProto.INT8, None), "y3": (TensorProto.FLOAT, None)}


def test_registration_happens_once():
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: quark_numba.register_schemas(), range(32)))
    defs.deregister_schema("VitisQuantizeLinear", 1, "com.vai.quantize")
    quark_numba.register_schemas()
    for version in QUARK:
        assert defs.get_schema(version.name, 1, version.domain).name == version.name


def test_the_process_ends_well():
    """At exit, onnx 1.19 to 1.22 crash or hang if inference functions are still registered."""
    code = "import quark_numba; quark_numba.register_schemas()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


OPSETS = [opset for opset in (10, 13, 19, 21, 23, 24, 25, 28) if opset <= defs.onnx_opset_version()]


def standard_model(opset, types=(F, F, "uint8"), shapes=((2, 3), (), ()), **attributes):
    made = node_model("quantize", types, shapes, "", **attributes)
    made.opset_import[0].version = opset
    return made


@pytest.mark.parametrize(
    ("opset", "shape"), [(opset, shape) for opset in OPSETS for shape in ((), (3,)) if opset >= 13 or not shape], ids=str
)
def test_standard_operators_in_every_opset(opset, shape):
    source = standard_model(opset, shapes=((2, 3), shape, shape))
    feeds = {
        "x": np.array([[-1, 2.5, 7], [1e4, 0.75, 3]], np.float32),
        "scale": np.full(shape, 0.5, np.float32),
        "zero_point": np.full(shape, 3, np.uint8),
    }
    (y,) = ReferenceEvaluator(source, new_ops=quark_numba.reference_ops(qdq="float")).run(None, feeds)
    assert_same(y, oracle.quantize(*feeds.values(), "uint8"))


def test_standard_operators_are_those_of_the_opset():
    new_ops = quark_numba.reference_ops(qdq="float")
    feeds = {"x": np.ones((2, 4), np.float32), "scale": np.ones((), np.float32), "zero_point": np.zeros((), np.int16)}
    with pytest.raises(RuntimeTypeError, match="y_zero_point has element type int16; expected uint8 or int8"):
        ReferenceEvaluator(standard_model(20, (F, F, "int16")), new_ops=new_ops).run(None, feeds)
    assert ReferenceEvaluator(standard_model(21, (F, F, "int16")), new_ops=new_ops).run(None, feeds)[0].dtype == np.int16

    blocked = {"x": feeds["x"], "scale": np.ones((2, 2), np.float32)}
    with pytest.raises(ValueError, match="y_scale has shape"):
        ReferenceEvaluator(standard_model(21, (F, F, None), output="uint8"), new_ops=new_ops).run(None, blocked)
    sized = standard_model(21, (F, F, None), output="int16", block_size=2, output_dtype=TensorProto.INT16)
    assert ReferenceEvaluator(sized, new_ops=new_ops).run(None, blocked)[0].dtype == np.int16


def test_standard_operators_are_onnx_own_unless_asked_for():
    assert {cls.op_domain for cls in quark_numba.reference_ops()} == {*CATALOG.domains} - {""}
    feeds = {"x": np.array([[np.inf]], np.float32), "scale": np.ones((), np.float32), "zero_point": np.zeros((), np.uint8)}
    # onnx's own operator casts to int32 before it clips, and gives 0.
    (y,) = ReferenceEvaluator(standard_model(21), new_ops=quark_numba.reference_ops(qdq="float")).run(None, feeds)
    assert y.tolist() == [[255]]


def ones(shape=(), name=F):
    return np.ones(shape, oracle.dtype(name))


@pytest.mark.parametrize(
    ("operation", "inputs", "error", "message"),
    [
        ("quantize", (ones(2, "float16"), ones()), RuntimeTypeError, "x has element type float16; expected float32"),
        ("quantize", (ones(2), ones(3)), ValueError, "axis is 1, out of range for x"),
        ("quantize", (ones((2, 4)), ones((2, 2))), ValueError, "expected a scalar or one dimension"),
        ("dequantize", (ones(2, "int4"), ones()), RuntimeTypeError, "x has element type int4; expected uint8 or"),
        ("dequantize", (ones(2, I8), ones(), ones((), "uint8")), RuntimeTypeError, "x_zero_point has element type uint8"),
    ],
)
@pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize"])
def test_wrong_input_of_the_evaluator(domain, operation, inputs, error, message):
    names = ["x", "scale", "zero_point"][: len(inputs)]
    node = helper.make_node(OPERATORS[domain, operation], names, ["y"], domain=domain)
    evaluator = ReferenceEvaluator(node, new_ops=quark_numba.reference_ops())
    with pytest.raises(error, match=message):
        evaluator.run(None, dict(zip(names, inputs, strict=True)))


def test_in_a_subgraph():
    branch = "graph = branch () => (uint8[2] y) { y = ExtendedQuantizeLinear (x, scale) }"
    source = text_model(f"""(float[] x, float[] scale, bool condition) => (uint8[2] z) {{
        z = If (condition) <then_branch: {branch}, else_branch: {branch}>
    }}""")
    feeds = {"x": np.array([1, 2], np.float32), "scale": np.array(0.5, np.float32), "condition": np.array(True)}
    (y,) = ReferenceEvaluator(source, new_ops=quark_numba.reference_ops()).run(None, feeds)
    assert y.tolist() == [2, 4]


def test_as_a_function_with_a_linked_attribute():
    """ReferenceEvaluator does not pass new_ops on to a model's functions, but accepts an evaluator for a function."""
    function = parser.parse_function("""
        <domain: "mine", opset_import: ["" : 21, "com.amd.quark" : 1]>
        F <along> (x, scale) => (y) { y = com.amd.quark.ExtendedQuantizeLinear <axis: int = @along> (x, scale) }
    """)
    evaluator = ReferenceEvaluator(function, new_ops=quark_numba.reference_ops())
    feeds = {"x": np.ones((2, 3), np.float32), "scale": np.array([1, 0.5], np.float32)}
    (y,) = evaluator.run(None, feeds, attributes={"along": 0})
    assert y.tolist() == [[1, 1, 1], [2, 2, 2]]
