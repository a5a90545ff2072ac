"""The expected results of QONNX's operators, computed in numpy. Imports nothing of the package.

Each written operation is one operation of float32, rounded once. Where another precision is meant, it is written."""

import numpy as np

f32 = np.float32


def quant(x, scale, zero_point, bit_width, *, signed=1, narrow=0, rounding_mode="ROUND"):
    """Return the result of Quant, whose other name is IntQuant."""
    x, scale, zero_point = operands(x, scale, zero_point)
    bits = positive_number(bit_width, "bit_width")
    with np.errstate(all="ignore"):
        v = x / scale
        v = v + zero_point
        if bits == 1 and signed:
            q = np.where(v >= 0, f32(1), f32(-1))
        else:
            q = rounded(clamped(v, *bounds(bits, signed, narrow)), rounding_mode)
        return np.asarray((q - zero_point) * scale)


def bipolar_quant(x, scale):
    """Return the result of BipolarQuant: the scale with a sign, which is minus for NaN."""
    x, scale = operands(x, scale)
    return np.asarray(np.where(x >= 0, f32(1), f32(-1)) * scale)


def trunc_1(x, scale, zero_point, in_bits, out_bits, *, rounding_mode="FLOOR"):
    """Return the result of Trunc in version 1, which keeps the scale of its input, and neither clamps nor moves the zero
    point."""
    x, scale, zero_point = operands(x, scale, zero_point)
    dropped = positive_number(in_bits, "in_bits") - positive_number(out_bits, "out_bits")
    with np.errstate(all="ignore"):
        v = np.rint(x / scale + zero_point)
        q = rounded(v / f32(2.0**dropped), rounding_mode)
        return np.asarray((q - zero_point) * scale)


def trunc_2(x, scale, zero_point, in_bits, out_scale, out_bits, *, rounding_mode="FLOOR", signed=1, narrow=0):
    """Return the result of Trunc in version 2. The divisor is the power of two next to out_scale / scale. The logarithm that
    decides that is computed in float64. `in_bits` has no effect."""
    x, scale, zero_point, out_scale = operands(x, scale, zero_point, out_scale)
    bits = positive_number(out_bits, "out_bits")
    with np.errstate(all="ignore"):
        power = np.rint(np.log2(out_scale.astype(np.float64) / scale.astype(np.float64)))
        t = power_of_two(power)
        v = np.rint(x / scale + zero_point)
        q = rounded(clamped(v / t, *bounds(bits, signed, narrow)), rounding_mode)
        return np.asarray((q - zero_point / t) * out_scale)


def float_quant(
    x,
    scale,
    exponent_bits,
    mantissa_bits,
    exponent_bias,
    max_val,
    *,
    has_inf=0,
    has_nan=0,
    has_subnormal=1,
    saturation=1,
    rounding_mode="ROUND",
):
    """Return the result of FloatQuant. The exponent of a number is exact, not a rounded logarithm. Subnormals are always there:
    `has_subnormal` has no effect."""
    x, scale = operands(x, scale)
    e_bits, m, bias = (
        whole_number(number, name)
        for number, name in (
            (exponent_bits, "exponent_bits"),
            (mantissa_bits, "mantissa_bits"),
            (exponent_bias, "exponent_bias"),
        )
    )
    if not (saturation or has_inf or has_nan):
        raise ValueError("FloatQuant does not saturate, and has neither Inf nor NaN")
    with np.errstate(all="ignore"):
        top = (2 - 2.0**-m) * np.exp2(2.0**e_bits - 1 - bias)
        top = min(top, float(one(max_val, "max_val")))
        v = x / scale
        magnitude = np.abs(v) + f32(2.0**-126)
        exponent = np.where(np.isfinite(magnitude), np.frexp(magnitude)[1] - 1, np.inf)
        s = power_of_two(np.maximum(exponent - m, 1 - bias - m))
        q = (s * rounded(v / s, rounding_mode)).astype(np.float64)
        beyond = np.abs(q) > top
        q = clamped(q, -top, top)
        if not saturation:
            q = np.where(beyond, np.copysign(np.inf, q) if has_inf else np.nan, q)
        return np.asarray((q * scale.astype(np.float64)).astype(f32))


