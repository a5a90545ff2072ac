"""ONNX's own QuantizeLinear and DequantizeLinear in sessions that replace them by operators of this package, against the oracle
and against ONNX Runtime's own kernels."""

import functools
from itertools import product

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
import samples
from onnx import TensorProto, numpy_helper
from onnx_models import RELEASE, node_tests, number, one_node, run, session, session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.element_types import FLOAT32, find
from quark_numba.linear.versions import LATEST_OPSET, version_of_opset
from quark_numba.ort import c_api

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(RELEASE < c_api.FLOAT_QDQ_RELEASE, reason='qdq="float" needs a newer ONNX Runtime'),
]

QUANTIZE, DEQUANTIZE = (version_of_opset(operation, LATEST_OPSET) for operation in ("quantize", "dequantize"))
ONNX_RUNTIMES_OPSET = 25

our_session = functools.partial(session, qdq="float")


def carried(rows):
    return [row for row in rows if RELEASE >= c_api.FLOAT_QDQ_RELEASE and row.has_tensors()]


def cells(version):
    """Return every quantized type with float32, and every type of the other operands with three quantized types. The kernels
    are those of direct calls, whose tests have every combination."""
    result = []
    for x, scale, y in product(carried(version.x), carried(version.scale), carried(version.y)):
        quantized, full = (y, x) if version.operation == "quantize" else (x, y)
        if (scale is full is FLOAT32) or quantized.name in ("uint8", "int4", "float4e2m1"):
            result.append(pytest.param(x.name, scale.name, y.name, id=f"{x.name}-{scale.name}-{y.name}"))
    return result


def node(operation, x, scale, y, *, zero_point=True, opset=ONNX_RUNTIMES_OPSET, **attributes):
    """Return a model of one node. `x` has a shape because output_dtype needs one."""
    types = {"x": x, "scale": scale, "y": y, "zero_point": y if operation == "quantize" else x}
    quantized = types["zero_point"]
    if (operation == "quantize" and not zero_point and y != "uint8") or (operation == "dequantize" and y != scale):
        attributes["output_dtype"] = number(y)
    shapes = {"x": ["rows", "columns"]}
    named = {"domain": "", "zero_point": zero_point, "types": types, "shapes": shapes, "opset": opset}
    return one_node(operation, quantized, attributes=attributes, **named)


def scales(name, shape):
    values = np.random.default_rng(20).uniform(0.05, 3, shape)
    if name == "int32":
        values = np.ceil(values)
    with np.errstate(all="ignore"):
        return np.asarray(np.exp2(np.round(np.log2(values))) if name == "float8e8m0" else values).astype(find(name).dtype)


GRANULARITIES = {
    "per tensor": ((), {}, lambda values: values),
    "per axis": ((5,), {"axis": 0}, lambda values: values[:, None]),
    "blocked": ((5, 3), {"axis": -1, "block_size": 32}, lambda values: np.repeat(values, 32, axis=1)[:, :70]),
}


def check(operation, values, x, scale, y):
    """Check an operator in each granularity, with and without a zero point."""
    quantized = y if operation == "quantize" else x
    for (shape, attributes, spread), zero_point in product(GRANULARITIES.values(), (True, False)):
        feeds = {"x": values, "scale": scales(scale, shape)}
        zeros = np.zeros(shape, find(quantized).dtype)
        if zero_point:
            zeros = feeds["zero_point"] = np.resize(np.array(samples.zero_points(quantized)), shape)
        actual = run(our_session(node(operation, x, scale, y, zero_point=zero_point, **attributes)), **feeds)
        parameters = spread(feeds["scale"]), spread(zeros)
        if operation == "quantize":
            oracle.assert_same_bits(actual, oracle.quantize(values, *parameters, y))
        else:
            oracle.assert_same_bits(actual, oracle.dequantize(values, *parameters, x, output=y))


@pytest.mark.parametrize(("x", "scale", "y"), cells(QUANTIZE))
@pytest.mark.covering
@pytest.mark.by_default(1, slow=16)
def test_quantize(x, scale, y):
    values = np.random.default_rng(21).normal(0, 5, (5, 70)).astype(np.float32)
    values.flat[: len(samples.SPECIAL)] = samples.SPECIAL
    with np.errstate(all="ignore"):
        values = np.nan_to_num(values, posinf=2**30, neginf=-(2**30)).astype(np.int32) if x == "int32" else values
        values = values.astype(find(x).dtype)
    check("quantize", values, x, scale, y)


