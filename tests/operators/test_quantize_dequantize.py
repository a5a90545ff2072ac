"""`quantize_dequantize` and quark_numba::QuantizeDequantizeLinear against the oracle's two steps."""

import ml_dtypes
import numpy as np
import onnx
import oracle
import pytest
import samples
from granularities import GRANULARITIES, cell, keys
from onnx import checker
from onnx.reference import ReferenceEvaluator
from onnx_models import INFERS, RELEASE, assert_inference_refuses, infers, one_node, run, session

import quark_numba
from quark_numba import quantize_dequantize
from quark_numba.element_types import find
from quark_numba.linear.versions import types
from quark_numba.ort import extensions

NAMES = [row.name for row in types("quantize_dequantize", "quantized")]
in_sessions = pytest.mark.parametrize("name", [name for name in NAMES if find(name).has_tensors(RELEASE)])
DEFAULT_ATTRIBUTES = {"axis": 1, "block_size": 0, "saturate": 1}


def expected(x, scale, zero_point, name, saturate=True):
    return oracle.dequantize(oracle.quantize(x, scale, zero_point, name, saturate=saturate), scale, zero_point, name)


def fused(name, **attributes):
    return one_node("quantize_dequantize", name, domain="quark_numba", attributes=DEFAULT_ATTRIBUTES | attributes)


@keys("quantize_dequantize")
@pytest.mark.by_default(1)
def test_kernel(key):
    """The inputs include every tie of the type and both its neighbours."""
    name = key.quantized.name
    for scale in np.array(samples.SCALES, np.float32):
        for zero_point in samples.zero_points(name):
            x = samples.floats(name, scale, zero_point)
            pieces = [quantize_dequantize(piece, scale, zero_point, saturate=key.saturate) for piece in samples.pieces(x)]
            oracle.assert_same_bits(np.concatenate(pieces), expected(x, scale, zero_point, name, key.saturate))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.by_default(1)
def test_granularity(granularity, name):
    for with_zero_point in (True, False):
        x_shape, parameters, spread, attributes = cell(granularity, "float32", name, with_zero_point)
        x = np.random.default_rng(6).normal(0, 20, x_shape).astype(np.float32)
        y = quantize_dequantize(x, *parameters, dtype=name, **attributes)
        oracle.assert_same_bits(y, expected(x, *spread, name))


@pytest.mark.slow
def test_out_strides_and_threads():
    x = np.random.default_rng(7).normal(0, 20, (501, 803)).astype(np.float32)
    for each in (x, np.asfortranarray(x), x[::2, ::-1]):
        y = quantize_dequantize(each, np.float32(0.3), dtype="int8", out=(out := np.empty_like(each)))
        assert y is out
        oracle.assert_same_bits(y, expected(each, np.float32(0.3), None, "int8"))
    in_place = x.copy()
    quantize_dequantize(in_place, np.float32(0.3), out=in_place)
    oracle.assert_same_bits(in_place, expected(x, np.float32(0.3), None, "uint8"))


X, SCALE = np.ones((2, 3), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "x has element type float16; expected float32", {"x": X.astype(np.float16)}),
        (TypeError, "x has element type object; expected float32", {"x": None}),
        (TypeError, "scale has element type float16; expected float32", {"scale": SCALE.astype(np.float16)}),
        (ValueError, r"scale has shape \(4,\)", {"scale": np.ones(4, np.float32)}),
        (ValueError, r"zero_point has shape \(2,\); expected the shape of scale", {"zero_point": np.zeros(2, np.int8)}),
        (TypeError, "zero_point has element type float32; expected uint8 or", {"zero_point": SCALE}),
        (TypeError, "zero_point has element type int8; expected int4", {"zero_point": SCALE.astype("i1"), "dtype": "int4"}),
        (TypeError, "dtype has element type float32; expected uint8 or", {"dtype": "float32"}),
        (TypeError, "axis is 1.0; expected an integer", {"axis": 1.0}),
        (ValueError, "axis is 2, out of range", {"axis": 2}),
        (ValueError, "block_size is -1; expected", {"block_size": -1}),
        (ValueError, "saturate is 2; expected True or False", {"saturate": 2}),
        (TypeError, "out has dtype float16", {"out": np.empty((2, 3), np.float16)}),
        (ValueError, r"out has shape \(3, 2\)", {"out": np.empty((3, 2), np.float32)}),
    ],
)
def test_wrong_arguments(error, message, arguments):
    out = np.full((2, 3), 7, np.float32)
    with pytest.raises(error, match=message):
        quantize_dequantize(**({"x": X, "scale": SCALE, "out": out} | arguments))
    assert (out == 7).all()


