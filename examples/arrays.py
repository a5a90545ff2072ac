"""The operators as calls on numpy arrays."""

import numpy as np

import quark_numba

x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)

# Integers with a scale for each index of axis 0.
scale = np.abs(x).max(axis=1) / 127
codes = quark_numba.quantize(x, scale, axis=0, dtype="int8")
y = quark_numba.dequantize(codes, scale, axis=0)
print("int8:", codes.dtype, "largest error", np.abs(y - x).max(), "half a step", scale.max() / 2)

# float8 has no zero point; a scale of 1 rounds and saturates.
y = quark_numba.quantize_dequantize(x, 1.0, dtype="float8e4m3fn")
print("float8e4m3fn: largest relative error", np.abs(y / x - 1).max())

# Block formats: each 32 elements along the axis share a scale, a power of two.
codes, scales = quark_numba.mx_quantize(x, element_dtype="fp6_e3m2", axis=1)
y = quark_numba.mx_dequantize(codes, scales, axis=1)
print("MXFP6:", codes.dtype, "with scales of shape", scales.shape, "largest error", np.abs(y - x).max())

# Types of fewer than 8 bits have one element per byte, as in ml_dtypes. ONNX stores them packed.
int4 = quark_numba.quantize(x, 0.5, dtype="int4")
packed = quark_numba.pack(int4)
print("int4:", int4.nbytes, "bytes, packed:", packed.nbytes)
assert (quark_numba.unpack(packed, int4.shape, "int4") == int4).all()
