"""Every wrong argument of a direct call is named, with what came and what is expected; nothing is written."""

import numpy as np
import onnxruntime
import pytest

import quark_numba
from quark_numba import dequantize, quantize

X = np.ones((2, 3), np.float32)
CODES = np.ones((2, 3), np.int8)
SCALE = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "x has element type float64; expected float32", {"x": X.astype(np.float64)}),
        (TypeError, "x has element type int32; expected float32", {"x": X.astype(np.int32)}),
        (TypeError, "x has dtype <U1; expected numbers of float32", {"x": ["a"]}),
        (TypeError, "x has dtype object; expected numbers of float32", {"x": [None]}),
        (TypeError, "x has dtype bool; expected numbers of float32", {"x": [True]}),
        (TypeError, "x has element type object; expected float32", {"x": None}),
        (ValueError, "x is not an array: .*inhomogeneous", {"x": [[1], [1, 2]]}),
        (TypeError, "y_scale has element type float64; expected float32", {"y_scale": np.float64(1)}),
        (TypeError, "y_scale has element type int64; expected float32", {"y_scale": np.ones(3, np.int64)}),
        (TypeError, "y_scale has element type <U1; expected float32", {"y_scale": "1"}),
        (ValueError, r"y_scale has shape \(2, 3\); expected a scalar", {"y_scale": X, "y_zero_point": CODES}),
        (ValueError, r"y_scale has shape \(4,\); .* x of shape \(2, 3\) has along axis 1", {"y_scale": np.ones(4, np.float32)}),
        (ValueError, r"y_scale has shape \(0,\)", {"y_scale": np.ones(0, np.float32)}),
        (TypeError, "y_zero_point has element type int64; expected .* or bfloat16", {"y_zero_point": np.zeros(3, np.int64)}),
        (TypeError, "y_zero_point has element type float32; expected", {"y_zero_point": np.zeros(3, np.float32)}),
        (ValueError, r"y_zero_point has shape \(\); expected the shape of y_scale, \(3,\)", {"y_zero_point": np.int8(0)}),
        (ValueError, r"y_zero_point has shape \(4,\); expected", {"y_zero_point": np.zeros(4, np.int8)}),
        (ValueError, r"y_zero_point is 256; expected uint8, 0\.\.255", {"y_scale": 1.0, "y_zero_point": 256}),
        (ValueError, "y_zero_point is -1; expected uint8", {"y_scale": 1.0, "y_zero_point": -1}),
        (ValueError, "y_zero_point is 0.5; expected uint8", {"y_scale": 1.0, "y_zero_point": 0.5}),
        (
            ValueError,
            "y_zero_point is 10000000000.0; expected float16",
            {"y_scale": 1.0, "y_zero_point": 1e10, "output_dtype": "f2"},
        ),
        (ValueError, r"y_scale is 1e\+300; expected float32", {"y_scale": 1e300}),
        (ValueError, "axis is 2, out of range", {"axis": 2}),
        (ValueError, "axis is -3, out of range", {"axis": -3}),
        (TypeError, "axis is 1.0; expected an integer", {"axis": 1.0}),
        (TypeError, "axis is None; expected an integer", {"axis": None}),
        (TypeError, "output_dtype has element type float64; expected", {"output_dtype": "float64"}),
        (TypeError, "output_dtype has element type float32; expected", {"output_dtype": np.float32}),
        (TypeError, "output_dtype has element type 1; expected", {"output_dtype": 1}),
        (TypeError, r"output_dtype has element type \[\]; expected", {"output_dtype": []}),
        (TypeError, "output_dtype has element type 2.0; expected", {"output_dtype": 2.0}),
        (
            TypeError,
            "y_zero_point has element type int8; expected uint8",
            {"y_zero_point": np.zeros(3, np.int8), "output_dtype": "uint8"},
        ),
        (TypeError, "out is a list; expected a numpy array", {"out": [0]}),
        (TypeError, "out has dtype int8; expected uint8", {"out": np.zeros((2, 3), np.int8)}),
        (TypeError, "out has dtype >i2; expected int16", {"out": np.zeros((2, 3), ">i2"), "output_dtype": "int16"}),
        (ValueError, r"out has shape \(3, 2\); expected the shape of x, \(2, 3\)", {"out": np.zeros((3, 2), np.uint8)}),
        (ValueError, r"out has shape \(6,\)", {"out": np.zeros(6, np.uint8)}),
        (ValueError, "out is read-only", {"out": np.broadcast_to(np.uint8(0), (2, 3))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_quantize(error, message, arguments):
    out = np.full((2, 3), 77, np.uint8)
    with pytest.raises(error, match=message):
        quantize(**({"x": X, "y_scale": SCALE, "out": out} | arguments))
    assert (out == 77).all()


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "x has element type float32; expected uint8 or .* bfloat16", {"x": X}),
        (TypeError, "x has element type int64; expected", {"x": [1, 2]}),
        (TypeError, "x_scale has element type float16; expected float32", {"x_scale": np.float16(1)}),
        (ValueError, r"x_scale has shape \(3, 1\); expected a scalar", {"x_scale": SCALE[:, None]}),
        (TypeError, "x_zero_point has element type uint8; expected int8", {"x_zero_point": np.zeros(3, np.uint8)}),
        (ValueError, r"x_zero_point is \[0, 0, 300\]; expected int8, -128\.\.127", {"x_zero_point": [0, 0, 300]}),
        (ValueError, r"x_zero_point has shape \(2,\); expected the shape of x_scale", {"x_zero_point": [0, 0]}),
        (ValueError, "axis is 5, out of range", {"axis": 5}),
        (TypeError, "out has dtype float64; expected float32", {"out": np.zeros((2, 3))}),
        (ValueError, r"out has shape \(\)", {"out": np.zeros((), np.float32)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dequantize(error, message, arguments):
    out = np.full((2, 3), 77, np.float32)
    with pytest.raises(error, match=message):
        dequantize(**({"x": CODES, "x_scale": SCALE, "out": out} | arguments))
    assert (out == 77).all()


def test_register():
    with pytest.raises(TypeError, match=r"session_options is a NoneType; expected onnxruntime\.SessionOptions"):
        quark_numba.register(None)
    with pytest.raises(ValueError, match="backend is 'cuda'; expected"):
        quark_numba.register(onnxruntime.SessionOptions(), backend="cuda")


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        quark_numba.quantise  # noqa: B018
