"""Records of compiled functions: their dtypes, and new ones on the stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from .intrinsics import LINE

_WORD = ir.IntType(64)


def words(*names: str) -> Any:
    """Return the dtype of a record whose fields are int64, with these names."""
    return np.dtype([(name, np.int64) for name in names])


@intrinsic
def new_record(typingctx: Any, dtype: Any) -> Any:
    """Return a new record on the stack (see ``stack``), as (its address, the record). The structured `dtype` has whole
    words."""
    record_type = parse_dtype(dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = builder.alloca(_WORD, record_type.size // 8)
        room.align = LINE
        record = builder.bitcast(room, context.get_value_type(record_type))
        return context.make_tuple(builder, signature.return_type, (builder.ptrtoint(room, _WORD), record))

    return types.Tuple((types.int64, record_type))(dtype), generate
