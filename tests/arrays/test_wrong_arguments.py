"""The error for a wrong argument of a direct call names the argument, its value and the expected ones. `out` is not written."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import quark_numba
from quark_numba import dequantize, quantize

X = np.ones((2, 3), np.float32)
CODES = np.ones((2, 3), np.int8)
SCALE = np.ones(3, np.float32)
BLOCKS = np.ones((2, 2), np.float32)
E8M0 = np.ones(3, ml_dtypes.float8_e8m0fnu)


class Variable:
    """An array in a file, with missing values."""

    def __array__(self, dtype=None, copy=None):
        return np.ma.array(X)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"x has element type float64; expected float32.*: write x\.astype", {"x": X.astype(np.float64)}),
        (TypeError, r"x is a masked array.*: write x\.filled", {"x": np.ma.array(X)}),
        (TypeError, r"x is a masked array.*: write x\.filled", {"x": Variable()}),
        (ValueError, "scale is 1e-300; expected float32, .* no closer to 0", {"scale": 1e-300}),
        (ValueError, r"scale is \[1, 1e-300, 1\]; expected float32", {"scale": [1, 1e-300, 1]}),
        (ValueError, "scale is 1e[+]300; expected float32", {"scale": np.float64(1e300)}),
        (TypeError, "dtype has .* float8e4m3; .*; did you mean float8e4m3fn", {"dtype": "float8e4m3"}),
        (TypeError, "unexpected keyword argument 'output_dtype'", {"output_dtype": "int8"}),
        (TypeError, "x has element type int64; expected float32 or int32 or float16 or bfloat16", {"x": X.astype(np.int64)}),
        (TypeError, "x has element type int8; expected float32", {"x": CODES}),
        (TypeError, "x has element type float8_e4m3fn; expected float32", {"x": X.astype(ml_dtypes.float8_e4m3fn)}),
        (TypeError, "x has dtype <U1; expected numbers of float32", {"x": ["a"]}),
        (TypeError, "x has dtype object; expected numbers of float32", {"x": [None]}),
        (TypeError, "x has dtype bool; expected numbers of float32", {"x": [True]}),
        (TypeError, "x has element type object; expected float32", {"x": None}),
        (ValueError, "x is not an array: .*inhomogeneous", {"x": [[1], [1, 2]]}),
        (TypeError, "scale has element type float64; expected float32", {"scale": np.ones(1)}),
        (TypeError, "scale has element type int64; expected float32", {"scale": np.ones(3, np.int64)}),
        (TypeError, "scale has element type <U1; expected float32", {"scale": "1"}),
        (TypeError, "scale has element type int8; expected .* or float8e8m0", {"scale": CODES[0]}),
        (ValueError, r"scale has shape \(1, 2, 3\); expected a scalar, .* x of shape \(2, 3\)", {"scale": X[None]}),
        (
            ValueError,
            r"scale has shape \(3, 3\); expected the shape of x, \(2, 3\), except",
            {"scale": np.ones((3, 3), "f")},
        ),
        (ValueError, r"scale has shape \(4,\); .* x of shape \(2, 3\) has along axis 1", {"scale": np.ones(4, np.float32)}),
        (ValueError, r"scale has shape \(0,\)", {"scale": np.ones(0, np.float32)}),
        (TypeError, "block_size is 1.0; expected an integer", {"block_size": 1.0}),
        (TypeError, "block_size is None; expected an integer", {"block_size": None}),
        (ValueError, "block_size is -1; expected a positive integer, or 0", {"block_size": -1}),
        (ValueError, "block_size is -1; expected a positive integer, or 0", {"scale": BLOCKS, "block_size": -1}),
        (
            ValueError,
            r"block_size is 1, scale has shape \(3,\); expected as many dimensions as x of shape \(2, 3\), or block_size 0",
            {"block_size": 1},
        ),
        (
            ValueError,
            r"block_size is 1; expected one that divides x of shape \(2, 3\) along axis 1 into as many blocks as scale of "
            r"shape \(2, 2\) has",
            {"scale": BLOCKS, "block_size": 1},
        ),
        (ValueError, "block_size is 3; expected one that divides", {"scale": BLOCKS, "block_size": 3}),
        (ValueError, "block_size is 0; expected one that divides", {"scale": np.ones((2, 4), np.float32)}),
        (ValueError, "block_size is 0; expected one that divides", {"scale": np.ones((2, 0), np.float32)}),
        (
            ValueError,
            r"block_size is 0, and several would fit x of shape \(2, 9\) and scale of shape \(2, 2\) along axis 1",
            {"x": np.ones((2, 9), np.float32), "scale": BLOCKS},
        ),
        (
            ValueError,
            r"scale has shape \(2, 2\); expected the shape of x, \(2, 3\), except along axis 0",
            {"scale": BLOCKS, "block_size": 2, "axis": 0},
        ),
        (ValueError, "axis is 2, out of range", {"scale": BLOCKS, "block_size": 2, "axis": 2}),
        (ValueError, r"axis is 1, out of range for x of shape \(\)", {"x": 1.0, "scale": 1.0, "block_size": 1}),
        (
            ValueError,
            r"zero_point has shape \(2, 3\); expected the shape of scale, \(2, 2\)",
            {"scale": BLOCKS, "zero_point": CODES},
        ),
        (
            ValueError,
            r"zero_point has shape \(1, 4\); expected the shape of scale, \(2, 2\)",
            {"scale": BLOCKS, "zero_point": np.ones((1, 4), np.int8)},
        ),
        (
            ValueError,
            r"zero_point has shape \(\); expected the shape of scale, \(2, 2\)",
            {"scale": BLOCKS, "zero_point": np.int8(0)},
        ),
        (
            ValueError,
            r"zero_point has shape \(2, 2\); expected the shape of scale, \(3,\)",
            {"zero_point": np.ones((2, 2), np.int8)},
        ),
        (TypeError, "zero_point has element type int64; expected .* or bfloat16", {"zero_point": np.zeros(3, np.int64)}),
        (TypeError, "zero_point has element type float32; expected", {"zero_point": np.zeros(3, np.float32)}),
        (ValueError, r"zero_point has shape \(\); expected the shape of scale, \(3,\)", {"zero_point": np.int8(0)}),
        (ValueError, r"zero_point has shape \(4,\); expected", {"zero_point": np.zeros(4, np.int8)}),
        (ValueError, r"zero_point is 256; expected uint8, 0\.\.255", {"scale": 1.0, "zero_point": 256}),
        (ValueError, "zero_point is -1; expected uint8", {"scale": 1.0, "zero_point": -1}),
        (ValueError, "zero_point is 0.5; expected uint8", {"scale": 1.0, "zero_point": 0.5}),
        (
            ValueError,
            "zero_point is 10000000000.0; expected float16",
            {"scale": 1.0, "zero_point": 1e10, "dtype": "f2"},
        ),
        (
            ValueError,
            "zero_point is nan; expected float4e2m1",
            {"scale": 1.0, "zero_point": float("nan"), "dtype": "float4e2m1"},
        ),
        (ValueError, r"scale is 1e\+300; expected float32", {"scale": 1e300}),
        (ValueError, "axis is 2, out of range", {"axis": 2}),
        (ValueError, "axis is -3, out of range", {"axis": -3}),
        (TypeError, "axis is 1.0; expected an integer", {"axis": 1.0}),
        (TypeError, "axis is None; expected an integer", {"axis": None}),
        (TypeError, "dtype has element type float64; expected", {"dtype": "float64"}),
        (TypeError, "dtype has element type float32; expected", {"dtype": np.float32}),
        (TypeError, "dtype has element type 1; expected", {"dtype": 1}),
        (TypeError, "dtype has element type 0; expected", {"dtype": 0}),
        (TypeError, "dtype has element type ; expected", {"dtype": ""}),
        (TypeError, "dtype has element type float8e8m0; expected uint8 or", {"dtype": "float8e8m0"}),
        (TypeError, "dtype has element type float8_e8m0fnu; expected", {"dtype": E8M0.dtype}),
        (TypeError, "zero_point has element type float8_e8m0fnu; expected", {"zero_point": E8M0}),
        (
            TypeError,
            "precision .* int32; expected float32 or float16 or float64 or bfloat16",
            {"precision": "int32"},
        ),
        (TypeError, "precision has element type float8e4m3fn; expected", {"precision": "float8e4m3fn"}),
        (TypeError, "precision has element type 0; expected", {"precision": 0}),
        (TypeError, "precision has element type single precision; expected", {"precision": "single precision"}),
        (ValueError, "saturate is 2; expected True or False", {"saturate": 2}),
        (ValueError, "saturate is 'no'; expected True or False", {"saturate": "no"}),
        (ValueError, "saturate is None; expected True or False", {"saturate": None}),
        (ValueError, r"saturate is array\(\[1\]\); expected True or False", {"saturate": np.ones(1, int)}),
        (ValueError, r"opset is 9; expected 10\.\.28", {"opset": 9}),
        (ValueError, r"opset is 29; expected 10\.\.28", {"opset": 29}),
        (TypeError, "opset is '19'; expected an integer", {"opset": "19"}),
        (TypeError, "opset is 19.0; expected an integer", {"opset": 19.0}),
        (TypeError, "x has element type float16; expected float32 or int32", {"x": X.astype(np.float16), "opset": 13}),
        (TypeError, "scale has element type float32; expected float16", {"x": X.astype(np.float16), "opset": 19}),
        (TypeError, "scale has element type float32; expected int32", {"x": X.astype(np.int32), "opset": 21}),
        (TypeError, "scale has element type float16; expected float32", {"scale": SCALE.astype(np.float16), "opset": 21}),
        (TypeError, "scale has element type float8_e8m0fnu; expected float32 or", {"scale": E8M0, "opset": 23}),
        (
            TypeError,
            "zero_point has element type int16; expected uint8 or int8 or float8e4m3fn or .* or float8e5m2fnuz$",
            {"zero_point": np.ones(3, np.int16), "opset": 19},
        ),
        (TypeError, "dtype has element type float16; expected uint8", {"dtype": "float16", "opset": 28}),
        (ValueError, r"scale has shape \(3,\); QuantizeLinear-10 expects a scalar", {"opset": 12}),
        (
            ValueError,
            "dtype is 'int8'; QuantizeLinear-19 has no attribute output_dtype",
            {"dtype": "int8", "opset": 20},
        ),
        (ValueError, "block_size is 2; QuantizeLinear-19 has no attribute block_size", {"block_size": 2, "opset": 19}),
        (ValueError, "precision is 'float32'; QuantizeLinear-21 has", {"precision": "float32", "opset": 22}),
        (ValueError, "saturate is False; QuantizeLinear-13 has no attribute saturate", {"saturate": False, "opset": 13}),
        (ValueError, "axis is 0; QuantizeLinear-10 has no attribute axis", {"axis": 0, "scale": 1.0, "opset": 10}),
        (ValueError, r"scale has shape \(2, 2\); expected a scalar", {"scale": BLOCKS, "opset": 28}),
        (
            ValueError,
            r"scale has shape \(1, 1, 1\); QuantizeLinear-10 expects a scalar$",
            {"scale": np.ones((1, 1, 1), "f"), "opset": 10},
        ),
        (
            ValueError,
            r"scale has shape \(1, 1\); QuantizeLinear-21 expects a scalar, or one dimension, or a block_size",
            {"scale": np.ones((1, 1), "f"), "opset": 21},
        ),
        (
            ValueError,
            r"zero_point has shape \(1, 1\); expected the shape of scale, \(\)",
            {"scale": 1.0, "zero_point": np.ones((1, 1), np.uint8), "opset": 28},
        ),
        (TypeError, r"dtype has element type \[\]; expected", {"dtype": []}),
        (TypeError, "dtype has element type ,; expected", {"dtype": ","}),
        (TypeError, "dtype has element type 2.0; expected", {"dtype": 2.0}),
        (
            TypeError,
            "zero_point has element type int8; expected uint8",
            {"zero_point": np.zeros(3, np.int8), "dtype": "uint8"},
        ),
        (TypeError, "out is a list; expected a numpy array", {"out": [0]}),
        (TypeError, "out has dtype int8; expected uint8", {"out": np.zeros((2, 3), np.int8)}),
        (TypeError, "out has dtype >i2; expected int16", {"out": np.zeros((2, 3), ">i2"), "dtype": "int16"}),
        (ValueError, r"out has shape \(3, 2\); expected the shape of x, \(2, 3\)", {"out": np.zeros((3, 2), np.uint8)}),
        (ValueError, r"out has shape \(6,\)", {"out": np.zeros(6, np.uint8)}),
        (ValueError, "out is read-only", {"out": np.broadcast_to(np.uint8(0), (2, 3))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_quantize(error, message, arguments):
    out = np.full((2, 3), 77, np.uint8)
    with pytest.raises(error, match=message):
        quantize(**({"x": X, "scale": SCALE, "out": out} | arguments))
    assert (out == 77).all()


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "x has element type float32; expected uint8 or .* bfloat16", {"x": X}),
        (TypeError, "x has element type int64; expected", {"x": np.array([1, 2])}),
        (ValueError, r"x is \[1.5\]; expected int32", {"x": [1.5]}),
        (ValueError, r"x is \[300\]; expected uint8", {"x": [300], "zero_point": np.uint8(0)}),
        (TypeError, "x has element type float8_e8m0fnu; expected", {"x": E8M0}),
        (
            TypeError,
            "scale has element type int32; expected float32 or float16 or bfloat16 or float8e8m0",
            {"scale": np.int32(1)},
        ),
        (TypeError, "scale has element type float64; expected float32", {"scale": SCALE.astype(np.float64)}),
        (TypeError, "out has dtype float32; expected float16", {"scale": np.float16(1)}),
        (ValueError, r"scale has shape \(3, 1\); expected the shape of x, \(2, 3\), except", {"scale": SCALE[:, None]}),
        (ValueError, r"scale has shape \(1, 3, 1\); expected a scalar", {"scale": SCALE[None, :, None]}),
        (ValueError, "block_size is -5; expected a positive integer, or 0", {"scale": BLOCKS, "block_size": -5}),
        (ValueError, r"block_size is 2, scale has shape \(3,\); expected as many dimensions", {"block_size": 2}),
        (ValueError, "block_size is 1; expected one that divides x of shape", {"scale": BLOCKS, "block_size": 1}),
        (
            ValueError,
            r"block_size is 0, and several would fit x of shape \(2, 9\) and scale of shape \(2, 2\)",
            {"x": np.ones((2, 9), np.int8), "scale": BLOCKS},
        ),
        (
            ValueError,
            r"zero_point has shape \(2, 3\); expected the shape of scale, \(2, 2\)",
            {"scale": BLOCKS, "zero_point": CODES},
        ),
        (TypeError, "output_dtype has element type float8e8m0; expected float32 or float16 or bfloat16$", {"scale": E8M0}),
        (TypeError, "output_dtype has element type float64; expected float32", {"output_dtype": "float64"}),
        (TypeError, "output_dtype has element type int8; expected float32", {"output_dtype": "int8"}),
        (TypeError, "output_dtype has element type 0; expected float32", {"output_dtype": 0}),
        (TypeError, "output_dtype has element type ; expected float32", {"output_dtype": ""}),
        (TypeError, "unexpected keyword argument 'dtype'", {"dtype": "int8"}),
        (ValueError, r"opset is 9; expected 10\.\.28", {"opset": 9}),
        (ValueError, r"opset is 29; expected 10\.\.28", {"opset": 29}),
        (TypeError, "opset is '19'; expected an integer", {"opset": "19"}),
        (TypeError, "x has element type float16; expected uint8", {"x": X.astype(np.float16), "opset": 28}),
        (TypeError, "scale has element type float16; expected float32", {"scale": np.float16(1), "opset": 13}),
        (TypeError, "scale has element type float8_e8m0fnu; expected float32", {"scale": E8M0, "opset": 23}),
        (
            ValueError,
            "zero_point is not zero; expected zeros for int32 in DequantizeLinear-21",
            {"x": CODES.astype(np.int32), "zero_point": np.array([0, 1, 0], np.int32), "opset": 22},
        ),
        (ValueError, r"scale has shape \(3,\); DequantizeLinear-10 expects a scalar", {"opset": 10}),
        (ValueError, "output_dtype is 'float32'; DequantizeLinear-21 has", {"output_dtype": "float32", "opset": 21}),
        (ValueError, "block_size is 2; DequantizeLinear-19 has no attribute block_size", {"block_size": 2, "opset": 19}),
        (ValueError, "axis is -1; DequantizeLinear-10 has no attribute axis", {"axis": -1, "opset": 10}),
        (TypeError, "zero_point has element type uint8; expected int8", {"zero_point": np.zeros(3, np.uint8)}),
        (ValueError, r"zero_point is \[0, 0, 300\]; expected int8, -128\.\.127", {"zero_point": [0, 0, 300]}),
        (ValueError, r"zero_point has shape \(2,\); expected the shape of scale", {"zero_point": [0, 0]}),
        (ValueError, "axis is 5, out of range", {"axis": 5}),
        (TypeError, "out has dtype float64; expected float32", {"out": np.zeros((2, 3))}),
        (ValueError, r"out has shape \(\)", {"out": np.zeros((), np.float32)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dequantize(error, message, arguments):
    out = np.full((2, 3), 77, np.float32)
    with pytest.raises(error, match=message):
        dequantize(**({"x": CODES, "scale": SCALE, "out": out} | arguments))
    assert (out == 77).all()


def test_register():
    with pytest.raises(TypeError, match=r"session_options is a NoneType; expected onnxruntime\.SessionOptions"):
        quark_numba.register(None)
    with pytest.raises(ValueError, match="backend is 'cuda'; expected"):
        quark_numba.register(onnxruntime.SessionOptions(), backend="cuda")


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        quark_numba.quantise  # noqa: B018
