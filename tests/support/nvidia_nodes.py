"""Random nodes of the operators of TensorRT and of the package's own, models of one node, and the results that the oracle
expects."""

import ml_dtypes
import numpy as np
import nvidia_oracle
from onnx import helper
from onnx_models import model
from other_quantizers import NVIDIA_OPERATORS

from quark_numba.catalog import OPERATORS
from quark_numba.element_types import find

f32 = np.float32
BFLOAT16, FLOAT8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn

ORACLES = {name: versions[1] for name, versions in NVIDIA_OPERATORS.items()}


def nvfp4_round_trip(x, scale, *, axis=-1, block_size=16):
    codes, scales = nvidia_oracle.fp4_dynamic_quantize(x, scale, axis=axis, block_size=block_size)
    factors = nvidia_oracle.dequantize_linear(scales, np.float32(scale))
    return nvidia_oracle.dequantize_linear(codes, factors, axis=axis, block_size=block_size)


def mxfp8_round_trip(x, *, axis=-1, block_size=32):
    attributes = {"axis": axis, "block_size": block_size}
    return nvidia_oracle.mxfp8_dequantize(*nvidia_oracle.mxfp8_dynamic_quantize(x, **attributes), **attributes)


OWN = {"NVFP4QuantizeDequantize": nvfp4_round_trip, "MXFP8QuantizeDequantize": mxfp8_round_trip}


def expected_of(name, inputs, attributes):
    found = (ORACLES | OWN)[name](*inputs, **attributes)
    return found if isinstance(found, tuple) else (found,)


def type_name(array):
    return find(array.dtype).name


def one_node(name, inputs, attributes, expected, declared=None):
    """Return a model of one node. `declared` is the element type that it declares for the first output."""
    operator = OPERATORS.find("quark_numba" if name in OWN else "trt", name)
    names = [parameter.name for parameter, _ in zip(operator.inputs, inputs, strict=False)]
    outputs = [parameter.name for parameter in operator.outputs]
    types = [type_name(each) for each in expected]
    types[0] = declared or types[0]
    node = helper.make_node(name, names, outputs, domain=operator.domain, **attributes)
    return model(
        [node],
        [(each, type_name(array), None) for each, array in zip(names, inputs, strict=True)],
        [(each, of_type, None) for each, of_type in zip(outputs, types, strict=True)],
        domains=[operator.domain],
        opset=23,
    )


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3.4e38, -3.4e38]


def values(rng, shape, dtype):
    """Return numbers of one of many magnitudes, some of them special."""
    x = rng.normal(0, 1, shape) * 2.0 ** rng.integers(-140, 120)
    if rng.random() < 0.5:
        x = rng.normal(0, 3, shape)
    if rng.random() < 0.5 and x.size:
        places = rng.integers(0, x.size, max(1, x.size // 40))
        x.reshape(-1)[places] = rng.choice(SPECIAL, len(places))
    with np.errstate(over="ignore"):
        return x.astype(f32).astype(dtype)


def shape_and_blocks(rng, usual):
    """Return a shape, an axis, and a block size that divides it."""
    rank = int(rng.integers(1, 5))
    shape = rng.integers(1, 9, rank).tolist()
    axis, block_size = int(rng.integers(-rank, rank)), int(rng.choice([usual, usual, 1, 2, 3, 5, 7, 64]))
    shape[axis] = block_size * int(rng.integers(1, 5))
    if rng.random() < 0.1:
        shape[int(rng.integers(rank))] = 0
    return shape, axis, block_size


def random_node(name, rng):
    """Return inputs and attributes of a node."""
    dtype = [f32, f32, np.float16, BFLOAT16][rng.integers(4)]
    if name in ("QuantizeLinear", "TRT_FP8QuantizeLinear"):
        x = values(rng, rng.integers(0, 9, rng.integers(0, 4)), dtype)
        scale = np.array(2.0 ** rng.uniform(-14, 14), dtype)
        attributes = {"saturate": int(rng.random() < 0.8)} if rng.random() < 0.5 else {}
        zero_point = [np.zeros((), FLOAT8)] if name == "QuantizeLinear" and rng.random() < 0.7 else []
        return [x, scale, *zero_point], attributes
    if name in ("DequantizeLinear", "TRT_FP8DequantizeLinear"):
        codes = ["float8e4m3fn", "uint8", "int8", "int4", "uint4", "float4e2m1"]
        row = find(str(rng.choice(codes[: 2 if name.startswith("TRT") else None])))
        shape, axis, block_size = shape_and_blocks(rng, 16)
        x = rng.integers(0, 2**row.bits, shape, np.uint8).view(row.dtype)
        kind = rng.integers(3)
        of_scale = () if kind == 0 else [shape[axis]] if kind == 1 else shape
        attributes = [{}, {"axis": axis}, {"axis": axis, "block_size": block_size}][kind]
        if kind == 2:
            of_scale = [length // block_size if i == axis % len(shape) else length for i, length in enumerate(shape)]
        scale = rng.normal(0, 1, of_scale).astype(dtype)
        zero_point = [rng.integers(0, 2**row.bits, of_scale, np.uint8).view(row.dtype)] if rng.random() < 0.3 else []
        return [x, scale, *zero_point], attributes
    shape, axis, block_size = shape_and_blocks(rng, 16 if "FP4" in name else 32)
    attributes = {"axis": axis, "block_size": block_size}
    if name == "TRT_MXFP8DequantizeLinear":
        of_scale = [length // block_size if i == axis % len(shape) else length for i, length in enumerate(shape)]
        codes = rng.integers(0, 256, shape, np.uint8).view(FLOAT8)
        attributes["output_dtype"] = int(rng.choice([1, 10, 16]))
        return [codes, rng.integers(0, 256, of_scale, np.uint8)], attributes
    x = values(rng, shape, f32 if name in OWN else dtype)
    scale = np.array(2.0 ** rng.uniform(-30, 10), f32).reshape([(), (1,)][rng.integers(2)])
    return [x, scale] if "FP4" in name else [x], attributes
