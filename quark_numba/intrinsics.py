"""What Numba's Python cannot say: half precision conversion, and raw pointers for the native operators."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .jit import JIT_ENABLED

_HALF_BITS = ir.IntType(16)

# Without an instruction for it, LLVM calls a run-time library that is not there, and that ends the process.
_triple, _, _features = cpu_target.target_context.codegen().magic_tuple()
HAS_FLOAT16 = JIT_ENABLED and (_triple.startswith("aarch64") or "+f16c" in _features.split(","))


@intrinsic
def float16_bits(typingctx: Any, value: Any) -> Any:
    """float32 -> the bits of the nearest float16, ties to even. Only where HAS_FLOAT16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), _HALF_BITS)

    return types.uint16(types.float32), generate


@intrinsic
def float16_value(typingctx: Any, bits: Any) -> Any:
    """The bits of a float16 -> float32. Only where HAS_FLOAT16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An integer as a ``void *``, for ``numba.carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def stack(typingctx: Any, words: Any) -> Any:
    """Room for int64 words, as a ``void *``, that lives until the calling function returns. Not to be used in a loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.alloca(ir.IntType(64), arguments[0]), cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


LINE = 64  # bytes of a cache line


@intrinsic
def copy_past_cache(typingctx: Any, target: Any, source: Any, lines: Any) -> Any:
    """Copy cache lines, to an address that is a multiple of LINE, with stores that do not read what they replace. They may
    be seen out of order: other threads wait for `fence`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), LINE)
        targets, sources = (builder.inttoptr(address, vector.as_pointer()) for address in arguments[:2])
        flag = builder.module.add_metadata([ir.IntType(32)(1)])
        with cgutils.for_range(builder, arguments[2]) as loop:
            line = builder.load(builder.gep(sources, [loop.index]), align=1)
            store = builder.store(line, builder.gep(targets, [loop.index]), align=LINE)
            store.set_metadata("nontemporal", flag)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def fence(typingctx: Any) -> Any:
    """What was stored before is seen before what is stored after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at `address` with a tuple of integers and return what it leaves in the result register.

    Pointers, ``size_t`` and ``int64_t`` all go in general registers in the System V and AAPCS64 calling conventions, so
    64-bit integers stand for each of them; so does the result, which is meaningless for a ``void`` function.
    """
    word = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        function_type = ir.FunctionType(word, [word] * len(arguments))
        function = builder.inttoptr(values[0], function_type.as_pointer())
        return builder.call(function, cgutils.unpack_tuple(builder, values[1], len(arguments)))

    return types.int64(types.int64, types.UniTuple(types.int64, len(arguments))), generate