@pytest.mark.parametrize(("x", "scale", "y"), cells(DEQUANTIZE))
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_dequantize(x, scale, y):
    check("dequantize", np.resize(samples.codes(x), (5, 70)), x, scale, y)


@pytest.mark.parametrize("name", [row.name for row in carried(QUANTIZE.y)])
@pytest.mark.parametrize("last", [0, -1], ids=["all zero", "zero but for one"])
@pytest.mark.by_default(2)
def test_zero_points_of_zero(name, last):
    """An odd number of zero points is read in full: all are 0, up to the last one."""
    shape, attributes, spread = GRANULARITIES["blocked"]
    feeds = {"scale": scales("float32", shape), "zero_point": np.zeros(shape, find(name).dtype)}
    feeds["zero_point"][-1, -1] = samples.zero_points(name)[last]
    codes = np.resize(samples.codes(name), (5, 70))
    dequantizing = our_session(node("dequantize", name, "float32", "float32", **attributes))
    expected = oracle.dequantize(codes, *(spread(each) for each in feeds.values()), name)
    oracle.assert_same_bits(run(dequantizing, x=codes, **feeds), expected)


@pytest.mark.parametrize("name", [row.name for row in carried(QUANTIZE.y) if row.is_packed])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16383, 16384, 16387, 100_003])
@pytest.mark.by_default(1, slow=12)
def test_packed_elements(name, size):
    """Some numbers of elements do not fill the last byte, and some need several tasks."""
    x = np.random.default_rng(22).normal(0, 3, (1, size)).astype(np.float32)
    zero_point = samples.zero_points(name)[-1]
    scale = np.float32(0.7)
    y = run(our_session(node("quantize", "float32", "float32", name)), x=x, scale=scale, zero_point=zero_point)
    oracle.assert_same_bits(y, oracle.quantize(x, scale, zero_point, name))
    z = run(our_session(node("dequantize", name, "float32", "float32")), x=y, scale=scale, zero_point=zero_point)
    oracle.assert_same_bits(z, oracle.dequantize(y, scale, zero_point, name))