def multi_threshold(x, thresholds, *, out_dtype="", out_scale=1.0, out_bias=0.0, data_layout=""):
    """Return the result of MultiThreshold: the number of thresholds that x reaches, scaled and moved. `out_dtype` has no
    effect."""
    x, thresholds = np.asarray(x, f32), np.asarray(thresholds, f32)
    axis = data_layout.index("C") if data_layout else {3: 2}.get(x.ndim, 1)
    if thresholds.ndim != 2 or len(thresholds) not in (1, x.shape[axis]):
        raise ValueError(
            f"thresholds has shape {thresholds.shape}; expected a row, or a row for each of {x.shape[axis]} channels"
        )
    channels_last = np.moveaxis(x, axis, -1)[..., None]
    count = np.moveaxis((channels_last >= thresholds).sum(-1), -1, axis).astype(f32)
    with np.errstate(all="ignore"):
        return np.asarray(f32(out_scale) * count + f32(out_bias))


def rounded(v, mode):
    """Return float32 numbers rounded to whole numbers. The sums of the half modes are rounded to float32, too."""
    sign = np.where(v > 0, f32(1), np.where(v < 0, f32(-1), np.where(v == 0, f32(0), f32(np.nan))))
    mode = mode.upper()
    if mode in ("ROUND", "HALF_EVEN"):
        return np.rint(v)
    if mode == "CEIL":
        return np.ceil(v)
    if mode == "FLOOR":
        return np.floor(v)
    if mode == "UP":
        return sign * np.ceil(np.abs(v))
    if mode in ("DOWN", "ROUND_TO_ZERO"):
        return np.trunc(v)
    if mode == "HALF_UP":
        return sign * np.floor(np.abs(v) + f32(0.5))
    if mode == "HALF_DOWN":
        return sign * np.ceil(np.abs(v) - f32(0.5))
    raise ValueError(f"rounding_mode is {mode}")


def bounds(bits, signed, narrow):
    """Return the lowest and the highest code, rounded to float32."""
    if signed:
        return f32(-(2 ** (bits - 1)) + bool(narrow)), f32(2 ** (bits - 1) - 1)
    return f32(0), f32(2**bits - 1 - bool(narrow))


def clamped(v, low, high):
    """Return numbers limited to a range. NaN stays, and so does -0, also where the lowest number is 0."""
    v = np.where(v > high, high, v)
    return np.where(v < low, low, v)


def power_of_two(exponents):
    """Return exact powers of two as float32. They are 0 and Inf beyond float32, and NaN for NaN."""
    exponents = np.asarray(exponents, np.float64)
    finite = np.ldexp(1.0, np.nan_to_num(exponents, nan=0, posinf=1000, neginf=-1000).clip(-1000, 1000).astype(np.int32))
    return np.where(np.isnan(exponents), np.nan, finite).astype(f32)


def operands(x, *others):
    """Return the arrays as float32. Others that would make the result larger than x are refused."""
    x, others = np.asarray(x, f32), [np.asarray(other, f32) for other in others]
    shape = np.broadcast_shapes(x.shape, *(other.shape for other in others))
    if shape != x.shape:
        raise ValueError(f"the operands make the result {shape}; expected the shape of x, {x.shape}")
    return [x, *others]


def one(number, name):
    """Return the number in an array of one element. More are refused."""
    if np.size(number) != 1:
        raise ValueError(f"{name} has {np.size(number)} elements; expected one")
    return np.asarray(number).reshape(())[()]


def whole_number(number, name):
    """Return the whole number in an array of one element. A fraction is refused."""
    number = float(one(number, name))
    if not number.is_integer():
        raise ValueError(f"{name} is {number}; expected a whole number")
    return int(number)


def positive_number(number, name):
    """Return the positive whole number in an array of one element."""
    number = whole_number(number, name)
    if number < 1:
        raise ValueError(f"{name} is {number}; expected a positive number")
    return number
