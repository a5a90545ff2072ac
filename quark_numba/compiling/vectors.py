"""Operations on vectors that Numba's Python lacks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT = ir.IntType(32)


def _transposer(size: int) -> Any:
    @intrinsic
    def transpose(typingctx: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> Any:
        """Write the transposed matrix of `size` rows of `size` float32 at address `source` to address `target`. The steps are
        the bytes from a row to the next."""
        vector = ir.VectorType(ir.FloatType(), size)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            addresses = [
                [builder.add(start, builder.mul(step, step.type(row))) for row in range(size)]
                for start, step in (arguments[:2], arguments[2:])
            ]
            rows = []
            for address in addresses[0]:
                row = builder.load(builder.inttoptr(address, vector.as_pointer()))
                row.align = 4
                rows.append(row)
            # Swap the two blocks beside the diagonal, then those of each quarter, and so on (Eklundh 1972).
            half = size // 2
            while half:
                upper = [lane if not lane & half else size + lane - half for lane in range(size)]
                lower = [lane + half if not lane & half else size + lane for lane in range(size)]
                for row in range(size):
                    if not row & half:
                        pair = rows[row], rows[row + half]
                        rows[row], rows[row + half] = (
                            builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_INT, size), lanes))
                            for lanes in (upper, lower)
                        )
                half //= 2
            for row, address in zip(rows, addresses[1], strict=True):
                builder.store(row, builder.inttoptr(address, vector.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), generate

    return transpose


transpose_8, transpose_16 = _transposer(8), _transposer(16)
