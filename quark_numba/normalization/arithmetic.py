"""What becomes of sums and of one element: in float32, each step rounded once, to nearest and to even, but where it says so."""

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
    """The nearest bfloat16, as float32: ties to even, Inf beyond the largest. NaN is no special case, as it is for
    ``codecs.rounder``: the carry may take it to Inf, or from 0x7FFF8000 on into the sign, which leaves a zero."""
    bits = _f32(value).view(_u32)
    up = _u32(_u32(_u32(bits >> _SHIFT) & _ONE) + _HALF_LESS_ONE)
    return _u32(_u32(bits + up) & _UPPER).view(_f32)


# Rows whose elements are added up side by side: a vector of AVX-512.
LANES = 16


@intrinsic
def _add_up(typingctx: Any, tile: Any, stride: Any, columns: Any, sums: Any, squares: Any) -> Any:
    """By LANES columns: a vector of each row is loaded, and the square of them turned over."""
    word, vector = ir.IntType(32), ir.VectorType(ir.FloatType(), LANES)
    wide = ir.VectorType(ir.DoubleType(), LANES)

    def riffled(builder: Any, one: Any, other: Any, first: int) -> Any:
        """An element of `one`, of `other`, and so on, from the `first` of each on."""
        indices = [word(i // 2 + first + LANES * (i % 2)) for i in range(LANES)]
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(word, LANES), indices))

    def plus_square(builder: Any, total: Any, value: Any) -> Any:
        """The float64 sum is exact, or one operand is less than a 2**28th of the other: then it lies off any tie of float32, as
        the larger has at most 24 bits. So rounding once, as a fused multiply-add does, gives what rounding to float64 and to
        float32 does."""
        if HAS_FMA:
            of_vectors = ir.FunctionType(vector, [vector] * 3)
            fused = cgutils.get_or_insert_function(builder.module, of_vectors, f"llvm.fma.v{LANES}f32")
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


# (tile, stride, columns, sums, squares): go on with the sums of LANES rows, which begin `stride` apart, and with those of their
# squares, one element after the other. Each is float32; a square is added in float64, and the sum rounded to float32. `columns`
# is a multiple of LANES.
add_up: Any = _add_up if jit.JIT_ENABLED else _add_up_in_python


@jit.inline
def _exponent(value: Any) -> Any:
    """The biased one."""
    return _u32(_u32(_f32(value).view(_u32) >> _EXPONENT_SHIFT) & _EXPONENT_MASK)


@jit.inline
def _align(value: Any, exponent: Any) -> Any:
    """`value` on the grid of its sum with two to the power of a biased exponent, which has its sign. The pattern of that
    power is reckoned modulo 2**32: exponents above 255 change its sign."""
    bits = _f32(value).view(_u32)
    away = _u32(_u32(exponent - _exponent(value)) << _EXPONENT_SHIFT)
    power = _u32(_u32(bits & _SIGN_AND_EXPONENT) + away).view(_f32)
    return _f32(_f32(value + power) - power)


@jit.inline
def _product_exponent(a: Any, b: Any) -> Any:
    """The biased one of a * b, or one less; 0 if it is below."""
    exponent = _u32(_exponent(a) + _exponent(b))
    return _u32(exponent - _u32(127)) if exponent > _u32(127) else _u32(0)


@jit.inline
def _multiply_add(a: Any, b: Any, term: Any) -> Any:
    """term + a * b, in their common exponent."""
    product = _f32(a * b)
    exponent = max(_product_exponent(a, b), _exponent(term))
    return _f32(_align(term, exponent) + _align(product, exponent))


@jit.function
def minus_square(mean: Any, mean_of_squares: Any) -> Any:
    """mean_of_squares - mean * mean, of a unit that multiplies bfloat16 and adds in a common exponent: mean is split into
    three, and the products of these are added, the smallest first."""
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
    """The bfloat16 of the float32 power -1/2, which C's powf gives; tried with every float32 that is not negative. -0 and -Inf
    are as there: Inf and 0."""
    if variance == 0:
        return _f32(np.inf)
    if variance == -np.inf:
        return _f32(0)
    return to_bfloat16(_f32(np.float64(1) / np.sqrt(np.float64(variance))))


@jit.inline
def normalized(value: Any, inverse: Any, center: Any, scale: Any, bias: Any) -> Any:
    """y of an element, each step rounded to bfloat16, but the product with the scale."""
    centered = to_bfloat16(_f32(to_bfloat16(_f32(to_bfloat16(value) * inverse)) - center))
    return to_bfloat16(_f32(_f32(scale * centered) + bias))
