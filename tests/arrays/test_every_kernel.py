"""Direct calls against the oracle: every kernel of the dispatch table, and every combination of types and granularity.

All cases are generated from the package's tables. Another test checks that the oracle knows every type in the tables.
"""

import granularities
import numba
import numpy as np
import oracle
import pytest
import samples
from granularities import GRANULARITIES, cell, keys, quantized_types, scale_types, with_or_without_zero_point

from quark_numba import dequantize, quantize
from quark_numba.linear.kernels import PIECE, VERY_LONG
from quark_numba.linear.versions import types


def quantize_pieces(x, *arguments, **attributes):
    return np.concatenate([quantize(piece, *arguments, **attributes) for piece in samples.pieces(x)])


def dequantize_pieces(x, *arguments, **attributes):
    return np.concatenate([dequantize(piece, *arguments, **attributes) for piece in samples.pieces(x)])


def check(x, codes, scale, zero_point, name, attributes):
    """Check that x is quantized, and codes, by default those of x, are dequantized as by the oracle."""
    spread = [oracle.spread(each, attributes["axis"], attributes["block_size"], x.shape) for each in (scale, zero_point)]
    y = quantize(x, scale, zero_point, **attributes)
    oracle.assert_same_bits(y, oracle.quantize(x, *spread, name))
    codes = y if codes is None else codes
    oracle.assert_same_bits(dequantize(codes, scale, zero_point, **attributes), oracle.dequantize(codes, *spread, name))


@keys("quantize")
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_quantize_kernel(key):
    """A 16-bit type has all its values as inputs. The inputs in float32 include every tie and both its neighbours."""
    name, precision = key.y.name, key.precision.name
    zero_points = samples.zero_points(name)
    for scale, zero_point in [(1.0, zero_points[0]), (0.37, zero_points[-1])]:
        scale = np.float32(scale)
        x = samples.inputs(key.x.name, name, oracle.rounded(np.float64(scale), precision), zero_point)
        y = quantize_pieces(x, scale, zero_point, precision=precision, saturate=key.saturate)
        expected = oracle.quantize(x, scale, zero_point, name, precision=precision, saturate=key.saturate)
        oracle.assert_same_bits(y, expected)


@keys("dequantize")
@pytest.mark.covering
@pytest.mark.by_default(4)
def test_dequantize_kernel(key):
    """A type of up to 16 bits has all its codes as inputs."""
    name, output = key.x.name, key.y.name
    codes, zero_points = samples.codes(name), samples.zero_points(name)
    for scale, zero_point in [(1.0, zero_points[0]), (0.37, zero_points[-1]), (1e-6, zero_points[0]), (3e36, zero_points[-1])]:
        scale = np.float32(scale)
        y = dequantize_pieces(codes, scale, zero_point, output_dtype=output)
        oracle.assert_same_bits(y, oracle.dequantize(codes, scale, zero_point, name, output))


@granularities.granularities
@scale_types("quantize")
@quantized_types("quantize")
@with_or_without_zero_point
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_quantize_cell(granularity, scale_name, name, with_zero_point):
    x_shape, parameters, spread, attributes = cell(granularity, scale_name, name, with_zero_point)
    x_name = scale_name if scale_name in [row.name for row in types("quantize", "x")] else "float32"
    x = np.random.default_rng(6).normal(0, 20, x_shape).astype(oracle.dtype(x_name))
    oracle.assert_same_bits(quantize(x, *parameters, dtype=name, **attributes), oracle.quantize(x, *spread, name))


@granularities.granularities
@scale_types("dequantize")
@quantized_types("dequantize")
@with_or_without_zero_point
@pytest.mark.covering
def test_dequantize_cell(granularity, scale_name, name, with_zero_point):
    x_shape, parameters, spread, attributes = cell(granularity, scale_name, name, with_zero_point)
    output = scale_name if scale_name in [row.name for row in types("dequantize", "y")] else "float32"
    x = np.random.default_rng(7).permutation(np.resize(samples.codes(name), np.prod(x_shape))).reshape(x_shape)
    if output != scale_name:
        attributes["output_dtype"] = output
    oracle.assert_same_bits(dequantize(x, *parameters, **attributes), oracle.dequantize(x, *spread, name, output))


