"""The width of the vectors that LLVM makes of a function's loops: the widest of the processor, also with AVX-512."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def use_widest_vectors(typingctx: Any) -> Any:
    """Let LLVM use the widest vectors in the function that calls this. For most processors with AVX-512, LLVM takes vectors of
    half the width, since the first such processors run at a lower frequency while they use the whole width. ONNX Runtime's
    convolutions and matrix products use it anyway. On other processors this changes nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # LLVM reads this attribute as text. llvmlite's `add` refuses all names but those that LLVM itself defines.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
