"""Stored block formats: the dequantized values, and the scales, exponents and shifts that elements share."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from block_samples import BFP, MX, SHAPES, axes, rounding_modes, values, x_types

from quark_numba import (
    BFPBlocks,
    bfp_dequantize,
    bfp_quantize,
    bfp_quantize_dequantize,
    mx_dequantize,
    mx_quantize,
    mx_quantize_dequantize,
)


def finite(shape, x_type):
    """Return finite values that are 0, or large enough for scales in float8e8m0, which are at least 2**-127."""
    x = values(shape, x_type)
    with np.errstate(all="ignore"):
        keep = np.isfinite(x) & ((np.abs(x) > 1e-30) | (x == 0))
        return np.where(keep, x, x.dtype.type(1.0))


def blocks_of(shape, axis, block_size):
    axis = 0 if len(shape) == 1 else axis % len(shape)
    return tuple(-(-length // block_size) if i == axis else length for i, length in enumerate(shape))


def shape_axis_pairs():
    return [(shape, axis) for shape in SHAPES if shape != (1,) and np.prod(shape) != 1 for axis in axes(shape)]


@x_types
@rounding_modes
@pytest.mark.parametrize("name", [*reversed(MX)])  # first those of int8, whose kernels are those of other tests
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_mx(name, rounding_mode, x_type):
    size, element = MX[name]["block_size"], MX[name]["element_dtype"]
    for shape, axis in shape_axis_pairs():
        x = finite(shape, x_type)
        attributes = MX[name] | {"rounding_mode": rounding_mode, "axis": axis}
        codes, scales = mx_quantize(x, **attributes)
        assert codes.dtype == oracle.dtype(oracle.MX_ELEMENTS[element][0])
        assert codes.shape == shape
        assert scales.dtype == ml_dtypes.float8_e8m0fnu
        assert scales.shape == blocks_of(shape, axis, size)
        y = mx_dequantize(codes, scales, axis=axis, block_size=size, output_dtype=x_type)
        oracle.assert_same_bits(y, mx_quantize_dequantize(x, **attributes))


@x_types
@rounding_modes
@pytest.mark.parametrize("name", BFP)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_bfp(name, rounding_mode, x_type):
    attributes = BFP[name] | {"rounding_mode": rounding_mode}
    stored = {key: attributes[key] for key in {*attributes} & {"bfp_method", "bit_width", "block_size", "sub_block_size"}}
    for shape, axis in shape_axis_pairs():
        x = values(shape, x_type)
        blocks = bfp_quantize(x, axis=axis, **attributes)
        assert blocks.mantissas.dtype == (np.uint8 if attributes["bit_width"] <= 16 else np.uint16)
        assert blocks.exponents.shape == blocks_of(shape, axis, attributes["block_size"])
        y = bfp_dequantize(blocks, axis=axis, output_dtype=x_type, **stored)
        expected = bfp_quantize_dequantize(x, axis=axis, **attributes)
        if attributes["bfp_method"] == "to_bfp":
            # A block that holds Inf or NaN is NaN.
            along = 0 if x.ndim == 1 else axis % x.ndim
            spread = np.repeat(blocks.exponents == 255, attributes["block_size"], along)
            special = spread[(slice(None),) * along + (slice(shape[along]),)]
            assert (special | np.isfinite(x.astype(np.float32))).all()
            expected = np.where(special, expected.dtype.type(np.nan), expected)
        oracle.assert_same_bits(y, expected)


@pytest.mark.parametrize("element", oracle.MX_ELEMENTS)
@pytest.mark.slow
def test_mx_scales(element):
    """The exponent of a scale is that of the largest element less that of the element type's highest binade, as in the
    format."""
    _, highest = oracle.MX_ELEMENTS[element]
    x = np.array([1.5, -6, 0.1, 0, 0, 0, 2.0**-126, 0, 2.0**127], np.float32)
    _, scales = mx_quantize(x, element_dtype=element, block_size=3)
    exponents = [2 - highest, -127, 127 - highest]
    assert scales.astype(np.float64).tolist() == [2.0**exponent for exponent in exponents]


@pytest.mark.slow
def test_codes():
    codes, scales = mx_quantize(np.array([1.0, -1.99, 0.5, 1 / 64], np.float32))
    assert (codes.tolist(), scales.astype(np.float32).tolist()) == ([64, -127, 32, 1], [1.0])
    codes, scales = mx_quantize(np.float32(-3.0), element_dtype="fp4_e2m1")
    assert (float(codes), float(scales)) == (-6.0, 0.5)
    blocks = bfp_quantize(np.array([1.0, -0.5, -0.0, 1.75], np.float32), bit_width=12, block_size=4)
    assert blocks.mantissas.tolist() == [0b0100, 0b1010, 0b1000, 0b0111]
    assert (blocks.exponents.tolist(), blocks.shifts.tolist()) == ([127], [0])
    blocks = bfp_quantize(np.array([4.0, 0, 1.0, 0.5], np.float32), bfp_method="to_bfp_prime", bit_width=11, block_size=4)
    assert (blocks.mantissas.tolist(), blocks.exponents.tolist(), blocks.shifts.tolist()) == ([2, 0, 1, 1], [129], [0, 1])


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ("fp8_e5m2", [1, np.inf, np.nan, -np.inf, 2, 2]),
        ("fp8_e4m3", [1, np.nan, np.nan, np.nan, 2, 2]),
        ("fp4_e2m1", [np.nan] * 4 + [2, 2]),
        ("int8", [np.nan] * 4 + [2, 2]),
    ],
)
@pytest.mark.slow
def test_inf_and_nan(element, expected):
    x = np.array([1, np.inf, np.nan, -np.inf, 2, 2], np.float32)
    y = mx_dequantize(*mx_quantize(x, element_dtype=element, block_size=4), block_size=4)
    np.testing.assert_array_equal(y, np.array(expected, np.float32))


@pytest.mark.slow
def test_scales_that_are_too_small():
    """A scale below 2**-127 becomes 2**-127. The elements become the nearest multiples of the smallest step with this scale."""
    x = np.array([3 * 2.0**-130, 2.0**-140], np.float32)
    codes, scales = mx_quantize(x, element_dtype="fp8_e4m3")
    assert float(scales[0]) == 2.0**-127
    assert mx_dequantize(codes, scales).tolist() == [3 * 2.0**-130, 0]
    x = np.array([3141465, 1], np.uint32).view(np.float32)  # 0.749 of the scale; 3/4 of it would give 1
    codes, scales = mx_quantize(x, element_dtype="fp4_e2m1")
    assert (float(scales[0]), codes.astype(np.float32).tolist()) == (2.0**-127, [0.5, 0])


@pytest.mark.slow
def test_a_scalar():
    for element in oracle.MX_ELEMENTS:
        codes, scales = mx_quantize(np.float32(-0.75), element_dtype=element)
        assert (codes.shape, scales.shape) == ((), ())
        assert mx_dequantize(codes, scales) == -0.75


# Ones. They are not computed, as this would compile kernels in every process that collects tests.
CODES, SCALES = np.full((2, 40), 64, np.int8), np.ones((2, 2), ml_dtypes.float8_e8m0fnu)
BLOCKS = BFPBlocks(*(np.full((2, length), value, np.uint8) for length, value in ((40, 64), (5, 127), (5, 0))))


@pytest.mark.slow
def test_arguments_of_wrong_calls():
    found = [*mx_quantize(np.ones((2, 40), np.float32)), *bfp_quantize(np.ones((2, 40), np.float32))]
    for each, expected in zip(found, [CODES, SCALES, *BLOCKS], strict=True):
        oracle.assert_same_bits(each, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mx_quantize(np.ones((2, 3)), axis=1), TypeError, "x has element type float64"),
        (lambda: mx_quantize(np.ones((2, 3), np.float32), axis=2), ValueError, "axis is 2, out of range"),
        (lambda: mx_quantize([1.0], element_dtype="fp5"), ValueError, "element_dtype is 'fp5'"),
        (lambda: mx_quantize([1.0], block_size=1.5), TypeError, "block_size is 1.5; expected an integer"),
        (lambda: mx_dequantize(CODES.astype(np.int16), SCALES), TypeError, "codes has element type int16"),
        (lambda: mx_dequantize(CODES, SCALES.astype(np.float32)), TypeError, "scales has element type float32"),
        (lambda: mx_dequantize(CODES, SCALES, axis=0), ValueError, r"scales has shape \(2, 2\); expected \(1, 40\)"),
        (lambda: mx_dequantize(CODES, SCALES, block_size=0), ValueError, "block_size is 0"),
        (lambda: mx_dequantize(CODES, SCALES, output_dtype="int8"), TypeError, "output_dtype has element type int8"),
        (lambda: bfp_quantize([1.0], bit_width=9), ValueError, "bit_width is 9"),
        (lambda: bfp_quantize(np.ones((2, 3), np.float32), axis=-3), ValueError, "axis is -3, out of range"),
        (lambda: bfp_dequantize(BLOCKS, bit_width=20), TypeError, "mantissas has dtype uint8; expected uint16"),
        (lambda: bfp_dequantize(BLOCKS, block_size=4), ValueError, r"exponents has shape \(2, 5\); expected \(2, 10\)"),
        (lambda: bfp_dequantize(BFPBlocks(*BLOCKS[:2], BLOCKS.shifts[:1])), ValueError, r"shifts has shape \(1, 5\)"),
        (lambda: bfp_dequantize(BLOCKS, output_dtype="int8"), TypeError, "output_dtype has element type int8"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