@quantized_types("quantize")
@pytest.mark.parametrize("granularity", [name for name in GRANULARITIES if name != "per_tensor"])
@pytest.mark.parametrize("last", [0, -1], ids=["all_zero", "zero_but_for_one"])
@pytest.mark.by_default(4)
def test_zero_points_of_zero(granularity, name, last):
    x_shape, (scale, zeros), _, attributes = cell(granularity, "float32", name, True)
    zeros[...] = 0
    zeros[(-1,) * zeros.ndim] = samples.zero_points(name)[last]
    x = np.random.default_rng(9).normal(0, 20, x_shape).astype(np.float32)
    check(x, np.resize(samples.codes(name), x_shape), scale, zeros, name, attributes)


@quantized_types("quantize")
@pytest.mark.parametrize("scale", samples.SCALES, ids=str)
@pytest.mark.by_default(4)
def test_scales_of_all_sizes(name, scale):
    """The inputs include every tie and both its neighbours. Zero points have all sizes, too."""
    scale, codes = np.float32(scale), samples.codes(name)
    for zero_point in samples.zero_points(name):
        x = samples.floats(name, scale, zero_point)
        oracle.assert_same_bits(quantize_pieces(x, scale, zero_point), oracle.quantize(x, scale, zero_point, name))
        y = dequantize_pieces(codes, scale, zero_point)
        oracle.assert_same_bits(y, oracle.dequantize(codes, scale, zero_point, name))


@quantized_types("quantize")
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5, np.inf, np.nan, 1e-45], ids=str)
def test_odd_scales(name, scale):
    """The result is that of IEEE arithmetic and then saturation, whatever the scale."""
    scale = np.float32(scale)
    for zero_point in [*samples.zero_points(name), np.array(-0.0).astype(oracle.dtype(name))]:
        y = quantize(samples.SPECIAL, scale, zero_point)
        oracle.assert_same_bits(y, oracle.quantize(samples.SPECIAL, scale, zero_point, name))
        codes = samples.codes(name)
        y = dequantize_pieces(codes, scale, zero_point)
        oracle.assert_same_bits(y, oracle.dequantize(codes, scale, zero_point, name))


@pytest.mark.parametrize("name", [name for name, row in oracle.TYPES.items() if not isinstance(row, oracle.Integer)])
@pytest.mark.by_default(1)
def test_unsaturated(name):
    """`saturate` makes a difference only for float8 types."""
    for scale in np.array([1, 0.37, 1e-30], np.float32):
        for zero_point in samples.zero_points(name):
            x = samples.floats(name, scale, zero_point)
            y = quantize_pieces(x, scale, zero_point, saturate=False)
            oracle.assert_same_bits(y, oracle.quantize(x, scale, zero_point, name, saturate=False))


@pytest.mark.parametrize("code", range(256))
@pytest.mark.slow
def test_float8e8m0_scales(code):
    """The scales are 2**-127 .. 2**127 and NaN. The quotient is nevertheless in float32."""
    scale = np.array(code, np.uint8).view(oracle.dtype("float8e8m0"))
    x = samples.SPECIAL
    oracle.assert_same_bits(quantize(x, scale, dtype="float8e5m2"), oracle.quantize(x, scale, None, "float8e5m2"))
    codes = samples.codes("float8e5m2")
    y = dequantize(codes, scale, output_dtype="bfloat16")
    oracle.assert_same_bits(y, oracle.dequantize(codes, scale, None, "float8e5m2", "bfloat16"))


@pytest.mark.parametrize("precision", [None, "float32", "float16", "bfloat16", "float64"])
@pytest.mark.slow
def test_int32_scales(precision):
    """Scales and inputs are rounded to the precision once, with ties to even."""
    scale = np.array([1, -1, 0, 3, 2**24 + 1, 2**31 - 1, -(2**31), *samples.NEAR_TIES], np.int32)
    for x_name in ("int32", "float32"):
        x = np.random.default_rng(8).uniform(-(2.0**31), 2.0**31 - 200, (100, len(scale))).astype(x_name)
        for name in ("bfloat16", "int32"):
            y = quantize(x, scale, precision=precision, dtype=name)
            oracle.assert_same_bits(y, oracle.quantize(x, scale, None, name, precision=precision))


