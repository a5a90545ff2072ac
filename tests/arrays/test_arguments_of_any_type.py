"""Public functions, called with arguments of any type, return a result or raise an error of the documented types."""

import functools
import random
import time
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference.op_run import OpRun

import quark_numba

pytestmark = pytest.mark.compiled


X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
ARRAYS = [X, X.astype(np.float16), X.astype(ml_dtypes.bfloat16), X.astype(">f4"), X.astype(np.float64), X.astype(np.int32)]
ARRAYS += [X[::-1, :, ::2], np.asfortranarray(X), np.zeros((0, 3), np.float32), np.array(0.5, np.float32), np.float32(0.5)]
ARRAYS += [np.ones(3, np.float32), np.ones((2, 3, 2), np.float32), np.zeros(3, np.int8), np.array(7, np.uint8)]
ARRAYS += [np.zeros((2, 3, 2), ml_dtypes.int4), np.arange(24, dtype=np.uint8).reshape(2, 3, 4)]
ARRAYS += [np.arange(24, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn), np.ones((), ml_dtypes.float8_e8m0fnu)]
ARRAYS += [np.array(["a", "b"]), np.array([None, {}], object), np.array([(1, 2)], [("a", "i4"), ("b", "f4")])]
ARRAYS += [np.ma.masked_array([1.0, 2.0], [0, 1]), np.array([1 + 2j]), np.array(["2026-11-21"], "datetime64[D]")]

OTHERS = [None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**64, -(2**70), 0.5, 1e300, float("nan"), float("inf"), 1j]
OTHERS += ["", ",", "int8", "float8e4m3fn", "bfloat16", "int3", b"int8", np.int8, np.dtype("f2"), int, object]
OTHERS += [21, 28, np.int64(3), np.bool_(True), [], [1, 2, 3], [[1.0], [2.0, 3.0]], (2, 3), {}, {"a": 1}, set(), range(3)]
OTHERS += [lambda: 0, object(), ..., NotImplemented, 10**400]
OTHERS += [onnx.TensorProto(data_type=1, dims=[2], raw_data=b"12345678")]
OTHERS += [onnx.TensorProto(data_type=22, dims=[3], raw_data=b"ab")]
OTHERS += [onnx.TensorProto(data_type=99), onnx.TensorProto(data_type=2, dims=[1 << 40]), onnx.ModelProto()]
OTHERS += [onnx.TensorProto(data_type=1, dims=[1], data_location=1), memoryview(b"abcd"), bytearray(b"ab")]

# Values that fit an argument, which a random choice would seldom find.
FITTING = {
    "packed": [np.arange(2, dtype=np.uint8)],
    "shape": [3, 4, 8, (2, 2), (1, 3)],
    "dtype": ["int4", "uint4", "uint2", 22],
    "session_options": [None],
    "codes": [np.zeros((2, 3, 4), np.int8), np.zeros((2, 3, 4), ml_dtypes.float4_e2m1fn), np.int8(3)],
    "w": [np.ones((2, 8, 4), np.float32)],
    "r": [np.ones((2, 8, 2), np.float32)],
    "scales": [np.ones((2, 1, 4), ml_dtypes.float8_e8m0fnu), np.ones((), ml_dtypes.float8_e8m0fnu)],
    "blocks": [
        quark_numba.BFPBlocks(np.ones((2, 3, 4), np.uint8), np.full((2, 1, 4), 127, np.uint8), np.zeros((2, 1, 4), np.uint8))
    ],
}

MX = ("element_dtype", "axis", "block_size", "rounding_mode")
BFP = ("bfp_method", "axis", "bit_width", "block_size", "rounding_mode", "sub_block_size", "sub_block_shift_bits")
ATTRIBUTES = ("axis", "block_size", "opset", "out")
# The attributes of a layer that accepts x of shape (2, 3, 4).
SCALES = tuple(f"{name}_scale" for name in "xwrby")
ZERO_POINTS = tuple(f"{name}_zero_point" for name in "xwrby")
OF_LAYER = dict.fromkeys(SCALES, 1e-4) | dict.fromkeys(ZERO_POINTS, 32768)
LAYER = functools.partial(quark_numba.extended_lstm, b=np.ones((2, 16), np.float32), hidden_size=2, **OF_LAYER)
LAYER.__name__ = "extended_lstm"

