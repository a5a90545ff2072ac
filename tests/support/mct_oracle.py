"""The expected results of mct_quantizers' operators, computed in numpy. Imports nothing of the package.

Attributes that are floats come as float32 and are used as float64, with all their digits. `digits=6` takes them as
onnxruntime-extensions passes them on, as a decimal of six digits."""

import numpy as np

f32, f64 = np.float32, np.float64


def activation_symmetric(x, *, threshold, signed, num_bits, digits=None):
    """Return the result of ActivationSymmetricQuantizer and ActivationPOTQuantizer. The range is computed in float64 and
    rounded to float32."""
    t = attribute(threshold, digits)
    step = t / 2 ** (num_bits - 1) if signed else t / 2**num_bits
    low = -t if signed else 0.0
    return on_grid(np.asarray(x, f32), f32(low), f32(t - step), f32(step))


activation_pot = activation_symmetric


def activation_uniform(x, *, min_range, max_range, num_bits, digits=None):
    """Return the result of ActivationUniformQuantizer. All steps are in float64, as under NumPy 2, and the last is rounded to
    float32."""
    low, high, step = uniform_range(attribute(min_range, digits), attribute(max_range, digits), num_bits)
    x = np.asarray(x, f32).astype(f64)
    with np.errstate(all="ignore"):
        return np.asarray((step * np.rint((clamped(x, low, high) - low) / step) + low).astype(f32))


def weights_symmetric(x, threshold, *, num_bits, per_channel, channel_axis, signed=1):
    """Return the result of WeightsSymmetricQuantizer and WeightsPOTQuantizer, all in float32. `signed` has no
    effect."""
    x = np.asarray(x, f32)
    t = of_channels(threshold, x, per_channel, channel_axis)
    step = t / f32(2.0 ** (num_bits - 1))
    return on_grid(x, -t, t - step, step)


weights_pot = weights_symmetric


def weights_uniform(x, min_range, max_range, *, num_bits, per_channel, channel_axis, signed=1):
    """Return the result of WeightsUniformQuantizer, all in float32. The start of the range is not an
    offset. `signed` has no effect."""
    x = np.asarray(x, f32)
    ends = [of_channels(end, x, per_channel, channel_axis) for end in (min_range, max_range)]
    return on_grid(x, *uniform_range(*ends, num_bits))


def weights_lut_symmetric(
    x,
    lut,
    threshold,
    *,
    lut_values_bitwidth,
    per_channel,
    channel_axis,
    eps=1e-8,
    input_rank=None,
    num_bits=None,
    signed=1,
    digits=None,
):
    """Return the result of WeightsLUTSymmetricQuantizer and WeightsLUTPOTQuantizer, all in float32. Of equally near entries of
    the table the first is taken. `input_rank`, `num_bits` and `signed` have no effect."""
    x, lut = np.asarray(x, f32), np.asarray(lut, f32).reshape(-1)
    t = of_channels(threshold, x, per_channel, channel_axis)
    k = f32(2.0 ** (lut_values_bitwidth - 1))
    with np.errstate(all="ignore"):
        q = clamped((x / (t + f32(attribute(eps, digits)))) * k, -k, k - f32(1))
        nearest = np.abs(q[..., None] - lut).argmin(-1)  # 0 for NaN
        return np.asarray((lut[nearest] / k) * t)


weights_lut_pot = weights_lut_symmetric


def attribute(value, digits):
    """Return a float32 as float64: exactly, or the decimal of so many digits."""
    return float(f32(value)) if digits is None else float(f"{float(f32(value)):.{digits}g}")


def uniform_range(low, high, num_bits):
    """Return the range moved so that it contains a zero of the grid, and the step. A zero at an end is +0."""
    levels = 2**num_bits - 1
    with np.errstate(all="ignore"):
        step = (high - low) / levels
        moved = step * np.rint(low / step)
        a = np.where(low > 0, 0, np.where(high < 0, low, moved))
        b = np.where(low > 0, high, np.where(high < 0, 0, high - low + moved))
        a, b = np.where(a < 0, a, 0).astype(moved.dtype), np.where(b > 0, b, 0).astype(moved.dtype)
        return a, b, (b - a) / levels


def on_grid(x, low, high, step):
    """Return x limited to a range and rounded to a multiple of the step, in the precision of the arguments."""
    with np.errstate(all="ignore"):
        return np.asarray(np.rint(clamped(x, low, high) / step) * step)


def clamped(x, low, high):
    """Return numbers limited to a range. NaN stays, and so does -0, also where the lowest number is 0."""
    x = np.where(x < low, low, x)
    return np.where(x > high, high, x)


def of_channels(values, x, per_channel, channel_axis):
    """Return the parameters of a weight in a shape that broadcasts to it. The wrong number of them is refused."""
    values = np.asarray(values, f32).reshape(-1)
    expected = x.shape[channel_axis] if per_channel else 1
    if values.size != expected:
        raise ValueError(f"a parameter has {values.size} elements; expected {expected}")
    shape = [1] * x.ndim
    if per_channel:
        shape[channel_axis] = -1
    return values.reshape(shape)
