"""Operations on vectors that Numba's Python lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import jit
from .intrinsics import array_at
from .jit import unsigned

_INT = ir.IntType(32)


_SIZE = 8
_VECTOR = ir.VectorType(ir.FloatType(), _SIZE)


@intrinsic
def _transpose_8(typingctx: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> Any:
    """Write the transposed matrix of 8 rows of 8 float32 at address `source` to address `target`. The steps are the bytes from
    a row to the next."""

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
    """Write the transposed matrix of rows of float32. The steps are the elements from a row to the next."""
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