def test_zero_point_without_a_dtype():
    assert quantize_dequantize([[-3.0, 300.0]], 1.0, 1, dtype="int8").tolist() == [[-3, 126]]
    assert quantize_dequantize([[0.3]], 0.5, dtype=ml_dtypes.bfloat16).tolist() == [[0.30078125]]


@pytest.mark.compiled
@in_sessions
@pytest.mark.by_default(1)
def test_native_node(name):
    for granularity, saturate in [*((granularity, 1) for granularity in GRANULARITIES), ("per_axis", 0)]:
        x_shape, (scale, zero_point), spread, attributes = cell(granularity, "float32", name, True)
        x = np.random.default_rng(6).normal(0, 20, x_shape).astype(np.float32)
        y = run(session(fused(name, saturate=saturate, **attributes)), x=x, scale=scale, zero_point=zero_point)
        oracle.assert_same_bits(y, expected(x, *spread, name, bool(saturate)))
    scale, zero_point = np.float32(0.37), samples.zero_points(name)[-1]
    x = samples.floats(name, scale, zero_point)
    y = run(session(fused(name)), x=x, scale=scale, zero_point=zero_point)
    oracle.assert_same_bits(y, expected(x, scale, zero_point, name))


@pytest.mark.compiled
@in_sessions
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.by_default(1)
def test_extensions_node(granularity, name):
    if not extensions.carries(find(name)):
        with pytest.raises(Exception, match=r"Type 'tensor\(.*\)'.*QuantizeDequantizeLinear"):
            session(fused(name), backend="extensions")
        return
    x_shape, (scale, zero_point), spread, attributes = cell(granularity, "float32", name, True)
    x = np.random.default_rng(6).normal(0, 20, x_shape).astype(np.float32)
    y = run(session(fused(name, **attributes), backend="extensions"), x=x, scale=scale, zero_point=zero_point)
    oracle.assert_same_bits(y, expected(x, *spread, name))


@pytest.mark.compiled
@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_the_zero_point_is_needed(backend):
    source = one_node("quantize_dequantize", "uint8", domain="quark_numba", attributes=DEFAULT_ATTRIBUTES, zero_point=False)
    with pytest.raises(Exception, match=r"QuantizeDequantizeLinear.*(input size 2|Required input 2)"):
        session(source, backend=backend)


@pytest.mark.compiled
def test_wrong_shapes_in_a_session():
    node = session(fused("int8"))
    with pytest.raises(Exception, match=r"quark_numba::QuantizeDequantizeLinear: zero_point has shape \(2,\)"):
        run(node, x=X, scale=SCALE, zero_point=np.zeros(2, np.int8))


@in_sessions
@pytest.mark.by_default(1)
def test_schema_and_evaluator(name):
    quark_numba.register_schemas()
    x_shape, (scale, zero_point), spread, attributes = cell("blocks_along_last_axis", "float32", name, True)
    shapes = {"x": x_shape, "scale": scale.shape, "zero_point": scale.shape, "y": x_shape}
    source = one_node(
        "quantize_dequantize", name, domain="quark_numba", attributes={"saturate": 1} | attributes, shapes=shapes, opset=22
    )
    known_type = hasattr(onnx.TensorProto, name.upper())
    if known_type:
        checker.check_model(source, full_check=True)
    if INFERS and known_type:
        x = np.random.default_rng(6).normal(0, 20, x_shape).astype(np.float32)
        evaluator = ReferenceEvaluator(source, new_ops=quark_numba.reference_ops())
        (y,) = evaluator.run(None, {"x": x, "scale": scale, "zero_point": zero_point})
        oracle.assert_same_bits(y, expected(x, *spread, name))


@infers
@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ({"scale": [4], "zero_point": [4]}, {}, r"scale has shape \[4\]; expected as many elements"),
        ({"scale": [2, 2], "zero_point": [2, 2]}, {"block_size": 1}, "block_size is 1; expected one that divides"),
        ({"scale": [], "zero_point": [2]}, {}, r"zero_point has shape \[2\]"),
        ({}, {"block_size": 1.0}, "attribute block_size is a FLOAT; expected INT"),
    ],
)
def test_schema_refuses(shapes, attributes, message):
    shapes = {"x": [2, 3], "scale": [], "zero_point": [], "y": [2, 3]} | shapes
    source = one_node("quantize_dequantize", "int8", domain="quark_numba", attributes=attributes, shapes=shapes)
    assert_inference_refuses(source, message)
