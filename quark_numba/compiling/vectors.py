"""Operations on vectors that Numba's Python lacks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT = ir.IntType(32)


_SIZE = 8
_VECTOR = ir.VectorType(ir.FloatType(), _SIZE)


@intrinsic
def transpose_8(typingctx: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> Any:
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
