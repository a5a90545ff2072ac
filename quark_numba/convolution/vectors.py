"""Vectors of the products of codes: what the loops of a convolution do for a tile, some pixels of a row of y in one or two
blocks of channels; the possible tiles, and the processor's instructions. The sums of a tile stay in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ..compiling.jit import JIT_ENABLED
from .key import GROUP

# The possible numbers of pixels in a tile. A processor has 32 vector registers: two blocks of 14 pixels take 28, their
# weights 2, and a group of codes 1.
TILES = (14, 12, 10, 8, 6, 4, 2, 1)

# The most blocks of channels in a tile.
BLOCKS = 2

_BYTE, _INT, _WORD, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()

_features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")

# By the number of lanes: whether the processor multiplies groups of uint8 and int8, and adds the products to int32, in one
# instruction.
HAS_DOT_PRODUCTS = {
    16: JIT_ENABLED and "+avx512vnni" in _features,
    8: JIT_ENABLED and ("+avxvnni" in _features or {"+avx512vnni", "+avx512vl"} <= {*_features}),
}

# Whether the processor looks up 64 codes in a table of 128 bytes, in one instruction.
HAS_LOOKUP = JIT_ENABLED and "+avx512vbmi" in _features

# The bytes of a vector of that instruction.
_LOOKED_UP = 64


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    loaded = builder.load(_pointer(builder, address, kind))
    loaded.align = align
    return loaded


def _after(builder: Any, address: Any, count: Any, size: int) -> Any:
    """Return the address after `count` elements of `size` bytes."""
    if isinstance(count, int):
        return builder.add(address, _WORD(count * size))
    return builder.add(address, builder.mul(count, _WORD(size)))


def _everywhere(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector of a value."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes))


def _add_products(builder: Any, lanes: int, sums: Any, codes: Any, weights: Any) -> Any:
    """Return the sums (int32), each with the products of GROUP codes (uint8) and weights (int8) added. `codes` and `weights`
    are vectors of int32 that hold a group in each lane."""
    ints = ir.VectorType(_INT, lanes)
    if HAS_DOT_PRODUCTS[lanes]:
        name = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
        multiply = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ints, [ints] * 3), name)
        return builder.call(multiply, [sums, codes, weights])
    for place in range(GROUP):
        # The byte at a place of each lane. It is moved to the top, and back with its sign, or without one.
        shift = ir.Constant(ints, [8 * (GROUP - 1 - place)] * lanes)
        back = ir.Constant(ints, [24] * lanes)
        code, weight = (builder.shl(each, shift) for each in (codes, weights))
        sums = builder.add(sums, builder.mul(builder.lshr(code, back), builder.ashr(weight, back)))
    return sums


def _code(builder: Any, value: Any, inverse: Any, zero_point: Any, lanes: int) -> Any:
    """Return the codes (uint8) of a vector of float32: saturate(round(value * inverse) + zero_point). NaN has the code 0."""
    floats = value.type
    rint = cgutils.get_or_insert_function(builder.module, ir.FunctionType(floats, [floats]), f"llvm.rint.v{lanes}f32")
    value = builder.call(rint, [builder.fmul(value, _everywhere(builder, inverse, lanes))])
    value = builder.fadd(value, _everywhere(builder, zero_point, lanes))
    lowest, highest = (ir.Constant(floats, [limit] * lanes) for limit in (0.0, 255.0))
    value = builder.select(builder.fcmp_ordered(">", value, lowest), value, lowest)
    value = builder.select(builder.fcmp_ordered("<", value, highest), value, highest)
    return builder.trunc(builder.fptosi(value, ir.VectorType(_INT, lanes)), ir.VectorType(_BYTE, lanes))


def _joined(builder: Any, vectors: Any, size: int) -> Any:
    """Return a vector of `size` bytes that begins with the elements of these vectors, which have one length."""
    joined, lanes = vectors[0], vectors[0].type.count
    for count in range(1, size // lanes):
        following = vectors[count] if count < len(vectors) else ir.Constant(vectors[0].type, ir.Undefined)
        # Both operands of a shuffle have the same type, so the shorter one is lengthened first.
        whole = ir.Constant(ir.VectorType(_INT, count * lanes), [*range(lanes), *[0] * ((count - 1) * lanes)])
        longer = builder.shuffle_vector(following, following, whole)
        places = ir.Constant(ir.VectorType(_INT, (count + 1) * lanes), [*range((count + 1) * lanes)])
        joined = builder.shuffle_vector(joined, longer, places)
    return joined


def _write_looked_up(builder: Any, codes: Any, table: Any, target: Any) -> None:
    """Write the bytes of a table for the codes of some pixels, a vector for each, to consecutive addresses."""
    lanes = codes[0].type.count
    if not HAS_LOOKUP:
        for pixel, code in enumerate(codes):
            builder.store(code, _pointer(builder, _after(builder, target, pixel, lanes), code.type)).align = 1
        with cgutils.for_range(builder, _WORD(len(codes) * lanes)) as loop:
            place = _pointer(builder, builder.add(target, loop.index), _BYTE)
            code = builder.zext(builder.load(place), _WORD)
            builder.store(builder.load(_pointer(builder, builder.add(table, code), _BYTE)), place)
        return
    whole, step = ir.VectorType(_BYTE, _LOOKED_UP), _LOOKED_UP // lanes
    quarters = [_load(builder, _after(builder, table, quarter, _LOOKED_UP), whole) for quarter in range(4)]
    look_up = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(whole, [whole] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
    )
    for first in range(0, len(codes), step):
        some = codes[first : first + step]
        places = _joined(builder, some, _LOOKED_UP)
        lower, upper = (builder.call(look_up, [pair[0], places, pair[1]]) for pair in (quarters[:2], quarters[2:]))
        is_upper = builder.icmp_signed("<", places, ir.Constant(whole, [0] * _LOOKED_UP))
        found = builder.select(is_upper, upper, lower)
        size = len(some) * lanes
        if size < _LOOKED_UP:
            found = builder.shuffle_vector(found, found, ir.Constant(ir.VectorType(_INT, size), [*range(size)]))
        builder.store(found, _pointer(builder, _after(builder, target, first, lanes), found.type)).align = 1


def _write_tile(builder: Any, lanes: int, pixels: int, blocks: int, gives_codes: bool, operands: Any) -> None:
    """Write the code that `convolve_tile` runs for a number of pixels and of blocks."""
    ints, floats = (ir.VectorType(kind, lanes) for kind in (_INT, _FLOAT))
    x, offsets, steps, weights, y, block_step, starts, scales, biases, lowest, inverse, zero_point, table = operands
    sums = [[cgutils.alloca_once(builder, ints) for _ in range(blocks)] for _ in range(pixels)]
    for block in range(blocks):
        start = _load(builder, _after(builder, starts, block, 4 * lanes), ints, 4)
        for of_pixel in sums:
            builder.store(start, of_pixel[block])
    with cgutils.for_range(builder, steps) as loop:
        offset = _load(builder, _after(builder, offsets, loop.index, 4), _INT, 4)
        codes_at = builder.add(x, builder.zext(offset, _WORD))
        weights_at = _after(builder, weights, loop.index, blocks * lanes * GROUP)
        weight = [_load(builder, _after(builder, weights_at, block, lanes * GROUP), ints) for block in range(blocks)]
        for pixel, of_pixel in enumerate(sums):
            group = _load(builder, _after(builder, codes_at, pixel, lanes), _INT)
            codes = _everywhere(builder, group, lanes)
            for block, total in enumerate(of_pixel):
                builder.store(_add_products(builder, lanes, builder.load(total), codes, weight[block]), total)
    least = _everywhere(builder, lowest, lanes)
    for block in range(blocks):
        scale, bias = (_load(builder, _after(builder, each, block, 4 * lanes), floats, 4) for each in (scales, biases))
        target = builder.add(y, builder.mul(block_step, _WORD(block)))
        values = []
        for of_pixel in sums:
            total = builder.sitofp(builder.load(of_pixel[block]), floats)
            value = builder.fadd(builder.fmul(total, scale), bias)
            values.append(builder.select(builder.fcmp_ordered("<", value, least), least, value))
        if gives_codes:
            _write_looked_up(builder, [_code(builder, value, inverse, zero_point, lanes) for value in values], table, target)
            continue
        for pixel, value in enumerate(values):
            builder.store(value, _pointer(builder, _after(builder, target, pixel, 4 * lanes), floats)).align = 4


# Addresses and numbers of int64, three numbers of float32, and the address of a table.
_OPERANDS = types.Tuple((*[types.int64] * 9, *[types.float32] * 3, types.int64))


def tile_function(lanes: int, gives_codes: bool) -> Any:
    """Return the function `convolve_tile` for a number of lanes, and a y of uint8 or float32."""

    @intrinsic
    def convolve_tile(typingctx: Any, pixels: Any, blocks: Any, operands: Any) -> Any:
        """Compute `pixels` (of TILES) consecutive pixels of y, in `blocks` blocks of channels. The operands are a tuple, whose
        names are those in `_write_tile`.

        There are `steps` groups of channels and places of the kernel. Element k of `offsets` (int32) is the distance in bytes
        from address `x` to the codes of group k for the first pixel. The codes for each next pixel are `lanes` bytes further
        on. `weights` is the address of the weights of group k for each block, lane and channel of the group. `block_step` is
        the number of bytes from one block of y to the next. `starts` (int32) is what the sums begin with; `scales` and
        `biases` (float32) make results of them. Results below `lowest` become `lowest`.

        If y is uint8, it is table[code], where code is saturate(round(result * inverse) + zero_point)."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            end = builder.append_basic_block("end")
            unpacked = cgutils.unpack_tuple(builder, arguments[2])
            case = builder.add(builder.mul(arguments[0], _WORD(BLOCKS + 1)), arguments[1])
            choice = builder.switch(case, end)
            for pixels in TILES:
                for blocks in range(1, BLOCKS + 1):
                    tile = builder.append_basic_block(f"tile_{pixels}_{blocks}")
                    choice.add_case(_WORD(pixels * (BLOCKS + 1) + blocks), tile)
                    builder.position_at_end(tile)
                    _write_tile(builder, lanes, pixels, blocks, gives_codes, unpacked)
                    builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, _OPERANDS), generate

    return convolve_tile


def encode_function(lanes: int, is_float: bool) -> Any:
    """Return the function `encode` for a number of lanes, and an x of float32 or uint8."""

    @intrinsic
    def encode(typingctx: Any, x: Any, y: Any, inverse: Any, zero_point: Any) -> Any:
        """Write the codes of one pixel in one block of channels to address `y`, as `_code` computes them if x is float32."""
        floats, codes = (ir.VectorType(kind, lanes) for kind in (_FLOAT, _BYTE))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, y, inverse, zero_point = arguments
            if is_float:
                code = _code(builder, _load(builder, x, floats, 4), inverse, zero_point, lanes)
            else:
                code = _load(builder, x, codes)
            builder.store(code, _pointer(builder, y, codes)).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32, types.float32), generate

    return encode