@pytest.mark.parametrize("name", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"])
@pytest.mark.by_default(1)
def test_saturate(name):
    x = samples.floats(name, np.float32(1), np.zeros((), find(name).dtype))[None]
    unsaturated = our_session(node("quantize", "float32", "float32", name, saturate=0))
    y = run(unsaturated, x=x, scale=np.float32(1), zero_point=np.zeros((), find(name).dtype))
    oracle.assert_same_bits(y, oracle.quantize(x, np.float32(1), np.zeros((), y.dtype), name, saturate=False))


@pytest.mark.parametrize("scale_name", ["float32", "bfloat16"])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.by_default(1)
def test_precision(precision, scale_name):
    x, scale, zero_point = samples.floats("int8", 0.1, 3)[None], np.array(0.1, find(scale_name).dtype), np.int8(3)
    precise = our_session(node("quantize", "float32", scale_name, "int8", precision=number(precision)))
    expected = oracle.quantize(x, scale, zero_point, "int8", precision=precision)
    oracle.assert_same_bits(run(precise, x=x, scale=scale, zero_point=zero_point), expected)


@pytest.mark.parametrize("case", node_tests())
@pytest.mark.by_default(2)
def test_onnx_node_tests(case):
    """The tests are for the newest opset. An older opset that ONNX Runtime reads has everything that they test."""

    def array(value):
        return value if isinstance(value, np.ndarray | np.generic) else numpy_helper.to_array(value)

    case.model.opset_import[0].version = ONNX_RUNTIMES_OPSET
    case.model.ir_version = 11
    loaded = our_session(case.model)
    for inputs, outputs in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        y = run(loaded, **dict(zip(names, map(array, inputs), strict=True)))
        oracle.assert_same_bits(y, array(outputs[0]))


def onnx_runtimes_own():
    """Yield the operators and types that ONNX Runtime's CPU provider loads by itself. (It also loads float32 x with float16
    scales and the reverse, but fails in the run.)"""
    for version in (QUANTIZE, DEQUANTIZE):
        for x, y in product(carried(version.x), carried(version.y)):
            full = x if version.operation == "quantize" else y
            try:
                session(node(version.operation, x.name, full.name, y.name), backend=None)
            except Exception as error:
                assert "NOT_IMPLEMENTED" in str(error)  # noqa: PT017
            else:
                yield pytest.param(version.operation, x.name, y.name, id=f"{version.operation}-{x.name}-{y.name}")


def beyond_int32(x, scale):
    """Return whether quotients are NaN or beyond int32. For float16 x and 2-bit types, ONNX Runtime converts to int32 before it
    saturates."""
    with np.errstate(all="ignore"):
        return ~(np.abs(x.astype(np.float32) / np.float32(scale)) < 2.0**31 - 2**16)


def is_negative_zero(x, scale):
    """Return whether quotients are -0. The sum with a zero point of 0 is 0, but ONNX Runtime does not add the zero point of
    float8 types. Quotients of float16 count as 0 below the smallest number of float16, 2**-24."""
    with np.errstate(all="ignore"):
        quotient = x.astype(np.float32) / np.float32(scale)
    return (np.abs(quotient) < (2.0**-24 if x.dtype == np.float16 else 2.0**-149)) & np.signbit(quotient)


def rounds_beyond(x, scale, name):
    """Return whether quotients are beyond the range without saturation, but ONNX Runtime rounds them to the largest
    float8e4m3fn, or turns them into NaN of float8e5m2."""
    lowest, highest = {"float8e4m3fn": (480, 496), "float8e5m2": (61440, 65536)}.get(name, (0, 0))
    with np.errstate(all="ignore"):
        quotient = np.abs(x.astype(np.float32) / np.float32(scale))
        if x.dtype == np.float16 and RELEASE >= (1, 32):
            quotient = quotient.astype(np.float16).astype(np.float32)
    return (lowest <= quotient) & (quotient < highest)


@pytest.mark.parametrize(("operation", "x", "y"), list(onnx_runtimes_own()))
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_against_onnx_runtimes_own(operation, x, y):
    """Both give the same bits, except for the differences that the README lists."""
    quantized = y if operation == "quantize" else x
    full = x if operation == "quantize" else y
    # QuantizeLinear divides in the type of the scale; ONNX Runtime before 1.32 divides in float32.
    is_float32 = operation == "quantize" and full == "float16" and RELEASE < (1, 32)
    precision = {"precision": number("float32")} if is_float32 else {}
    saturates = [{}, {"saturate": 0}] if operation == "quantize" and quantized.startswith("float8") else [{}]
    for saturate in saturates:
        theirs = session(node(operation, x, full, y, **saturate), backend=None)
        ours = our_session(node(operation, x, full, y, **saturate, **precision))
        for scale in np.array([1, 0.1, 3, 2.0**-7, 1e-4], find(full).dtype):
            for zero_point in samples.zero_points(quantized):
                if quantized.startswith("float") or quantized == "int32":
                    zero_point = np.zeros_like(zero_point)
                if operation == "quantize":
                    with np.errstate(all="ignore"):
                        values = samples.floats(quantized, float(scale), zero_point).astype(find(x).dtype)
                    if RELEASE < (1, 32) and (full == "float16" or quantized.endswith("int2")):
                        values = values[~beyond_int32(values, scale)]
                    if quantized.startswith("float8"):
                        values = values[~is_negative_zero(values, scale)]
                    if saturate:
                        values = values[~rounds_beyond(values, scale, quantized)]
                else:
                    values = samples.codes(quantized)
                feeds = {"x": values[None], "scale": scale, "zero_point": zero_point}
                oracle.assert_same_bits(run(ours, **feeds), run(theirs, **feeds))


@pytest.mark.slow
def test_what_onnx_runtime_refuses():
    """Our operators accept bfloat16 scales, and a float4e2m1 weight in blocks of 32."""
    rng = np.random.default_rng(23)
    weight = rng.integers(0, 16, (64, 10)).astype(np.uint8).view(find("float4e2m1").dtype)
    scale = rng.uniform(0.1, 1, (2, 10)).astype(find("bfloat16").dtype)
    nodes = "d = DequantizeLinear <axis = 0, block_size = 32> (w, s)  f = Cast <to = 1> (d)  y = MatMul (x, f)"
    blocked = text_model(f"(float[3, 64] x) => (float[3, 10] y) {{ {nodes} }}", opset=25, w=weight, s=scale)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        session(blocked, backend=None)
    x = rng.normal(0, 1, (3, 64)).astype(np.float32)
    dense = oracle.dequantize(weight, np.repeat(scale, 32, axis=0), np.zeros((), weight.dtype), "float4e2m1", output="bfloat16")
    y = run(our_session(blocked), x=x)
    np.testing.assert_allclose(y, x @ dense.astype(np.float32), rtol=1e-5, atol=1e-5)


def has_exact_integers():
    """Return whether ONNX Runtime's integer operators are exact here. On x86-64 without VNNI they saturate the sum of two
    products of uint8 and int8 to 16 bits (its documentation of quantization, "U8S8")."""
    text = "(uint8[8, 64] x) => (int32[8, 32] y) { y = MatMulInteger (x, weight) }"
    probe = text_model(text, weight=np.full((64, 32), 127, np.int8))
    (y,) = session(probe, backend=None).run(None, {"x": np.full((8, 64), 255, np.uint8)})
    return bool(np.all(y == 64 * 255 * 127))


def test_a_quantized_model_runs_as_before():
    """Outputs are those of ONNX Runtime's own operators in the same graph. ONNX Runtime's integer operators round once less, so
    outputs may differ from theirs by three steps (1/255) of the uint8 output, if they are exact."""
    path = MODELS / "textline_cls_a8w8.onnx"
    with np.load(path.with_name("textline_cls_expected.npz")) as arrays:
        x = arrays["x"]
    (after,) = our_session(path).run(None, {"x": x})
    integers = [(3.01 / 255, {})] if has_exact_integers() else []
    for allowed, entries in [(1e-5, {"disable_quant_qdq": "1"}), *integers]:
        (before,) = session(path, backend=None, **entries).run(None, {"x": x})
        assert np.abs(after - before).max() <= allowed


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.by_default(1)
def test_nodes_are_not_fused(name, tmp_path):
    """ONNX Runtime does not fuse the nodes into MatMulIntegerToFloat, which has no bfloat16 scales, unless the entry of the
    session says so."""
    to_float32 = "" if name == "float32" else "<output_dtype = 1>"
    text = f"""(float[5, 32] x) => (float[5, 16] y) {{
        q = QuantizeLinear (x, scale, zero_point)  d = DequantizeLinear {to_float32} (q, scale, zero_point)
        w = DequantizeLinear {to_float32} (weight, scale, zero_point)  y = MatMul (d, w)
    }}"""
    weight = np.random.default_rng(24).integers(0, 255, (32, 16), np.uint8)
    content = text_model(text, opset=25, scale=np.array(0.05, find(name).dtype), zero_point=np.uint8(128), weight=weight)

    def optimized(**entries):
        options = session_options(**entries)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        quark_numba.register(options, qdq="float")
        onnxruntime.InferenceSession(content.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]

    assert sorted(optimized()) == ["DequantizeLinear"] * 2 + ["MatMul", "QuantizeLinear"]
    if name == "float32":
        assert "MatMulIntegerToFloat" in optimized(disable_quant_qdq="0")


@pytest.mark.parametrize("shape", [[1], [0, 3], ["n"], [2, 2]], ids=str)
@pytest.mark.parametrize(("operation", "name", "y"), [("quantize", "int8", "int8"), ("dequantize", "uint8", "float16")])
@pytest.mark.by_default(3)
def test_output_dtype(operation, name, y, shape):
    types = {"x": "float32" if operation == "quantize" else name, "scale": "float32", "y": y}
    attributes = {"output_dtype": number(y)}
    typed = one_node(
        operation, name, domain="", zero_point=False, types=types, shapes={"x": shape}, opset=25, attributes=attributes
    )
    x = np.full([3 if each == "n" else each for each in shape], 3, types["x"])
    actual = run(our_session(typed), x=x, scale=np.float32(0.5))
    assert actual.dtype == y
    assert np.array_equal(actual, np.full(x.shape, 6 if operation == "quantize" else 1.5))


def test_an_empty_tensor_of_huge_dimensions():
    """Nothing is read, and no memory is allocated for elements that do not exist."""
    huge = 10**12
    attributes = {"axis": 1, "block_size": 2}
    for has_zero_point in (True, False):
        node = one_node("dequantize", "uint8", domain="", zero_point=has_zero_point, attributes=attributes, opset=21)
        feeds = {"x": np.zeros((0, 6, huge), np.uint8), "scale": np.ones((0, 3, huge), np.float32)}
        feeds |= {"zero_point": np.zeros((0, 3, huge), np.uint8)} if has_zero_point else {}
        assert run(our_session(node), **feeds).shape == (0, 6, huge)


@pytest.mark.slow
def test_types_are_inferred_through_a_chain():
    """The model has no value_info, and the shape of x is known, known in part, or unknown."""
    zeros = {f"zero_{row.name}": np.zeros((), row.dtype) for row in carried(QUANTIZE.y)}
    nodes = "\n".join(
        f"q{k} = QuantizeLinear (d{k - 1}, scale, {zero})  d{k} = DequantizeLinear (q{k}, scale, {zero})"
        for k, zero in enumerate(zeros, 1)
    )
    for shape in ("", "?, 2", "n, 2", "1, 2"):
        text = f"(float[{shape}] d0) => (float[] d{len(zeros)}) {{ {nodes} }}"
        chain = our_session(text_model(text, opset=25, scale=np.float32(0.5), **zeros))
        assert chain.run(None, {"d0": np.array([[0, 0.5]], np.float32)})[0].tolist() == [[0, 0.5]]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"block_size": -1}, "block_size is -1; expected a positive integer, or 0"),
        (
            {"precision": 7},
            r"precision is 7; expected 0 or 1 \(float32\) or 10 \(float16\) or 16 \(bfloat16\) or 11 \(float64\)",
        ),
        ({"output_dtype": TensorProto.UINT8}, "output_dtype is 2; expected 3, as y is int8"),
        ({"axis": 1.5}, "attribute axis.*expected INT"),
    ],
    ids=str,
)
def test_wrong_attributes_are_refused_at_load(attributes, message):
    with pytest.raises(Exception, match=message):
        our_session(one_node("quantize", "int8", domain="", attributes=attributes, opset=25))


