"""Inputs on which quantizers go wrong. Imports nothing of the package."""

import functools

import numpy as np
import oracle

SCALES = (1.0, 0.1, 3.0, 2.0**-7, 1e-30, 1e20, 1.1754944e-38)

SPECIAL = np.array(
    [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, -1.1754944e-38]
    + [3.4028235e38, -3.4028235e38, 3.3895314e38, 3.3961775e38, 65504, 65519.996, 65520, -65520, 1, -1, 2.0**31, 2.0**32],
    np.float32,
)


def zero_points(name):
    """Zero, both ends of the type, and something between."""
    row = oracle.TYPES[name]
    if isinstance(row, oracle.Integer):
        values = (0, row.lowest, row.highest, (row.lowest + row.highest) // 2 + 1)
    else:
        values = (0.0, -row.highest, row.highest, 1.5)
    return [np.array(value).astype(row.dtype) for value in dict.fromkeys(values)]


def codes(name):
    """Every code of an 8- or 16-bit type; of a 32-bit type the ends, powers of two and their neighbours, and a random lot."""
    dtype = oracle.dtype(name)
    if dtype.itemsize <= 2:
        return np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    powers = 2 ** np.arange(32, dtype=np.int64)
    steps = np.concatenate([sign * powers + offset for sign in (1, -1) for offset in (-1, 0, 1)])
    random = np.random.default_rng(1).integers(0, 2**32, 10_000)
    return np.concatenate([steps, random]).astype(np.uint32).view(dtype)


@functools.cache
def boundaries(name):
    """Where the result changes for scale 1 and zero point 0: every tie of an 8- or 16-bit type, and both bounds of saturation.
    32-bit integers have ties below 2**23 only: those next to powers of two, and a random lot."""
    row = oracle.TYPES[name]
    if isinstance(row, oracle.Integer):
        if row.dtype().itemsize <= 2:
            return np.arange(row.lowest - 1, row.highest + 2) + 0.5
        powers = 2.0 ** np.arange(23)
        ties = np.concatenate([powers + 0.5, powers - 0.5, np.random.default_rng(2).integers(0, 2**22, 10_000) + 0.5])
        return np.concatenate([ties, -ties, [float(row.lowest), float(row.highest), 0.0]])
    finite = codes(name).astype(np.float64)
    finite = np.unique(finite[np.isfinite(finite)])
    return np.concatenate([(finite[1:] + finite[:-1]) / 2, finite, [-row.highest * 1.0001, row.highest * 1.0001]])


def floats(name, scale, zero_point):
    """float32 inputs for a scale and zero point: special values, all boundaries and both neighbours of each, a random lot."""
    shift = float(zero_point) if isinstance(oracle.TYPES[name], oracle.Integer) else 0.0
    with np.errstate(all="ignore"):
        at = ((boundaries(name) - shift) * np.float64(np.float32(scale))).astype(np.float32)
        around = [at, np.nextafter(at, np.float32(np.inf)), np.nextafter(at, np.float32(-np.inf))]
    random = np.random.default_rng(3).integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    normal = np.random.default_rng(4).normal(0, 100 * scale, 50_000).astype(np.float32)
    return np.concatenate([SPECIAL, *around, random, normal])
