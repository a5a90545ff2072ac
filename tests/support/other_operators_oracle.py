"""The expected results of ExtendedInstanceNormalization and ExtendedLSTM, computed number by number with Python's integers and
numpy's scalars. Imports nothing of the package."""

import ctypes
import math
import os
import zlib
from fractions import Fraction

import numpy as np

f32 = np.float32


def from_bits(pattern):
    return np.uint32(pattern % 2**32).view(f32)


def bf(value):
    """Return the value rounded to bfloat16, ties to even, computed on the bits alone."""
    pattern = int(f32(value).view(np.uint32))
    low = pattern & 0xFFFF
    if low > 0x8000 or (low == 0x8000 and pattern >> 16 & 1):
        pattern = (pattern + 0x10000) % 2**32
    return from_bits(pattern & 0xFFFF0000)


def exponent(value):
    return int(f32(value).view(np.uint32)) >> 23 & 0xFF


def align(value, common):
    pattern = int(f32(value).view(np.uint32))
    k = from_bits((pattern & 0xFF800000) + (common - exponent(value)) * 2**23)
    return f32(f32(value + k) - k)


def madd(a, b, *terms):
    product = f32(a * b)
    common = max([exponent(a) + exponent(b) - 127, *map(exponent, terms)])
    total = None
    for each in (*terms, product):
        aligned = align(each, common)
        total = aligned if total is None else f32(total + aligned)
    return total


def minus_square(mean, mean_of_squares):
    a = [bf(mean)]
    a.append(bf(f32(mean - a[0])))
    a.append(bf(f32(f32(mean - a[0]) - a[1])))
    b = [-each for each in a]
    t = f32(a[2] * b[2])
    for i, j in ((2, 1), (1, 2), (0, 2), (1, 1), (2, 0), (1, 0), (0, 1)):
        t = madd(a[i], b[j], t)
    return madd(a[0], b[0], t, mean_of_squares)


def power_minus_half(value):
    """Return the value of C's powf(value, -0.5)."""
    if np.isnan(value):
        return value
    if value == 0:
        return f32(np.inf)
    if value == np.inf or value == -np.inf:
        return f32(0)
    if value < 0:
        return f32(np.nan)
    return f32(1.0 / math.sqrt(float(value)))


def instance_normalization(x, scale, bias, epsilon=1e-5):
    y = np.empty_like(x)
    scale, bias = scale.reshape(-1), bias.reshape(-1)
    with np.errstate(all="ignore"):
        for i in np.ndindex(x.shape[:2]):
            values = [f32(each) for each in x[i].reshape(-1)]
            out = []
            if values:
                total = squares = f32(0)
                for each in values:
                    v = bf(each)
                    total = f32(total + v)
                    squares = f32(np.float64(squares) + np.float64(v) * np.float64(v))
                r = f32(1.0 / len(values))
                mean, m2 = f32(total * r), f32(squares * r)
                inv = bf(power_minus_half(f32(minus_square(mean, m2) + f32(epsilon))))
                a = bf(f32(bf(mean) * inv))
                gamma, beta = bf(scale[i[1]]), bf(bias[i[1]])
                for each in values:
                    t = bf(f32(bf(f32(bf(each) * inv)) - a))
                    out.append(bf(f32(f32(gamma * t) + beta)))
            y[i] = np.array(out, f32).reshape(x.shape[2:])
    return y


_libm = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
_libm.tanhf.restype, _libm.tanhf.argtypes = ctypes.c_float, [ctypes.c_float]


def tanhf(value):
    return f32(_libm.tanhf(float(value)))


# Whether the C library's tanhf is the one with which the results of Quark's library were recorded (glibc 2.36). The last bits
# of another one may differ.
HAS_SAME_TANHF = zlib.crc32(b"".join(tanhf(x / 100).tobytes() for x in range(-400, 400))) == 759174161


def sign(number):
    return (number > 0) - (number < 0)


def shifted(number, n):
    """Return number / 2**n, rounded half away from zero and saturated to int32. A negative n multiplies."""
    magnitude = abs(number)
    magnitude = (magnitude + (1 << (n - 1) if n else 0)) >> n if n >= 0 else magnitude << -n
    return saturated(sign(number) * magnitude, 32)


def saturated(number, width):
    return max(-(2 ** (width - 1)), min(2 ** (width - 1) - 1, number))


def half_away(number):
    """Return a float or a fraction rounded half away from zero."""
    exact = Fraction(number)
    return sign(exact) * math.floor(abs(exact) + Fraction(1, 2))


def round32(number):
    return 0 if -1 < number < 0 else saturated(half_away(number), 32)


def ceil_log2(number):
    """Return the exact base-2 logarithm of a positive number, rounded up."""
    fraction, power = Fraction(number), 0
    while Fraction(2) ** power < fraction:
        power += 1
    while Fraction(2) ** (power - 1) >= fraction:
        power -= 1
    return power