@pytest.mark.parametrize("name", [name for name, row in oracle.TYPES.items() if row.bits < 8])
def test_bits_above_a_code_do_not_count(name):
    """Kernels ignore the unused bits of packed codes and zero points. Other libraries may extend the sign into these bits."""
    codes = np.arange(256, dtype=np.uint8).view(oracle.dtype(name))
    expected = oracle.dequantize(codes, np.float32(1.5), None, name)
    oracle.assert_same_bits(dequantize(codes, np.float32(1.5)), expected)
    scale = np.full(256, 1.5, np.float32)
    expected = oracle.dequantize(codes[::-1], scale, codes, name)
    oracle.assert_same_bits(dequantize(codes[::-1].copy(), scale, codes, axis=0), expected)
    x = np.linspace(-20, 20, 256).astype(np.float32)
    y = quantize(x, scale, codes, axis=0)
    oracle.assert_same_bits(y, oracle.quantize(x, scale, codes, name))
    assert y.view(np.uint8).max() < 2 ** oracle.TYPES[name].bits  # as in ml_dtypes, unused bits are 0


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["int8", "float6e2m3"])
@pytest.mark.parametrize(
    ("x_shape", "scale_shape", "axis", "block_size"),
    [((200_003,), (), 0, 0), ((331, 401), (401,), 1, 0), ((331, 401), (331,), 0, 0), ((3, 7, 17, 401), (7,), 1, 0)]
    + [((331, 401), (331, 14), 1, 30), ((331, 401), (14, 401), 0, 25), ((9, 37, 401), (9, 4, 401), 1, 10)]
    + [((37, 9, 401), (13, 9, 401), 0, 3), ((200_003,), (3,), 0, 70_000), ((3, 70_001), (1, 70_001), 0, 3)],
    ids=str,
)
@pytest.mark.by_default(1)
def test_slices_of_threads(name, x_shape, scale_shape, axis, block_size):
    """Threads divide arrays of these sizes in the middle of rows and blocks."""
    scale, zero_point = granularities.scales("float32", scale_shape), granularities.zero_points(name, scale_shape)
    x = np.random.default_rng(9).normal(0, 20, x_shape).astype(np.float32)
    check(x, None, scale, zero_point, name, {"axis": axis, "block_size": block_size})


@pytest.fixture
def one_thread():
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@pytest.mark.compiled
@pytest.mark.parametrize("size", [VERY_LONG + each for each in (-1, 0, 1, PIECE, 2 * PIECE - 1, 2 * PIECE + 65)], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 63])
@pytest.mark.by_default(3)
def test_two_halves_in_turns(size, offset, one_thread):
    """A run of elements with one scale, which one thread reads in two places, begins anywhere in a cache line."""
    x = np.random.default_rng(11).normal(0, 20, (2, size)).astype(np.float32)
    scale, zero_point = np.array([0.3, 0.5], np.float32), np.array([1, -2], np.int8)
    out = np.empty(x.size + offset, np.int8)[offset:].reshape(x.shape)
    quantize(x, scale, zero_point, axis=0, out=out)
    for i in range(2):
        oracle.assert_same_bits(out[i], oracle.quantize(x[i], scale[i], zero_point[i], "int8"))


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["uint8", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.covering
@pytest.mark.slow
def test_past_the_cache(name, offset):
    """Results are larger than 16 MiB, and begin on a cache line or beside one."""
    x = np.random.default_rng(10).normal(0, 20, (3, (1 << 24) // 3 + 5)).astype(np.float32)
    scale = np.array([0.1, 0.3, 0.7], np.float32)
    out = np.empty(x.size + offset, oracle.dtype(name))[offset:].reshape(x.shape)
    assert quantize(x, scale, axis=0, dtype=name, out=out) is out
    back = np.empty(x.size + offset, np.float32)[offset:].reshape(x.shape)
    assert dequantize(out, scale, axis=0, out=back) is back
    for i in range(3):
        for start in range(0, x.shape[1], 1 << 20):
            piece = (i, slice(start, start + (1 << 20)))
            oracle.assert_same_bits(out[piece], oracle.quantize(x[piece], scale[i], None, name))
            oracle.assert_same_bits(back[piece], oracle.dequantize(out[piece], scale[i], None, name))
