"""Inf, NaN, overflows and underflows are results: with the strictest settings of numpy, calls neither raise nor warn."""

import ml_dtypes
import numpy as np
import oracle
import pytest
import samples

import quark_numba

SIGNALLING = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
X = np.resize(np.concatenate([SIGNALLING, samples.SPECIAL]), (4, 8))
HALVES = np.resize(np.array([0x7C01, 0x7F81, 0xFF81, 1, 0x8001, 0x7BFF, 0x7F7F, 0x3C00], np.uint16), (4, 8))
MOST = {"axis": 1, "block_size": 8, "rounding_mode": 0}
BFP = MOST | {"bfp_method": "to_bfp", "bit_width": 16, "sub_block_size": 2, "sub_block_shift_bits": 1}


def quantize(x, scale, name, **named):
    def expected():
        return oracle.quantize(x, np.resize(scale, x.shape), None, name, precision=named.get("precision"))

    return lambda: quark_numba.quantize(x, scale, dtype=name, **named), expected


def dequantize(x, scale, name, **named):
    def expected():
        return oracle.dequantize(x, np.resize(scale, x.shape), None, name, named.get("output_dtype", "float32"))

    return lambda: quark_numba.dequantize(x, scale, **named), expected


def block_values(x, to_bfloat, output):
    """Return a call that stores blocks and reads them, and what it gives: blocks with Inf or NaN are NaN."""

    def stored():
        given = BFP | {"convert_to_bfloat_before_bfp": to_bfloat}
        options = {name: given[name] for name in ("bfp_method", "axis", "bit_width", "block_size")}
        return quark_numba.bfp_dequantize(quark_numba.bfp_quantize(x, **given), output_dtype=output, **options)

    def expected():
        with np.errstate(all="ignore"):
            single = x.astype(np.float32)
            rounded = single.astype(ml_dtypes.bfloat16).astype(np.float32) if to_bfloat else single
            y = oracle.bfp(single, **BFP, convert_to_bfloat_before_bfp=to_bfloat)
            special = ~np.isfinite(rounded).all(axis=1, keepdims=True)
            return np.where(special, np.float32(np.nan), y).astype(oracle.dtype(output))

    return stored, expected


def mx(x, element_dtype):
    named = MOST | {"element_dtype": element_dtype}
    return lambda: quark_numba.mx_quantize_dequantize(x, **named), lambda: oracle.mx(x, **named)


def fake_quantize(scale):
    """Return a call whose scale is NaN, and what it gives: NaN."""
    return lambda: quark_numba.fake_quantize(X, scale), lambda: np.full(X.shape, np.nan, np.float32)


ROWS = np.float32([[1e-3], [1e-39], [3e38], [1]]) * np.linspace(-1, 1, 8, dtype=np.float32)

CASES = {
    "x": quantize(X, np.float32(0.5), "int8"),
    "float codes": quantize(X, np.float32(1e-30), "float16"),
    "scales in float64": quantize(X, np.resize(SIGNALLING, 8), "int8", precision="float64"),
    "int32 scales in bfloat16": quantize(
        np.full((4, 8), 5, np.int32), np.arange(8, dtype=np.int32), "bfloat16", precision="bfloat16"
    ),
    "float16 x and scales": quantize(HALVES.view(np.float16), HALVES[0].view(np.float16), "int8"),
    "bfloat16 x and scales": quantize(HALVES.view(ml_dtypes.bfloat16), HALVES[0].view(ml_dtypes.bfloat16), "int8"),
    "a product below float16": dequantize(np.full((4, 8), 3, np.int8), np.float32(1e-9), "int8", output_dtype="float16"),
    "bfloat16 codes": dequantize(HALVES.view(ml_dtypes.bfloat16), np.float32(3e38), "bfloat16"),
    "blocks rounded to bfloat16 first": block_values(X, 1, "float32"),
    "values of blocks below float16": block_values(ROWS, 0, "float16"),
    "values of blocks beyond bfloat16": block_values(ROWS, 1, "bfloat16"),
    "a Microscaling format": mx(X, "fp4_e2m1"),
    "fake quantization": fake_quantize(SIGNALLING[0]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("error", ["raise", "warn"])  # a warning fails a test, too
@pytest.mark.by_default(2)
def test_no_error(case, error):
    call, expected = CASES[case]
    with np.errstate(all=error):
        found = [call() for _ in range(2)]  # the second call may take a shorter way
    with np.errstate(all="ignore"):
        for each in found:
            oracle.assert_same_bits(each, expected())