def fix(m):
    """Return (mantissa, p) with m = mantissa / 2**p, up to rounding."""
    if m == 0:
        return 0, 0
    p = 15 - ceil_log2(abs(m))
    return half_away(Fraction(m) * Fraction(2) ** p), p


def code(value, scale, zero_point):
    """Return the uint16 code of a value, less 32768."""
    with np.errstate(all="ignore"):
        quotient = f32(value) / f32(scale)
    if np.isnan(quotient):
        return -32768
    if np.isinf(quotient):
        return 32767 if quotient > 0 else -32768
    rounded = round(Fraction(float(quotient)))  # half to even
    return max(0, min(65535, rounded + zero_point % 65536)) - 32768


def codes(array, scale, zero_point):
    found = {}
    flat = array.reshape(-1)
    result = [
        found[key] if (key := each.tobytes()) in found else found.setdefault(key, code(each, scale, zero_point))
        for each in flat
    ]
    return np.array(result, object).reshape(array.shape)


def lstm(x, w, r, b, *, hidden_size, y_scale, y_zero_point, info=None, **parameters):
    """Return the result of ExtendedLSTM. "saturated" is added to the set `info` if a hidden state saturates."""
    steps, batch, _ = x.shape
    y = np.empty((steps, 2, batch, hidden_size), f32)
    for n in range(batch):
        y[:, :, n] = one_sequence(x[:, n], w, r, b, hidden_size, y_scale, y_zero_point, parameters, info)
    return y


def one_sequence(x, w, r, b, hidden, y_scale, y_zero_point, parameters, info):
    scales = {name: f32(parameters[f"{name}_scale"]) for name in "xwrb"} | {"y": f32(y_scale)}
    points = {name: parameters[f"{name}_zero_point"] % 65536 for name in "xwrb"} | {"y": y_zero_point % 65536}
    z = {name: point - 32768 for name, point in points.items()}
    steps, inputs = x.shape
    xq, wq, rq, bq = (codes(each, scales[name], points[name]) for name, each in zip("xwrb", (x, w, r, b), strict=True))
    g = 2.0**24
    with np.errstate(all="ignore"):
        mx, mh = float(f32(scales["x"] * scales["w"])) * g, float(f32(scales["y"] * scales["r"])) * g
    mxz, mhz = mx * z["w"], mh * z["r"]
    (qx, px), (qh, ph), (qa, pa), (qb, pb) = map(fix, (mx, mh, mxz, mhz))
    ex = ceil_log2(inputs) if inputs else 0
    eh = ceil_log2(hidden)
    constant = np.empty((2, 4 * hidden), object)
    k0 = (inputs * mxz) * z["x"] + (hidden * mhz) * z["y"]
    for d in range(2):
        for row in range(4 * hidden):
            sum_w, sum_r = sum(wq[d, row]), sum(rq[d, row])
            biases = bq[d, row] + bq[d, 4 * hidden + row] - 2 * z["b"]
            value = k0 - (mx * z["x"]) * float(sum_w) - (mh * z["y"]) * float(sum_r) + (float(scales["b"]) * g) * float(biases)
            constant[d, row] = round32(value)
    u = 1.0 / float(scales["y"])
    po = 16 - ceil_log2(u)
    o = min(65535, half_away(Fraction(u) * Fraction(2) ** po))
    so = 24 + po
    oz = z["y"] if z["y"] >= 0 else z["y"] + 1
    y = np.empty((steps, 2, hidden), f32)
    for d in range(2):
        h, cell = [oz] * hidden, [f32(0)] * hidden
        for t in range(steps) if d == 0 else reversed(range(steps)):
            xs, hs = shifted(sum(xq[t]) * qa, pa), shifted(sum(h) * qb, pb)
            v = []
            for row in range(4 * hidden):
                xg = shifted(shifted(sum(a * c for a, c in zip(xq[t], wq[d, row], strict=True)), ex) * qx, px - ex)
                hg = shifted(shifted(sum(a * c for a, c in zip(h, rq[d, row], strict=True)), eh) * qh, ph - eh)
                v.append((xg + hg - xs - hs + constant[d, row] + 2**31) % 2**32 - 2**31)
            new = []
            for j in range(hidden):
                i, out, f = (sigmoid(v[gate * hidden + j]) for gate in range(3))
                candidate = tanhf(f32(v[3 * hidden + j] / 2.0**24))
                cell[j] = f32(f32(i * candidate) + f32(f * cell[j]))
                hf = f32(out * tanhf(cell[j]))
                k = round32(float(hf) * g)
                # A fraction, because `so` may be negative.
                exact = Fraction(k * o) / Fraction(2) ** so + oz
                found = half_away(exact)
                new.append(saturated(found, 16))
                if info is not None and found != new[-1]:
                    info.add("saturated")
                y[t, d, j] = f32(f32(new[-1] + 32768 - points["y"]) * scales["y"])
            h = new
    return y


def sigmoid(v):
    return f32(float(tanhf(f32(v / 2.0**25))) * 0.5 + 0.5)
