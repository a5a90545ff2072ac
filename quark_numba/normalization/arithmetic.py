"""The arithmetic of sums and of one element: the roundings to bfloat16, the order of additions, and the inverse root of the
variance. It is done in float32, each step rounded once to nearest, ties to even, unless a function says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from ..compiling import jit
from ..compiling.intrinsics import HAS_FMA

_u32, _f32 = np.uint32, np.float32
_ONE, _HALF_LESS_ONE, _SHIFT, _UPPER = _u32(1), _u32(0x7FFF), _u32(16), _u32(0xFFFF0000)
_EXPONENT_SHIFT, _EXPONENT_MASK, _SIGN_AND_EXPONENT = _u32(23), _u32(0xFF), _u32(0xFF800000)


@jit.inline
def to_bfloat16(value: Any) -> Any:
    """Return the nearest bfloat16 as a float32: ties to even, Inf beyond the largest. Unlike ``codecs.rounder``, it does not
    treat NaN as a special case: the carry may turn a NaN into Inf, or from 0x7FFF8000 on run into the sign and leave a zero."""
    bits = _f32(value).view(_u32)
    up = _u32(_u32(_u32(bits >> _SHIFT) & _ONE) + _HALF_LESS_ONE)
    return _u32(_u32(bits + up) & _UPPER).view(_f32)


# The number of rows whose sums are computed side by side: the elements of an AVX-512 vector.
LANES = 16


@intrinsic
def _add_up(typingctx: Any, tile: Any, stride: Any, columns: Any, sums: Any, squares: Any) -> Any:
    """Add up LANES columns at a time: load a vector from each row, and transpose these LANES vectors."""
    word, vector = ir.IntType(32), ir.VectorType(ir.FloatType(), LANES)
    wide = ir.VectorType(ir.DoubleType(), LANES)

    def riffled(builder: Any, one: Any, other: Any, first: int) -> Any:
        """Return the elements of `one` and `other` in turn, from index `first` on."""
        indices = [word(i // 2 + first + LANES * (i % 2)) for i in range(LANES)]
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(word, LANES), indices))

    def plus_square(builder: Any, total: Any, value: Any) -> Any:
        """Return total + value * value. One rounding, as in a fused multiply-add, has the same result as rounding to float64
        and then to float32. The reason is that the float64 sum is exact, or that one operand is less than 2**-28 times the
        other operand; then the sum is not at a tie of float32, because the larger operand has at most 24 bits."""
        if HAS_FMA:
            function_type = ir.FunctionType(vector, [vector] * 3)
            fused = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{LANES}f32")
            return builder.call(fused, [value, value, total])
        long = builder.fpext(value, wide)
        return builder.fptrunc(builder.fadd(builder.fpext(total, wide), builder.fmul(long, long)), vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(number: int) -> Any:
            return make_array(signature.args[number])(context, builder, arguments[number]).data

        places = [builder.bitcast(address(number), vector.as_pointer()) for number in (3, 4)]
        totals = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
        blocks = builder.udiv(arguments[2], arguments[2].type(LANES))
        with cgutils.for_range(builder, blocks) as loop:
            rows = []
            for row in range(LANES):
                index = builder.add(
                    builder.mul(arguments[1], arguments[1].type(row)), builder.mul(loop.index, loop.index.type(LANES))
                )
                rows.append(builder.load(builder.bitcast(builder.gep(address(0), [index]), vector.as_pointer()), align=4))
            for _ in range(LANES.bit_length() - 1):
                pairs = list(zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True))
                rows = [riffled(builder, *pair, first) for pair in pairs for first in (0, LANES // 2)]
            for column in rows:
                builder.store(builder.fadd(builder.load(totals[0]), column), totals[0])
                builder.store(plus_square(builder, builder.load(totals[1]), column), totals[1])
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(tile, stride, columns, sums, squares), generate


def _add_up_in_python(tile: Any, stride: int, columns: int, sums: Any, squares: Any) -> None:
    for column in tile.reshape(LANES, stride)[:, :columns].T:
        sums += column
        squares[...] = squares.astype(np.float64) + column.astype(np.float64) ** 2


# (tile, stride, columns, sums, squares): add the elements of LANES rows, which begin `stride` apart, to `sums`, and their
# squares to `squares`, element by element. Both are float32; a square is added in float64, and the sum rounded to float32.
# `columns` is a multiple of LANES.
add_up: Any = _add_up if jit.JIT_ENABLED else _add_up_in_python


_exponent = jit.inline(lambda value: _u32(_u32(_f32(value).view(_u32) >> _EXPONENT_SHIFT) & _EXPONENT_MASK))


@jit.inline
def _align(value: Any, exponent: Any) -> Any:
    """Return `value` rounded to the grid of float32 numbers with a biased exponent, by adding and subtracting the power of two
    with that exponent and the sign of `value`. The bits of the power are computed modulo 2**32: exponents above 255 change its
    sign."""
    bits = _f32(value).view(_u32)
    away = _u32(_u32(exponent - _exponent(value)) << _EXPONENT_SHIFT)
    power = _u32(_u32(bits & _SIGN_AND_EXPONENT) + away).view(_f32)
    return _f32(_f32(value + power) - power)


@jit.inline
def _product_exponent(a: Any, b: Any) -> Any:
    """Return the biased exponent of a * b or one less than it, but at least 0."""
    exponent = _u32(_exponent(a) + _exponent(b))
    return _u32(exponent - _u32(127)) if exponent > _u32(127) else _u32(0)


@jit.inline
def _multiply_add(a: Any, b: Any, term: Any) -> Any:
    """Return term + a * b, both aligned to their larger exponent."""
    product = _f32(a * b)
    exponent = max(_product_exponent(a, b), _exponent(term))
    return _f32(_align(term, exponent) + _align(product, exponent))


@jit.function
def minus_square(mean: Any, mean_of_squares: Any) -> Any:
    """Return mean_of_squares - mean * mean as a unit computes it that multiplies bfloat16 and adds in a common exponent. The
    mean is split into three parts, whose products are added from the smallest on."""
    high = to_bfloat16(mean)
    rest = _f32(mean - high)
    middle = to_bfloat16(rest)
    low = to_bfloat16(_f32(rest - middle))
    total = _f32(low * -low)
    total = _multiply_add(low, -middle, total)
    total = _multiply_add(middle, -low, total)
    total = _multiply_add(high, -low, total)
    total = _multiply_add(middle, -middle, total)
    total = _multiply_add(low, -high, total)
    total = _multiply_add(middle, -high, total)
    total = _multiply_add(high, -middle, total)
    product = _f32(high * -high)
    exponent = max(max(_product_exponent(high, high), _exponent(total)), _exponent(mean_of_squares))
    return _f32(_f32(_align(total, exponent) + _align(mean_of_squares, exponent)) + _align(product, exponent))


@jit.function
def inverse_root(variance: Any) -> Any:
    """Return variance**(-1/2) as float32, as C's powf computes it, rounded to bfloat16. It was compared with powf for every
    float32 that is not negative. As with powf, the results for -0 and -Inf are Inf and 0."""
    if variance == 0:
        return _f32(np.inf)
    if variance == -np.inf:
        return _f32(0)
    return to_bfloat16(_f32(np.float64(1) / np.sqrt(np.float64(variance))))


@jit.inline
def normalized(value: Any, inverse: Any, center: Any, scale: Any, bias: Any) -> Any:
    """Return y for an element. Each step is rounded to bfloat16, except the product with the scale."""
    centered = to_bfloat16(_f32(to_bfloat16(_f32(to_bfloat16(value) * inverse)) - center))
    return to_bfloat16(_f32(_f32(scale * centered) + bias))
