"""Models in ONNX's standard operators: the nodes of the linear family against the oracle, and what holds for all families."""

import itertools

import numpy as np
import oracle
import pytest
import samples
from granularities import cell, granularities, key_id
from onnx import helper
from onnx_models import model, run
from rewritten_models import constant
from standard_models import LEVELS, in_standard_operators, plain_session

from quark_numba.element_types import find
from quark_numba.linear.dispatch import TABLE
from quark_numba.rewriting.onnx_runtime import casts_to
from quark_numba.rewriting.optimize import optimized

OPSET = 25
OWN = {"quantize": "Quantize", "dequantize": "Dequantize", "quantize_dequantize": "QuantizeDequantizeLinear"}


def node_model(key, x_shape, scale, zero_point, are_constants, opset=OPSET, **attributes):
    """Return a model of one node of the package. The scale and the zero point are constants, or inputs of the graph."""
    parameters = {"scale": scale} | ({} if zero_point is None else {"zero_point": zero_point})
    if key.operation == "quantize":
        attributes |= {"precision": key.precision.number, "output_dtype": key.y.number}
    elif key.operation == "dequantize":
        attributes["output_dtype"] = key.y.number
    if key.operation != "dequantize":
        attributes["saturate"] = int(key.saturate)
    node = helper.make_node(OWN[key.operation], ["x", *parameters], ["y"], domain="quark_numba", **attributes)
    inputs = [("x", key.x.name, x_shape)]
    if not are_constants:
        inputs += [(name, find(array.dtype).name, array.shape) for name, array in parameters.items()]
    initializers = [constant(name, array) for name, array in parameters.items()] if are_constants else []
    return model([node], inputs, [("y", key.y.name, x_shape)], initializers=initializers, opset=opset), parameters


def expected(key, x, scale, zero_point):
    name = key.quantized.name
    if key.operation == "dequantize":
        return oracle.dequantize(x, scale, zero_point, name, key.y.name)
    codes = oracle.quantize(x, scale, zero_point, name, precision=key.precision.name, saturate=key.saturate)
    return codes if key.operation == "quantize" else oracle.dequantize(codes, scale, zero_point, name)


def reason(key, opset=OPSET):
    """Return why nodes of a key have no form. ONNX has no Cast of 6 bits up to this opset."""
    if key.operation == "quantize" and key.precision.name == "float64" and not key.quantized.is_integer:
        return f"a float64 would be rounded to {key.quantized.name} twice"
    if key.operation == "quantize" and key.x.name == "int32" and key.precision.bits == 16:
        return f"an int32 would be rounded to {key.precision.name} twice"
    has_codes = key.operation != "quantize_dequantize"
    return f"opset {opset} has no Cast of {key.quantized.name}" if key.quantized.bits == 6 and has_codes else None


def assert_right(key, source, x, scale, zero_point, spread, are_constants, levels=LEVELS, operators="standard"):
    """Assert that the standard form gives the bits of the oracle."""
    why = reason(key)
    if why:
        assert list(optimized(source, operators=operators).left) == [(f"quark_numba::{OWN[key.operation]}", why)]
        return
    standard = in_standard_operators(source, operators=operators)
    casts = {node.attribute[0].i for node in standard.graph.node if node.op_type == "Cast"}
    if not all(casts_to(find(each)) for each in casts if find(each)):
        return  # ONNX Runtime lacks it
    feeds = {"x": x} | ({} if are_constants else {"scale": scale} | ({} if zero_point is None else {"zero_point": zero_point}))
    for level in levels:
        y = run(plain_session(standard, level=level), **feeds)
        oracle.assert_same_bits(y, expected(key, x, *spread))


@pytest.mark.parametrize("key", TABLE, ids=key_id)
@pytest.mark.covering
def test_every_type(key):
    """One scale and zero point, on inputs that are hard for the type."""
    name, quick = key.quantized.name, LEVELS[:1]
    scales = np.array([0.1, 2.0**-7, 1, -3.0, 1e-30, 1e30, 0, np.inf, np.nan], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        scales = scales.astype(oracle.dtype(scale_type(key)))
    for scale, zero_point in zip(scales, itertools.cycle([None, *samples.zero_points(name)])):
        scale = np.asarray(scale)
        if zero_point is None and key.operation != "dequantize":
            zero_point = samples.zero_points(name)[0]
        size = abs(float(scale)) if 0 < abs(float(scale)) < 1e20 else 1.0
        x = samples.inputs(key.x.name, name, size, 0 if zero_point is None else zero_point)
        source, _ = node_model(key, [None], scale, zero_point, True)
        assert_right(key, source, x, scale, zero_point, (scale, zero_point), True, LEVELS if float(scale) == 1 else quick)
        if reason(key):
            break


def scale_type(key):
    """The type of the scales that are tried: the one that the division is done in, if there is one."""
    return "float32" if key.operation == "dequantize" or key.precision.name == "float64" else key.precision.name


ROUNDED = [key for key in TABLE if key.operation == "quantize_dequantize" and not key.quantized.is_integer and key.saturate]


@pytest.mark.parametrize("key", ROUNDED, ids=key_id)
def test_without_casts(key):
    """What is written for WebGPU has no Cast to a float type."""
    name = key.quantized.name
    for scale, zero_point in [(1, 0), (0.1, 0), (-3, samples.zero_points(name)[-1]), (1e30, 0), (np.inf, 0), (np.nan, 0)]:
        scale, zero_point = np.array(scale, np.float32), np.array(zero_point).astype(oracle.dtype(name))
        x = samples.inputs("float32", name, float(scale) if 0 < scale < 1e20 else 1.0, zero_point)
        source, _ = node_model(key, [None], scale, zero_point, True)
        standard = in_standard_operators(source, operators="webgpu")
        assert "Cast" not in {node.op_type for node in standard.graph.node}
        assert_right(key, source, x, scale, zero_point, (scale, zero_point), True, operators="webgpu")


@pytest.mark.parametrize("key", [key for key in TABLE if key.x.name == "float32" or key.y.name == "float32"], ids=key_id)
@pytest.mark.parametrize("are_constants", [True, False], ids=["constants", "computed"])
@granularities
@pytest.mark.covering
def test_granularities(key, granularity, are_constants):
    name = key.quantized.name
    x_shape, (scale, zero_point), spread, attributes = cell(granularity, scale_type(key), name, True)
    x = np.random.default_rng(7).choice(samples.inputs(key.x.name, name, 0.5, 0), x_shape)
    source, _ = node_model(key, x_shape, scale, zero_point, are_constants, **attributes)
    assert_right(key, source, x, scale, zero_point, spread, are_constants)
