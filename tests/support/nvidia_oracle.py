"""The expected results of the TensorRT operators that ModelOpt of NVIDIA writes, computed in numpy. Imports nothing of the
package."""

import ml_dtypes
import numpy as np
import oracle

f32 = np.float32

# The largest value of float8e4m3fn.
HIGHEST = 448


def fp4_dynamic_quantize(x, scale, *, axis=-1, block_size=16, scale_type=17):
    """Return the result of TRT_FP4DynamicQuantize: codes of float4e2m1, and a scale of float8e4m3fn for each block. Rounding is
    to the nearest, ties to even, and codes saturate. The specification is silent about NaN and Inf in x: here NaN makes the
    scale NaN and all codes of the block 6, and Inf makes the scale 448."""
    if scale_type != 17:
        raise ValueError(f"scale_type is {scale_type}; expected 17 (float8e4m3fn)")
    x, scale = np.asarray(x, f32), np.asarray(scale, f32).reshape(())
    largest = largest_of_blocks(x, axis, block_size)
    with np.errstate(all="ignore"):
        s = largest / (f32(6) * scale)
        s = np.where(s == 0, f32(1), s)
        s = np.where(s < f32(2.0**-9), f32(2.0**-9), np.where(s > HIGHEST, f32(HIGHEST), s))
        scales = cast(s, "float8e4m3fn")
        quotient = x / spread(scales.astype(f32) * scale, axis, block_size)
    return cast(quotient, "float4e2m1"), scales


def mxfp8_dynamic_quantize(x, *, axis=-1, block_size=32, output_dtype=17):
    """Return the result of TRT_MXFP8DynamicQuantize: codes of float8e4m3fn, and an exponent for each block, biased by 127. The
    logarithm is exact, and codes saturate. The specification is silent about NaN and Inf in x: here NaN makes the exponent 255,
    which is float8e8m0's NaN, and all codes of the block NaN, and Inf makes the exponent 254."""
    if output_dtype != 17:
        raise ValueError(f"output_dtype is {output_dtype}; expected 17 (float8e4m3fn)")
    return mx(x, "fp8_e4m3", "rceil", axis=axis, block_size=block_size)


def mx(x, element_dtype, scale_rule, *, axis, block_size, rounding_mode=2):
    """Return codes and biased exponents of any Microscaling format, by a rule of torchao's ScaleCalculationMode."""
    name, largest_power = oracle.MX_ELEMENTS[element_dtype]
    is_whole = element_dtype == "int8"
    highest = 127 / 64 if is_whole else float(oracle.TYPES[name].highest)
    bits = 8 if is_whole else int(element_dtype[-1])  # 8 in Quark; the specification has no such rule
    x = np.asarray(x, f32)
    with np.errstate(all="ignore"):
        largest = largest_of_blocks(x, axis, block_size).astype(np.float64)
        if scale_rule == "rceil":
            largest = (largest.astype(f32) / f32(highest)).astype(np.float64)
            largest_power = 0
        if scale_rule == "even":
            mantissa, exponent = np.frexp(largest)  # 0.5 <= mantissa < 1
            # Steps of subnormal numbers are those of 2 ** -126. Halves go up.
            step = np.ldexp(1.0, np.maximum(exponent, -125) - 1 - bits)
            largest = np.where(np.isfinite(largest), np.floor(largest / step + 0.5) * step, largest)
        mantissa, exponent = np.frexp(largest)
        exponent = exponent - (1 if scale_rule == "even" else mantissa == 0.5)
        exponent = np.where(np.isinf(largest), 128, np.where(largest == 0, -1000, exponent)) - largest_power
        exponents = np.where(np.isnan(largest), 255, exponent.clip(-127, 127) + 127).astype(np.uint8)
        # The quotient by a power of two is exact in float64. Its rounding to float32, if it is subnormal, does not matter here.
        scaled = x.astype(np.float64) / values_of(spread(exponents, axis, block_size))
    if is_whole:
        whole = oracle._whole(np.nan_to_num(scaled * 64, posinf=1e6, neginf=-1e6), rounding_mode, 128)
        return np.clip(whole, -128, 127).astype(np.int8), exponents
    return cast(scaled, name), exponents


