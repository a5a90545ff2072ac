"""The error for a wrong argument of a direct call names the argument, its value and the expected ones. `out` is not written."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

import quark_numba
from quark_numba import dequantize, quantize

f32, i8 = np.float32, np.int8
X = np.ones((2, 3), f32)
CODES = np.ones((2, 3), i8)
SCALE = np.ones(3, f32)
BLOCKS = np.ones((2, 2), f32)
E8M0 = np.ones(3, ml_dtypes.float8_e8m0fnu)

# Parts of several messages.
AS_X, AS_SCALE = r"expected the shape of x, \(2, 3\), except", r"expected the shape of scale, \(2, 2\)"
AS_MANY = r"expected as many dimensions as x of shape \(2, 3\), or block_size 0"
SEVERAL = r"several would fit x of shape \(2, 9\) and scale of shape \(2, 2\)"


class Variable:
    """An object like an array in a netCDF file, whose missing values are masked."""

    def __array__(self, dtype=None, copy=None):
        return np.ma.array(X)


def wrong(types, values):
    """Parametrize a test by the messages of TypeError and of ValueError, and the arguments that cause them."""
    cases = [(TypeError, *each) for each in types] + [(ValueError, *each) for each in values]
    ids = [message for _, message, _ in cases]
    return pytest.mark.parametrize(("error", "message", "arguments"), cases, ids=ids)


WRONG_TYPES_OF_QUANTIZE = [
    (r"x has element type float64; expected float32.*: write x\.astype", {"x": X.astype(np.float64)}),
    (r"x is a masked array.*: write x\.filled", {"x": np.ma.array(X)}),
    (r"x is a masked array.*: write x\.filled", {"x": Variable()}),
    ("dtype has .* float8e4m3; .*; did you mean float8e4m3fn", {"dtype": "float8e4m3"}),
    ("unexpected keyword argument 'output_dtype'", {"output_dtype": "int8"}),
    ("x has element type int64; expected float32 or int32 or float16 or bfloat16", {"x": X.astype(np.int64)}),
    ("x has element type int8; expected float32", {"x": CODES}),
    ("x has element type float8_e4m3fn; expected float32", {"x": X.astype(ml_dtypes.float8_e4m3fn)}),
    ("x has dtype <U1; expected numbers of float32", {"x": ["a"]}),
    ("x has dtype object; expected numbers of float32", {"x": [None]}),
    ("x has dtype bool; expected numbers of float32", {"x": [True]}),
    ("x has element type object; expected float32", {"x": None}),
    ("scale has element type float64; expected float32", {"scale": np.ones(1)}),
    ("scale has element type int64; expected float32", {"scale": np.ones(3, np.int64)}),
    ("scale has element type <U1; expected float32", {"scale": "1"}),
    ("scale has element type int8; expected .* or float8e8m0", {"scale": CODES[0]}),
    ("block_size is 1.0; expected an integer", {"block_size": 1.0}),
    ("block_size is None; expected an integer", {"block_size": None}),
    ("zero_point has element type int64; expected .* or bfloat16", {"zero_point": np.zeros(3, np.int64)}),
    ("zero_point has element type float32; expected", {"zero_point": np.zeros(3, f32)}),
    ("axis is 1.0; expected an integer", {"axis": 1.0}),
    ("axis is None; expected an integer", {"axis": None}),
    ("dtype has element type float64; expected", {"dtype": "float64"}),
    ("dtype has element type float32; expected", {"dtype": f32}),
    ("dtype has element type 1; expected", {"dtype": 1}),
    ("dtype has element type 0; expected", {"dtype": 0}),
    ("dtype has element type ; expected", {"dtype": ""}),
    ("dtype has element type float8e8m0; expected uint8 or", {"dtype": "float8e8m0"}),
    ("dtype has element type float8_e8m0fnu; expected", {"dtype": E8M0.dtype}),
    ("zero_point has element type float8_e8m0fnu; expected", {"zero_point": E8M0}),
    ("precision .* int32; expected float32 or float16 or float64 or bfloat16", {"precision": "int32"}),
    ("precision has element type float8e4m3fn; expected", {"precision": "float8e4m3fn"}),
    ("precision has element type 0; expected", {"precision": 0}),
    ("precision has element type single precision; expected", {"precision": "single precision"}),
    ("opset is '19'; expected an integer", {"opset": "19"}),
    ("opset is 19.0; expected an integer", {"opset": 19.0}),
    ("x has element type float16; expected float32 or int32", {"x": X.astype(np.float16), "opset": 13}),
    ("scale has element type float32; expected float16", {"x": X.astype(np.float16), "opset": 19}),
    ("scale has element type float32; expected int32", {"x": X.astype(np.int32), "opset": 21}),
    ("scale has element type float16; expected float32", {"scale": SCALE.astype(np.float16), "opset": 21}),
    ("scale has element type float8_e8m0fnu; expected float32 or", {"scale": E8M0, "opset": 23}),
    (
        "zero_point has element type int16; expected uint8 or int8 or float8e4m3fn or .* or float8e5m2fnuz$",
        {"zero_point": np.ones(3, np.int16), "opset": 19},
    ),
    ("dtype has element type float16; expected uint8", {"dtype": "float16", "opset": 28}),
    (r"dtype has element type \[\]; expected", {"dtype": []}),
    ("dtype has element type ,; expected", {"dtype": ","}),
    ("dtype has element type 2.0; expected", {"dtype": 2.0}),
    ("zero_point has element type int8; expected uint8", {"zero_point": np.zeros(3, i8), "dtype": "uint8"}),
    ("out is a list; expected a numpy array", {"out": [0]}),
    ("out has dtype int8; expected uint8", {"out": np.zeros((2, 3), i8)}),
    ("out has dtype >i2; expected int16", {"out": np.zeros((2, 3), ">i2"), "dtype": "int16"}),
]
WRONG_VALUES_OF_QUANTIZE = [
    (r"scale is \[1, 1e[+]300, 1\]; expected float32", {"scale": [1, 1e300, 1]}),
    ("scale is 1e[+]300; expected float32", {"scale": np.float64(1e300)}),
    ("x is not an array: .*inhomogeneous", {"x": [[1], [1, 2]]}),
    (r"scale has shape \(1, 2, 3\); expected a scalar, .* x of shape \(2, 3\)", {"scale": X[None]}),
    (rf"scale has shape \(3, 3\); {AS_X}", {"scale": np.ones((3, 3), "f")}),
    (r"scale has shape \(4,\); .* x of shape \(2, 3\) has along axis 1", {"scale": np.ones(4, f32)}),
    (r"scale has shape \(0,\)", {"scale": np.ones(0, f32)}),
    ("block_size is -1; expected a positive integer, or 0", {"block_size": -1}),
    ("block_size is -1; expected a positive integer, or 0", {"scale": BLOCKS, "block_size": -1}),
    (rf"block_size is 1, scale has shape \(3,\); {AS_MANY}", {"block_size": 1}),
    (
        r"block_size is 1; expected one that divides x of shape \(2, 3\) along axis 1 into as many blocks as scale of "
        r"shape \(2, 2\) has",
        {"scale": BLOCKS, "block_size": 1},
    ),
    ("block_size is 3; expected one that divides", {"scale": BLOCKS, "block_size": 3}),
    ("block_size is 0; expected one that divides", {"scale": np.ones((2, 4), f32)}),
    ("block_size is 0; expected one that divides", {"scale": np.ones((2, 0), f32)}),
    (rf"block_size is 0, and {SEVERAL} along axis 1", {"x": np.ones((2, 9), f32), "scale": BLOCKS}),
    (rf"scale has shape \(2, 2\); {AS_X} along axis 0", {"scale": BLOCKS, "block_size": 2, "axis": 0}),
    ("axis is 2, out of range", {"scale": BLOCKS, "block_size": 2, "axis": 2}),
    (r"axis is 1, out of range for x of shape \(\)", {"x": 1.0, "scale": 1.0, "block_size": 1}),
    (rf"zero_point has shape \(2, 3\); {AS_SCALE}", {"scale": BLOCKS, "zero_point": CODES}),
    (rf"zero_point has shape \(1, 4\); {AS_SCALE}", {"scale": BLOCKS, "zero_point": np.ones((1, 4), i8)}),
    (rf"zero_point has shape \(\); {AS_SCALE}", {"scale": BLOCKS, "zero_point": i8(0)}),
    (r"zero_point has shape \(2, 2\); expected the shape of scale, \(3,\)", {"zero_point": np.ones((2, 2), i8)}),
    (r"zero_point has shape \(\); expected the shape of scale, \(3,\)", {"zero_point": i8(0)}),
    (r"zero_point has shape \(4,\); expected", {"zero_point": np.zeros(4, i8)}),
    (r"zero_point is 256; expected uint8, 0\.\.255", {"scale": 1.0, "zero_point": 256}),
    ("zero_point is -1; expected uint8", {"scale": 1.0, "zero_point": -1}),
    ("zero_point is 0.5; expected uint8", {"scale": 1.0, "zero_point": 0.5}),
    ("zero_point is 10000000000.0; expected float16", {"scale": 1.0, "zero_point": 1e10, "dtype": "f2"}),
    ("zero_point is nan; expected float4e2m1", {"scale": 1.0, "zero_point": float("nan"), "dtype": "float4e2m1"}),
    (r"scale is 1e\+300; expected float32", {"scale": 1e300}),
    ("axis is 2, out of range", {"axis": 2}),
    ("axis is -3, out of range", {"axis": -3}),
    ("saturate is 2; expected True or False", {"saturate": 2}),
    ("saturate is 'no'; expected True or False", {"saturate": "no"}),
    ("saturate is None; expected True or False", {"saturate": None}),
    (r"saturate is array\(\[1\]\); expected True or False", {"saturate": np.ones(1, int)}),
    (r"opset is 9; expected 10\.\.28", {"opset": 9}),
    (r"opset is 29; expected 10\.\.28", {"opset": 29}),
    (r"scale has shape \(3,\); QuantizeLinear-10 expects a scalar", {"opset": 12}),
    ("dtype is 'int8'; QuantizeLinear-19 has no attribute output_dtype", {"dtype": "int8", "opset": 20}),
    ("block_size is 2; QuantizeLinear-19 has no attribute block_size", {"block_size": 2, "opset": 19}),
    ("precision is 'float32'; QuantizeLinear-21 has", {"precision": "float32", "opset": 22}),
    ("saturate is False; QuantizeLinear-13 has no attribute saturate", {"saturate": False, "opset": 13}),
    ("axis is 0; QuantizeLinear-10 has no attribute axis", {"axis": 0, "scale": 1.0, "opset": 10}),
    (r"scale has shape \(2, 2\); expected a scalar", {"scale": BLOCKS, "opset": 28}),
    (r"scale has shape \(1, 1, 1\); QuantizeLinear-10 expects a scalar$", {"scale": np.ones((1, 1, 1), "f"), "opset": 10}),
    (
        r"scale has shape \(1, 1\); QuantizeLinear-21 expects a scalar, or one dimension, or a block_size",
        {"scale": np.ones((1, 1), "f"), "opset": 21},
    ),
    (
        r"zero_point has shape \(1, 1\); expected the shape of scale, \(\)",
        {"scale": 1.0, "zero_point": np.ones((1, 1), np.uint8), "opset": 28},
    ),
    (r"out has shape \(3, 2\); expected the shape of x, \(2, 3\)", {"out": np.zeros((3, 2), np.uint8)}),
    (r"out has shape \(6,\)", {"out": np.zeros(6, np.uint8)}),
    ("out is read-only", {"out": np.broadcast_to(np.uint8(0), (2, 3))}),
]


@wrong(WRONG_TYPES_OF_QUANTIZE, WRONG_VALUES_OF_QUANTIZE)
def test_quantize(error, message, arguments):
    out = np.full((2, 3), 77, np.uint8)
    with pytest.raises(error, match=message):
        quantize(**({"x": X, "scale": SCALE, "out": out} | arguments))
    assert (out == 77).all()


WRONG_TYPES_OF_DEQUANTIZE = [
    ("x has element type float32; expected uint8 or .* bfloat16", {"x": X}),
    ("x has element type int64; expected", {"x": np.array([1, 2])}),
    ("x has element type float8_e8m0fnu; expected", {"x": E8M0}),
    ("scale has element type int32; expected float32 or float16 or bfloat16 or float8e8m0", {"scale": np.int32(1)}),
    ("scale has element type float64; expected float32", {"scale": SCALE.astype(np.float64)}),
    ("out has dtype float32; expected float16", {"scale": np.float16(1)}),
    ("output_dtype has element type float8e8m0; expected float32 or float16 or bfloat16$", {"scale": E8M0}),
    ("output_dtype has element type float64; expected float32", {"output_dtype": "float64"}),
    ("output_dtype has element type int8; expected float32", {"output_dtype": "int8"}),
    ("output_dtype has element type 0; expected float32", {"output_dtype": 0}),
    ("output_dtype has element type ; expected float32", {"output_dtype": ""}),
    ("unexpected keyword argument 'dtype'", {"dtype": "int8"}),
    ("opset is '19'; expected an integer", {"opset": "19"}),
    ("x has element type float16; expected uint8", {"x": X.astype(np.float16), "opset": 28}),
    ("scale has element type float16; expected float32", {"scale": np.float16(1), "opset": 13}),
    ("scale has element type float8_e8m0fnu; expected float32", {"scale": E8M0, "opset": 23}),
    ("zero_point has element type uint8; expected int8", {"zero_point": np.zeros(3, np.uint8)}),
    ("out has dtype float64; expected float32", {"out": np.zeros((2, 3))}),
]
WRONG_VALUES_OF_DEQUANTIZE = [
    (r"x is \[1.5\]; expected int32", {"x": [1.5]}),
    (r"x is \[300\]; expected uint8", {"x": [300], "zero_point": np.uint8(0)}),
    (rf"scale has shape \(3, 1\); {AS_X}", {"scale": SCALE[:, None]}),
    (r"scale has shape \(1, 3, 1\); expected a scalar", {"scale": SCALE[None, :, None]}),
    ("block_size is -5; expected a positive integer, or 0", {"scale": BLOCKS, "block_size": -5}),
    (r"block_size is 2, scale has shape \(3,\); expected as many dimensions", {"block_size": 2}),
    ("block_size is 1; expected one that divides x of shape", {"scale": BLOCKS, "block_size": 1}),
    (rf"block_size is 0, and {SEVERAL}", {"x": np.ones((2, 9), i8), "scale": BLOCKS}),
    (rf"zero_point has shape \(2, 3\); {AS_SCALE}", {"scale": BLOCKS, "zero_point": CODES}),
    (r"opset is 9; expected 10\.\.28", {"opset": 9}),
    (r"opset is 29; expected 10\.\.28", {"opset": 29}),
    (
        "zero_point is not zero; expected zeros for int32 in DequantizeLinear-21",
        {"x": CODES.astype(np.int32), "zero_point": np.array([0, 1, 0], np.int32), "opset": 22},
    ),
    (r"scale has shape \(3,\); DequantizeLinear-10 expects a scalar", {"opset": 10}),
    ("output_dtype is 'float32'; DequantizeLinear-21 has", {"output_dtype": "float32", "opset": 21}),
    ("block_size is 2; DequantizeLinear-19 has no attribute block_size", {"block_size": 2, "opset": 19}),
    ("axis is -1; DequantizeLinear-10 has no attribute axis", {"axis": -1, "opset": 10}),
    (r"zero_point is \[0, 0, 300\]; expected int8, -128\.\.127", {"zero_point": [0, 0, 300]}),
    (r"zero_point has shape \(2,\); expected the shape of scale", {"zero_point": [0, 0]}),
    ("axis is 5, out of range", {"axis": 5}),
    (r"out has shape \(\)", {"out": np.zeros((), f32)}),
]


@wrong(WRONG_TYPES_OF_DEQUANTIZE, WRONG_VALUES_OF_DEQUANTIZE)
def test_dequantize(error, message, arguments):
    out = np.full((2, 3), 77, f32)
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
