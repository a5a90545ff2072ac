"""The arithmetic of one number: codes, shifts of integers, their rounding and saturation, and the C library's tanhf."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from ..compiling import jit
from ..element_types import FLOAT32, named
from ..linear.arithmetic import converter
from ..linear.key import select

(_UINT16,) = named("uint16")
_quantize = converter(select("quantize", FLOAT32, FLOAT32, _UINT16, _UINT16))

# To wrap an integer around to 32 bits: add the bias, apply the mask, and subtract the bias.
_INT32_BIAS, _UINT32_MASK = np.int64(1 << 31), np.int64((1 << 32) - 1)
_INT32_LOWEST, _INT32_HIGHEST = np.int64(-(1 << 31)), np.int64((1 << 31) - 1)


@jit.inline
def code(value: Any, scale: Any, zero_point: Any) -> Any:
    """Return the uint16 code of a float32, less 32768."""
    return np.int16(np.int32(_quantize(value, scale, zero_point)) - np.int32(1 << 15))


@intrinsic
def _tanhf(typingctx: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        function = cgutils.get_or_insert_function(builder.module, function_type, "tanhf")
        function.attributes.add("nobuiltin")
        return builder.call(function, arguments)

    return types.float32(types.float32), generate


def _c_tanhf() -> Any:
    function = ctypes.CDLL("ucrtbase" if os.name == "nt" else None).tanhf
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return lambda value: np.float32(function(float(value)))


# The tanhf of the process, found by name. "nobuiltin" keeps LLVM, which knows the name, from replacing it by the function of a
# vector library.
tanhf: Any = _tanhf if jit.JIT_ENABLED else _c_tanhf()


# The number of rows of weights that are multiplied together: two AVX-512 vectors.
ROWS = 32


@intrinsic
def _add_products(
    typingctx: Any, codes: Any, at: Any, low: Any, high: Any, start: Any, pairs: Any, products: Any, to: Any
) -> Any:
    """Write the code so that LLVM turns the sum of two products of adjacent 16-bit numbers, and its addition to a total, into
    one instruction."""
    lanes, word = ROWS // 2, ir.IntType(32)
    numbers, sums = ir.VectorType(ir.IntType(16), 2 * lanes), ir.VectorType(word, lanes)
    longs = ir.VectorType(ir.IntType(64), lanes)

    def picked(builder: Any, vector: Any, indices: Any) -> Any:
        mask = ir.Constant(ir.VectorType(word, len(indices)), [word(index) for index in indices])
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def sum_of_pairs(builder: Any, one: Any, other: Any) -> Any:
        wide = ir.VectorType(word, 2 * lanes)
        product = builder.mul(builder.sext(one, wide), builder.sext(other, wide))
        return builder.add(*(picked(builder, product, range(first, 2 * lanes, 2)) for first in (0, 1)))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(number: int, index: Any, to_type: Any) -> Any:
            array = make_array(signature.args[number])(context, builder, arguments[number])
            return builder.bitcast(builder.gep(array.data, [index]), to_type.as_pointer())

        weights = address(0, arguments[1], numbers)
        parts = [address(number, arguments[4], word) for number in (2, 3)]
        totals = [[cgutils.alloca_once_value(builder, ir.Constant(sums, None)) for _ in range(2)] for _ in parts]
        with cgutils.for_range(builder, arguments[5]) as loop:
            vectors = []
            for half in range(2):
                index = builder.add(builder.mul(loop.index, loop.index.type(2)), loop.index.type(half))
                vectors.append(builder.load(builder.gep(weights, [index]), align=2))
            for part, both in zip(parts, totals, strict=True):
                pair = builder.load(builder.gep(part, [loop.index]), align=2)
                one = builder.insert_element(ir.Constant(sums, ir.Undefined), pair, word(0))
                everywhere = builder.bitcast(picked(builder, one, [0] * lanes), numbers)
                for vector, total in zip(vectors, both, strict=True):
                    builder.store(builder.add(builder.load(total), sum_of_pairs(builder, vector, everywhere)), total)
        results = address(6, arguments[7], longs)
        for half in range(2):
            below, above = (builder.sext(builder.load(both[half]), longs) for both in totals)
            result = builder.gep(results, [word(half)])
            shifted_up = builder.shl(above, ir.Constant(longs, [ir.IntType(64)(8)] * lanes))
            before = builder.load(result, align=8)
            builder.store(builder.add(before, builder.add(shifted_up, below)), result, align=8)
        return context.get_dummy_value()

    return types.void(codes, at, low, high, start, pairs, products, to), generate


def _add_products_of_python(codes: Any, at: int, low: Any, high: Any, start: int, pairs: int, products: Any, to: int) -> None:
    weights = codes[at : at + 2 * ROWS * pairs].reshape(pairs, ROWS, 2).astype(np.int64)
    numbers = 256 * high[start : start + 2 * pairs].astype(np.int64) + low[start : start + 2 * pairs]
    products[to : to + ROWS] += np.einsum("prk,pk->r", weights, numbers.reshape(pairs, 2))


# (codes, at, low, high, start, pairs, products, to): multiply a block of ROWS rows of codes with the 2 * pairs numbers
# 256 * high + low from `start` on, and add the sum of products of each row to its number in `products`, int64, from `to` on.
# The codes begin at `at`: two codes of the first row, two of the second, and so on for all ROWS, then the next two of each row.
#
# A product with a low part, 0 to 255, has a magnitude of at most 2**15 * 255; one with a high part, -128 to 127, of at most
# 2**15 * 2**7. The sum of 256 of them is below 2**31, so 32-bit sums are exact for up to MAX_PAIRS pairs.
add_products: Any = _add_products if jit.JIT_ENABLED else _add_products_of_python
MAX_PAIRS = 128


@jit.inline
def int32(value: Any) -> Any:
    """Return an int64 wrapped around to 32 bits."""
    return np.int32(((value + _INT32_BIAS) & _UINT32_MASK) - _INT32_BIAS)


@jit.inline
def shifts(count: int) -> Any:
    """Return (left, right) for `shifted`, from the count of a shift to the right; a negative count shifts to the left.

    Beyond 31 to the left, every number but 0 saturates, as it does with 31. Numbers are below 2**61; beyond 62 to the right,
    all are rounded to 0, as they are with 62."""
    return np.int64(min(max(-count, 0), 31)), np.int64(min(max(count, 0), 62))


@jit.inline
def shifted(value: Any, left: Any, right: Any) -> Any:
    """Return value * 2**left / 2**right, rounded half away from zero and saturated to int32, as an int64. `left` or `right` is
    0.

    For a shift to the left, the value is first clamped to 2**62 >> left, so that the result stays within 2**62. A value beyond
    this limit saturates anyway."""
    limit = np.int64(1 << 62) >> left
    value = min(max(value, -limit), limit) << left
    magnitude = (abs(value) + ((np.int64(1) << right) >> np.int64(1))) >> right
    value = magnitude if value >= 0 else -magnitude
    return min(max(value, _INT32_LOWEST), _INT32_HIGHEST)


@jit.inline
def rounded(value: Any) -> Any:
    """Return a float64 as an int64, rounded half away from zero and saturated to int32; values between -1 and 0 become 0."""
    value = min(max(value, -2147483648.0), 2147483647.0)
    whole = np.floor(abs(value))
    magnitude = np.int64(whole) + (np.int64(1) if abs(value) - whole >= 0.5 else np.int64(0))
    return magnitude if value >= 0 else (-magnitude if value <= -1 else np.int64(0))


@jit.inline
def hidden_code(value: Any, mantissa: Any, left: Any, right: Any, initial: Any) -> Any:
    """Return the code, less 32768, of a hidden state from -1 to 1, rounded half away from zero and saturated.

    The magnitude of value * 2**24 is at most 2**24, and the mantissa is from 2**15 to 2**16, so that the product is at most
    2**40. Shifts are limited to 16 to the left, with which all products but 0 saturate, and to 42 to the right, with which the
    product is less than a half. Longer shifts would not change the result."""
    product = rounded(np.float64(value) * 16777216.0) * mantissa
    total = (product << left) + (initial << right)
    magnitude = (abs(total) + ((np.int64(1) << right) >> np.int64(1))) >> right
    return min(max(magnitude if total >= 0 else -magnitude, np.int64(-32768)), np.int64(32767))