def mxfp8_dequantize(codes, exponents, *, axis=-1, block_size=32, output_dtype=1):
    """Return the result of TRT_MXFP8DequantizeLinear: code · 2^(exponent - 127), which is exact, rounded once to float32 (1),
    float16 (10) or bfloat16 (16). The exponent 255 is float8e8m0's NaN."""
    exponents = np.asarray(exponents, np.uint8)
    check_blocks(codes.shape, axis, block_size)
    product = oracle.values(codes, "float8e4m3fn") * values_of(spread(exponents, axis, block_size))
    with np.errstate(all="ignore"):
        return np.asarray(oracle.rounded(product, TYPES[output_dtype]).astype(oracle.dtype(TYPES[output_dtype])))


def quantize(x, scale, zero_point=None, *, axis=None, saturate=1):
    """Return the result of QuantizeLinear and TRT_FP8QuantizeLinear: codes of float8e4m3fn, for one scale. `axis` has no
    effect."""
    zero_point = None if zero_point is None else float8(zero_point).reshape(())
    return oracle.quantize(x, np.asarray(scale).reshape(()), zero_point, "float8e4m3fn", saturate=bool(saturate))


def dequantize(codes, scale, zero_point=None, *, axis=1, block_size=0):
    """Return the result of DequantizeLinear and TRT_FP8DequantizeLinear, in the type of the scale. uint8 means codes of
    float8e4m3fn."""
    zero_point = None if zero_point is None else float8(zero_point)
    return dequantize_linear(float8(codes), scale, zero_point, axis=axis, block_size=block_size)


def dequantize_linear(codes, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    """Return the result of ONNX's DequantizeLinear, for all types and granularities. Its `output_dtype` is the scale's type."""
    codes, scale = np.asarray(codes), np.asarray(scale)
    name, output = NAMES[codes.dtype], NAMES.get(scale.dtype, "float32")
    if output_dtype not in (0, TYPE_NUMBERS[output]):
        raise ValueError(f"output_dtype is {output_dtype}; expected the type of scale")
    scale, zero_point = (
        each if each is None else oracle.spread(np.asarray(each), axis, block_size, codes.shape) for each in (scale, zero_point)
    )
    return np.asarray(oracle.dequantize(codes, scale, zero_point, name, output))


def float8(codes):
    """Return codes as float8e4m3fn, if they are uint8."""
    codes = np.asarray(codes)
    return codes.view(ml_dtypes.float8_e4m3fn) if codes.dtype == np.uint8 else codes


TYPES = {1: "float32", 10: "float16", 16: "bfloat16"}
TYPE_NUMBERS = {name: number for number, name in TYPES.items()}

NAMES = {np.dtype(row.dtype): name for name, row in oracle.TYPES.items()}


def values_of(exponents):
    """Return the values of biased exponents, 255 being NaN."""
    return exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)


def cast(numbers, name):
    """Return the codes of the nearest values; ties go to even ones, numbers beyond the range to its ends, and -0 to -0."""
    return oracle.nearest(numbers.astype(np.float64), name, saturate=True).astype(np.uint8).view(oracle.dtype(name))


def largest_of_blocks(x, axis, block_size):
    """Return the largest magnitude of each block, and NaN for a block with NaN."""
    blocks = check_blocks(x.shape, axis, block_size)
    axis %= x.ndim
    return np.abs(x).reshape(*x.shape[:axis], blocks, block_size, *x.shape[axis + 1 :]).max(axis + 1)


def check_blocks(shape, axis, block_size):
    """Return the number of blocks along the axis. A last block that is not whole is refused."""
    if shape[axis] % block_size:
        raise ValueError(f"axis {axis} has length {shape[axis]}; expected a multiple of block_size {block_size}")
    return shape[axis] // block_size


def spread(values, axis, block_size):
    """Return the values of blocks, one for each element."""
    return np.repeat(values, block_size, axis)
