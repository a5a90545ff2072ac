"""Operations that Numba's Python lacks: float16 conversion, fused multiply-add, and memory by its address for callbacks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from .jit import JIT_ENABLED

_HALF_BITS = ir.IntType(16)
_WORD = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()

_triple, _, _features = cpu_target.target_context.codegen().magic_tuple()
_IS_AARCH64 = _triple.startswith(("aarch64", "arm64"))  # the second is Apple's name for it

# Without an instruction for the conversion, LLVM calls a run-time library that does not exist here, and the process ends.
HAS_FLOAT16 = JIT_ENABLED and (_IS_AARCH64 or "+f16c" in _features.split(","))

# Without an instruction for it, fused multiply-add takes longer than a division.
HAS_FMA = JIT_ENABLED and (_IS_AARCH64 or "+fma" in _features.split(","))

# Without its instructions for packing, LLVM's own way from 32 to 8 bits is used.
HAS_AVX2 = JIT_ENABLED and "+avx2" in _features.split(",")

# With these instructions, LLVM's own way is faster.
HAS_AVX512 = JIT_ENABLED and "+avx512vl" in _features.split(",")


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c in float32, rounded once. Only if HAS_FMA."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def float16_bits(typingctx: Any, value: Any) -> Any:
    """float32 -> the bits of the nearest float16, ties to even. Only if HAS_FLOAT16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), _HALF_BITS)

    return types.uint16(types.float32), generate


@intrinsic
def float16_value(typingctx: Any, bits: Any) -> Any:
    """The bits of a float16 -> float32. Only if HAS_FLOAT16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


# The functions below access memory by its address, an int64. They check nothing, and keep nothing alive.


@intrinsic
def array_at(typingctx: Any, address: Any, size: Any, dtype: Any) -> Any:
    """Return the array of `size` elements at `address`. Unlike ``numba.carray``, this does not compile a separate function."""
    array_type = types.Array(parse_dtype(dtype), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(array_type)(context, builder)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
        data = builder.inttoptr(arguments[0], array.data.type)
        populate_array(array, data=data, shape=[arguments[1]], strides=[itemsize], itemsize=itemsize, meminfo=None)
        return array._getvalue()

    return array_type(types.int64, types.int64, dtype), generate


@intrinsic
def record_at(typingctx: Any, address: Any, dtype: Any) -> Any:
    """Return the record of a structured `dtype` at `address`. Its fields can be read and set."""
    record_type = parse_dtype(dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(record_type))

    return record_type(types.int64, dtype), generate


@intrinsic
def _address_of(typingctx: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(builder.gep(make_array(array)(context, builder, arguments[0]).data, [arguments[1]]), _WORD)

    return types.int64(array, types.intp), generate


def address_of(array: Any, index: int) -> int:
    """Return the address of an element of a contiguous array. Numba takes longer to compile ``array.ctypes.data``."""
    return int(array.ctypes.data) + index * int(array.itemsize)


if JIT_ENABLED:
    address_of = _address_of

LINE = 64  # bytes of a cache line


@intrinsic
def stack(typingctx: Any, words: Any) -> Any:
    """Return the address of `words` int64 words on the stack, which are free again when the calling function returns. Do not
    use this in a loop. The address is a multiple of LINE, because a vector of 64 bytes across two cache lines takes twice as
    long."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = builder.alloca(_WORD, arguments[0])
        room.align = LINE
        return builder.ptrtoint(room, _WORD)

    return types.int64(types.int64), generate


@intrinsic
def allocate(typingctx: Any, size: Any) -> Any:
    """Return the address of `size` bytes, a multiple of LINE, or 0 if there is no memory. `release` frees them. The word before
    them holds the address where the allocated memory begins, a multiple of a word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = builder.add(arguments[0], _WORD(LINE))
        begin = builder.ptrtoint(context.nrt.allocate_unchecked(builder, size), _WORD)
        address = builder.and_(builder.add(begin, _WORD(LINE)), _WORD(-LINE))
        has_memory = builder.icmp_unsigned("!=", begin, _WORD(0))
        with builder.if_then(has_memory):
            builder.store(begin, builder.inttoptr(builder.sub(address, _WORD(8)), _WORD.as_pointer()))
        return builder.select(has_memory, address, _WORD(0))

    return types.int64(types.int64), generate


@intrinsic
def release(typingctx: Any, address: Any) -> Any:
    """Free the memory at an address that `allocate` returned; do nothing for 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        with builder.if_then(builder.icmp_unsigned("!=", arguments[0], _WORD(0))):
            begin = builder.load(builder.inttoptr(builder.sub(arguments[0], _WORD(8)), _WORD.as_pointer()))
            context.nrt.free(builder, builder.inttoptr(begin, cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def copy_bytes(typingctx: Any, source: Any, target: Any, size: Any) -> Any:
    """Copy `size` bytes from one address to another. The two areas do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_pointer, target_pointer = (builder.inttoptr(address, _BYTES) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def call(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at `address` with a tuple of integers. Return the content of the result register.

    The System V and AAPCS64 calling conventions pass pointers, ``size_t`` and ``int64_t`` in general registers, so a 64-bit
    integer stands for any of them, also for the result. The result of a ``void`` function has no meaning.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        function_type = ir.FunctionType(_WORD, [_WORD] * len(arguments))
        function = builder.inttoptr(values[0], function_type.as_pointer())
        return builder.call(function, cgutils.unpack_tuple(builder, values[1], len(arguments)))

    return types.int64(types.int64, types.UniTuple(types.int64, len(arguments))), generate


@intrinsic
def ask(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call a C function whose last parameter is the address of a word that it writes. Return (its result, the word)."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        answer = cgutils.alloca_once(builder, _WORD)
        function_type = ir.FunctionType(_WORD, [_WORD] * len(arguments) + [_WORD.as_pointer()])
        function = builder.inttoptr(values[0], function_type.as_pointer())
        returned = builder.call(function, [*cgutils.unpack_tuple(builder, values[1], len(arguments)), answer])
        return context.make_tuple(builder, signature.return_type, (returned, builder.load(answer)))

    return types.UniTuple(types.int64, 2)(types.int64, types.UniTuple(types.int64, len(arguments))), generate
