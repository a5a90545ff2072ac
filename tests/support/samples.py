"""Inputs that are hard for quantizers. Imports nothing of the package."""

import functools

import numba
import numpy as np
import oracle

SCALES = (1.0, 0.1, 3.0, 2.0**-7, 1e-30, 1e20, 1.1754944e-38)

SPECIAL = np.array(
    [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, -1.1754944e-38]
    + [3.4028235e38, -3.4028235e38, 3.3895314e38, 3.3961775e38, 65504, 65519.996, 65520, -65520, 1, -1, 2.0**31, 2.0**32],
    np.float32,
)


def zero_points(name):
    """Return zero points: 0, both ends of the type, and a value between."""
    row = oracle.TYPES[name]
    if isinstance(row, oracle.Integer):
        values = (0, row.lowest, row.highest, (row.lowest + row.highest) // 2 + 1)
    else:
        values = (0.0, -row.highest, row.highest, 1.5)
    return [np.array(value).astype(row.dtype) for value in dict.fromkeys(values)]


def affordable(array):
    """Return the array, or a sample of it if Python interprets the kernels (NUMBA_DISABLE_JIT)."""
    return array[:: array.size // 256] if numba.config.DISABLE_JIT and array.size > 256 else array


def codes(name):
    """Return every code of a type of up to 16 bits. For a 32-bit type, return the ends, the powers of two and their neighbours,
    and random codes."""
    return affordable(_codes(name))


def _codes(name):
    row = oracle.TYPES[name]
    if row.bits <= 16:
        return np.arange(2**row.bits).astype(f"u{oracle.dtype(name).itemsize}").view(row.dtype)
    powers = 2 ** np.arange(32, dtype=np.int64)
    steps = np.concatenate([sign * powers + offset for sign in (1, -1) for offset in (-1, 0, 1)])
    random = np.random.default_rng(1).integers(0, 2**32, 10_000)
    return np.concatenate([steps, random]).astype(np.uint32).view(row.dtype)


@functools.cache
def boundaries(name):
    """Return the inputs where the result changes, for scale 1 and zero point 0: every tie of a type of up to 16 bits, and both
    bounds of saturation. For 32-bit integers, ties occur only below 2**23: return those next to powers of two, and random
    ones."""
    row = oracle.TYPES[name]
    if isinstance(row, oracle.Integer):
        if row.bits <= 16:
            return np.arange(row.lowest - 1, row.highest + 2) + 0.5
        powers = 2.0 ** np.arange(23)
        ties = np.concatenate([powers + 0.5, powers - 0.5, np.random.default_rng(2).integers(0, 2**22, 10_000) + 0.5])
        return np.concatenate([ties, -ties, [float(row.lowest), float(row.highest), 0.0]])
    finite = _codes(name).astype(np.float64)
    finite = np.unique(finite[np.isfinite(finite)])
    step = finite[-1] - finite[-2]
    beyond = row.highest + np.array([0.5, 1, 1.5, 2]) * step
    return np.concatenate([(finite[1:] + finite[:-1]) / 2, finite, beyond, -beyond])


def floats(name, scale, zero_point):
    """Return float32 inputs for a scale and zero point: special values, all boundaries with both neighbours, and random
    values."""
    shift = float(zero_point) if isinstance(oracle.TYPES[name], oracle.Integer) else 0.0
    with np.errstate(all="ignore"):
        at = ((boundaries(name) - shift) * np.float64(np.float32(scale))).astype(np.float32)
        around = [at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf))]
    random = np.random.default_rng(3).integers(0, 2**32, 25_000, dtype=np.uint32).view(np.float32)
    normal = np.random.default_rng(4).normal(0, 100 * scale, 25_000).astype(np.float32)
    return np.concatenate([SPECIAL, affordable(np.concatenate([*around, random, normal]))])


# Integers of more than 24 bits that are rounded to the wrong side of a tie if they are rounded to float32 first.
NEAR_TIES = np.array([2**30 + 2**22 + d for d in (-1, 0, 1)] + [2**30 + 3 * 2**22 + d for d in (-1, 0, 1)], np.int32)


def inputs(x_name, name, scale, zero_point):
    """Return inputs of any type that can be quantized; for a 16-bit type, all codes."""
    if x_name == "float32":
        return floats(name, scale, zero_point)
    if x_name == "int32":
        return np.concatenate([NEAR_TIES, -NEAR_TIES, codes(x_name), affordable(np.arange(-33_000, 33_000, dtype=np.int32))])
    return codes(x_name)


def pieces(array):
    """Return the array in pieces that are small enough to be quantized on a single thread."""
    return np.array_split(array, array.size // 50_000 + 1)
