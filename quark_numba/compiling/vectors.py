"""Operations on vectors that Numba's Python lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from . import jit
from .intrinsics import HAS_AVX2, array_at
from .jit import unsigned

_INT, _BYTE = ir.IntType(32), ir.IntType(8)
_QUARTER = ir.VectorType(_INT, 8)


# The elements that `narrow` converts.
WORDS = 32


@intrinsic
def words_on_stack(typingctx: Any) -> Any:
    """Return an array of WORDS int32 on the stack, which is free again when the calling function returns. In a loop it is the
    same array in each pass."""
    array_type = types.Array(types.int32, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(array_type)(context, builder)
        size, itemsize = (context.get_constant(types.intp, number) for number in (WORDS, 4))
        room = cgutils.alloca_once(builder, _INT, size=WORDS)
        populate_array(array, data=room, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()

    return array_type(), generate


@intrinsic
def narrow(typingctx: Any, words: Any, y: Any, index: Any) -> Any:
    """Write WORDS int32 to an array of bytes, from an index on. The numbers are within the range of the array's dtype."""
    signs = "s" if y.dtype.signed else "u"

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = make_array(words)(context, builder, arguments[0]).data
        target = builder.gep(make_array(y)(context, builder, arguments[1]).data, [arguments[2]])
        whole, codes = ir.VectorType(_INT, WORDS), ir.VectorType(_BYTE, WORDS)
        if HAS_AVX2:
            # Each instruction packs the two halves of its vectors separately. The code of LLVM needs two more permutations.
            quarter = builder.bitcast(source, _QUARTER.as_pointer())
            parts = [builder.load(builder.gep(quarter, [_INT(i)]), align=4) for i in range(4)]
            for name, size, bits in (("packssdw", 16, 16), (f"pack{signs}swb", 32, 8)):
                result = ir.FunctionType(ir.VectorType(ir.IntType(bits), size), [parts[0].type] * 2)
                pack = cgutils.get_or_insert_function(builder.module, result, f"llvm.x86.avx2.{name}")
                parts = [builder.call(pack, pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
            mixed = builder.bitcast(parts[0], _QUARTER)
            order = ir.Constant(_QUARTER, [0, 4, 1, 5, 2, 6, 3, 7])
            packed = builder.bitcast(builder.shuffle_vector(mixed, mixed, order), codes)
        else:
            packed = builder.trunc(builder.load(builder.bitcast(source, whole.as_pointer()), align=4), codes)
        builder.store(packed, builder.bitcast(target, codes.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(words, y, types.uintp), generate


_SIZE = 8
_VECTOR = ir.VectorType(ir.FloatType(), _SIZE)


@intrinsic
def _transpose_8(typingctx: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> Any:
    """Write the transposed matrix of 8 rows of 8 float32 at address `source` to address `target`. The steps are the numbers of
    bytes from one row to the next."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        addresses = [
            [builder.add(start, builder.mul(step, step.type(row))) for row in range(_SIZE)]
            for start, step in (arguments[:2], arguments[2:])
        ]
        rows = []
        for address in addresses[0]:
            row = builder.load(builder.inttoptr(address, _VECTOR.as_pointer()))
            row.align = 4
            rows.append(row)
        # Swap the two blocks beside the diagonal, then those of each quarter, and so on (Eklundh 1972).
        half = _SIZE // 2
        while half:
            upper = [lane if not lane & half else _SIZE + lane - half for lane in range(_SIZE)]
            lower = [lane + half if not lane & half else _SIZE + lane for lane in range(_SIZE)]
            for row in range(_SIZE):
                if not row & half:
                    pair = rows[row], rows[row + half]
                    rows[row], rows[row + half] = (
                        builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_INT, _SIZE), lanes))
                        for lanes in (upper, lower)
                    )
            half //= 2
        for row, address in zip(rows, addresses[1], strict=True):
            builder.store(row, builder.inttoptr(address, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@jit.function
def transpose(source: int, source_step: int, rows: int, columns: int, target: int, target_step: int) -> None:
    """Write the transposed matrix of rows of float32. The steps are the numbers of elements from one row to the next."""
    whole_rows, whole_columns = rows // 8 * 8, columns // 8 * 8
    for row in range(0, whole_rows, 8):
        for column in range(0, whole_columns, 8):
            at, to = row * source_step + column, column * target_step + row
            _transpose_8(source + at * 4, source_step * 4, target + to * 4, target_step * 4)
    given, taken = array_at(source, rows * source_step, np.float32), array_at(target, columns * target_step, np.float32)
    first_row = whole_rows if whole_columns == columns else 0
    for row in range(unsigned(first_row), unsigned(rows)):
        for column in range(unsigned(whole_columns if row < whole_rows else 0), unsigned(columns)):
            taken[column * unsigned(target_step) + row] = given[row * unsigned(source_step) + column]