FUNCTIONS = {
    quark_numba.extended_instance_normalization: (("x", "scale", "bias"), ("epsilon",)),
    LAYER: (("x", "w", "r"), ("b", "hidden_size", "direction", "layout", "input_forget", *SCALES, *ZERO_POINTS)),
    quark_numba.quantize: (("x", "scale", "zero_point"), (*ATTRIBUTES, "dtype", "saturate", "precision")),
    quark_numba.dequantize: (("x", "scale", "zero_point"), (*ATTRIBUTES, "output_dtype")),
    quark_numba.bfp_quantize_dequantize: (("x",), (*BFP, "convert_to_bfloat_before_bfp", "out")),
    quark_numba.mx_quantize_dequantize: (("x",), (*MX, "out")),
    quark_numba.bfp_quantize: (("x",), BFP),
    quark_numba.mx_quantize: (("x",), MX),
    quark_numba.bfp_dequantize: (("blocks",), ("bfp_method", "axis", "bit_width", "block_size", "output_dtype")),
    quark_numba.mx_dequantize: (("codes", "scales"), ("axis", "block_size", "output_dtype")),
    quark_numba.pack: (("array",), ()),
    quark_numba.unpack: (("packed", "shape", "dtype"), ()),
    quark_numba.to_tensor_proto: (("array",), ("name",)),
    quark_numba.from_tensor_proto: (("tensor",), ("base_dir",)),
    quark_numba.register: (("session_options",), ("backend", "qdq")),
    quark_numba.reference_ops: ((), ("qdq",)),
    quark_numba.get_library_path: ((), ()),
    quark_numba.register_schemas: ((), ()),
}


def fresh(value, rng):
    """Return a copy of an array in half of the cases, else the value itself. A write to a copy changes no other argument."""
    if isinstance(value, np.ndarray) and rng.random() < 0.5:
        return value.copy(order="K")
    return value


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("seconds", [0.2, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.by_default(1)
def test_any_arguments(function, seconds):
    positional, keywords = FUNCTIONS[function]
    rng, end, calls, results = random.Random(0), time.monotonic() + seconds, 0, 0
    while calls < 50 or (time.monotonic() < end and positional + keywords):
        calls += 1
        likely = rng.random() < 0.7  # mostly arrays, because few other values reach a kernel
        pool = ARRAYS if likely else ARRAYS + OTHERS
        arguments = [
            fresh(rng.choice(FITTING.get(name, pool) if likely else pool), rng) for name in positional[: rng.randint(1, 3)]
        ]
        attributes = {name: fresh(rng.choice(OTHERS + ARRAYS), rng) for name in keywords if rng.random() < 0.2}
        if function is quark_numba.register and rng.random() < 0.7:
            arguments = [onnxruntime.SessionOptions()]
        out = attributes.get("out")
        before = out.copy() if isinstance(out, np.ndarray) else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(*arguments, **attributes)
        except (TypeError, ValueError, RuntimeError) as error:
            assert str(error), (function, arguments, attributes)  # noqa: PT017
            if before is not None:
                assert before.tobytes() == out.tobytes(), (arguments, attributes)
        except OSError:
            assert function is quark_numba.from_tensor_proto  # for a missing file of external data
        else:
            results += 1
            assert isinstance(result, np.ndarray | onnx.TensorProto | str | list | tuple | None)
            if isinstance(result, list):
                assert all(issubclass(each, OpRun) for each in result)
    assert results


def test_arguments_that_are_missing_or_unknown():
    for function, (positional, _) in FUNCTIONS.items():
        if positional:
            with pytest.raises(TypeError, match=positional[0]):
                function()
        with pytest.raises(TypeError, match="unknown"):
            function(*[1.0] * len(positional), unknown=1)