AS_X = r"expected the shape of x, \(4, 6\), except along axis 1"


@pytest.mark.parametrize(
    ("attributes", "x", "scale", "message"),
    [
        ({"block_size": 2}, (4, 6), (4, 2), r"block_size is 2; expected one that divides x of shape \(4, 6\) along axis 1"),
        ({"block_size": 2}, (4, 6), (3, 3), rf"y_scale has shape \(3, 3\); {AS_X}"),
        ({"block_size": 2}, (4, 6), (6,), r"block_size is 2, y_scale has shape \(6,\); expected as many dimensions as x"),
        ({}, (4, 6), (4, 3), r"y_scale has shape \(4, 3\); expected a scalar, one element, one dimension"),
    ],
    ids=str,
)
def test_shapes_are_checked_in_the_run(attributes, x, scale, message):
    wrong = our_session(one_node("quantize", "int8", domain="", attributes=attributes, opset=25))
    with pytest.raises(Exception, match=rf"ai\.onnx::QuantizeLinear: {message}"):
        run(wrong, x=np.ones(x, np.float32), scale=np.ones(scale, np.float32), zero_point=np.zeros(scale, np.int8))


def test_off_by_default():
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        session(node("quantize", "bfloat16", "bfloat16", "int8"))


def test_registering_again():
    options = onnxruntime.SessionOptions()
    assert quark_numba.register(options, qdq="float") == "native"
    assert quark_numba.register(options, qdq="float") == quark_numba.register(options) == "native"
    with pytest.raises(ValueError, match="qdq is 'float', backend 'extensions'; expected 'native' or None"):
        quark_numba.register(onnxruntime.SessionOptions(), backend="extensions", qdq="float")


def test_registering_again_with_another_qdq():
    options = onnxruntime.SessionOptions()
    source = node("quantize", "bfloat16", "bfloat16", "int8")
    for qdq in ("auto", "onnxruntime", "float", "float", "auto"):
        assert quark_numba.register(options, qdq=qdq) == "native"
    with pytest.raises(ValueError, match="qdq is 'onnxruntime', but session_options are registered with 'float' already"):
        quark_numba.register(options, qdq="onnxruntime")
    with pytest.raises(ValueError, match="qdq is 'onnxruntime', but session_options are registered with 'float' already"):
        quark_numba.InferenceSession(source, options, qdq="onnxruntime")
    options.register_custom_ops_library(quark_numba.get_library_path())
    onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_an_older_onnx_runtime(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.30.2")
    with pytest.raises(RuntimeError, match=r"qdq='float' needs ONNX Runtime 1\.31 or later; this is 1\.30\.2"):
        quark_numba.register(onnxruntime.SessionOptions(), qdq="float")
