"""The loops for a key of the dispatch table, and the functions that compile the loops."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import array_function
from ..compiling.intrinsics import HAS_AVX512, LINE, address_of, array_at, record_at, stack
from ..compiling.jit import unsigned
from ..compiling.vectors import WORDS, narrow, words_on_stack
from ..element_types import ElementType, codecs, packing
from . import arithmetic
from .granularity import Loop
from .key import Key

# With fewer elements, finding the end of a cache line takes longer than storing across lines.
LONG = 1 << 11

# From VERY_LONG elements on, PIECE elements of the first half and PIECE elements of the second are converted in turns. The
# processor prefetches in both halves, and one thread reads 1.2 to 1.5 times as much from memory.
VERY_LONG, PIECE = 1 << 17, 1 << 10

# A task converts a chunk of elements. CHUNK is the smallest size of a chunk, and the size for packed tensors: 2 to 8 µs of
# work, small enough for an even distribution over threads. A call costs some 20 ns. A chunk of any type is a whole number of
# bytes, so no two tasks touch the same byte. A large tensor that is not packed has at least CHUNKS chunks: enough for the
# threads, and few enough that each chunk is VERY_LONG.
CHUNK, CHUNKS = 1 << 14, 32

# The record that a node's tasks share: addresses and numbers of the tensors' elements, and the loop. The scales and zero points
# are in the key's dtypes for them.
WORK = np.dtype(
    [(name, np.int64) for name in ("x", "y", "size", "scale", "scales", "zero_point", "zero_points", "chunk", *Loop._fields)]
)


# The type of a counter that is passed to functions: for a literal, Numba would compile the functions once more.
signed = np.intp if jit.JIT_ENABLED else int


@jit.expand
def _part(k: Any, n: Any, head: Any, half: Any) -> Any:
    """Return the begin and the end of range `k` of n elements. Range 0 has the first `head` elements. Further ranges are PIECE
    elements, in turns from the first `half` elements after the head and from the second half. The last range has the rest.

    For example, let n be 2**17 and head 32. Then half is 2**16 - 1024, and the ranges are 0..32, 32..1056, 64544..65568,
    1056..2080, 65568..66592 and so on, and at the end 129056..131072."""
    if k == unsigned(0):
        return unsigned(0), head
    k -= unsigned(1)
    if k * unsigned(PIECE) == half + half:
        return head + half + half, n
    begin = head + k // unsigned(2) * unsigned(PIECE) + k % unsigned(2) * half
    return begin, begin + unsigned(PIECE)


def _constant_scale(convert: Any, in_words: bool) -> Any:
    def convert_run(x: Any, numbers: Any, y: Any, start: int, n: int) -> None:
        """Convert `n` elements from index `start` on, all with the same `numbers`: the scale and the zero point, or the numbers
        that `convert` takes instead."""
        # A store across two cache lines takes twice as long. So the first range ends at the end of a cache line.
        head = unsigned(-address_of(y, start) % LINE // y.itemsize) if n >= LONG else unsigned(n)
        half = (unsigned(n) - head) // unsigned(2 * PIECE) * unsigned(PIECE) if n >= VERY_LONG else unsigned(0)
        parts = (half + half) // unsigned(PIECE) + unsigned(2) if n >= LONG else unsigned(1)
        for k in range(parts):
            begin, stop = _part(k, unsigned(n), head, half)
            begin, stop = unsigned(start) + begin, unsigned(start) + stop
            if in_words:
                # In a plain loop over float32, LLVM takes 5 instructions to narrow each vector of 8 elements to bytes. In this
                # one it unrolls the inner loop and keeps the words in registers, and `narrow` makes bytes of them.
                words = words_on_stack()
                while begin + unsigned(WORDS) <= stop:
                    for i in range(unsigned(WORDS)):
                        words[i] = convert(x[begin + i], *numbers)
                    narrow(words, y, begin)
                    begin += unsigned(WORDS)
            for i in range(begin, stop):
                y[i] = convert(x[i], *numbers)

    return jit.expand(convert_run)


def _varying_scale(convert: Any) -> Any:
    def convert_row(x: Any, scale: Any, zero_point: Any, y: Any, start: int, n: int, first: Any) -> None:
        """Convert `n` elements from index `start` on. The first element has scale number `first`, the next element the next
        scale, and so on. Either there is one zero point for all elements, or zero points have the numbers of the
        scales."""
        s = unsigned(first - start)
        if zero_point.size == 1:
            one = zero_point[0]
            for i in range(unsigned(start), unsigned(start + n)):
                y[i] = convert(x[i], scale[i + s], one)
        else:
            for i in range(unsigned(start), unsigned(start + n)):
                y[i] = convert(x[i], scale[i + s], zero_point[i + s])

    return jit.expand(convert_row)


@functools.cache
def _run(key: Key) -> Any:
    convert, by_reciprocal = arithmetic.converter(key), arithmetic.reciprocal_converter(key)
    in_words = key.converts_to_words and jit.JIT_ENABLED and not HAS_AVX512
    may_multiply = by_reciprocal is not None
    has_reciprocal: Any = arithmetic.has_reciprocal(key) if may_multiply else None
    convert_run_by_reciprocal: Any = _constant_scale(by_reciprocal, in_words) if may_multiply else None
    convert_run = _constant_scale(convert, in_words and not may_multiply)  # few scales need a division
    convert_row = _varying_scale(convert)

    def run(x: Any, scale: Any, zero_point: Any, y: Any, loop: Any, start: int) -> None:
        """Convert x, a slice of an array from element `start` on. `loop` is the ``granularity.Loop`` of the array (a
        tuple or an array). Each pass converts consecutive elements with the same scale, or a row in which each element has its
        own scale. There are as many zero points as scales, or a single zero point."""
        # For example, let x be elements 9 to 23 of an array of shape (4, 6): `start` is 9, and x.size is 15. Blocks of 2 along
        # axis 0 are Loop(4, 2, 6, 2, True): the passes convert elements 9..12 of the array with scales 3..6, then 12..18 with
        # scales 6..12, then 18..24 with scales 6..12. Blocks of 2 along axis 1 are Loop(6, 2, 1, 12, False): the passes convert
        # element 9 with scale 4, then 10..12 with scale 5, then 12..14 with scale 6, and so on.
        done, size = signed(0), x.size
        if size == 0:
            return
        length, block, inner, rows, vary = loop[0], loop[1], loop[2], loop[3], loop[4]
        row = start // inner
        column = start - row * inner
        outer = row // length
        row -= outer * length  # within the axis
        in_block = row % block  # the row within the block
        scale_row = (outer * ((length + block - 1) // block) + row // block) % rows
        while done < size:
            if vary:
                n = inner - column
                n = n if n < size - done else size - done
                convert_row(x, scale, zero_point, y, done, n, scale_row * inner + column)
                in_block += 1
                row += 1
            else:
                n = block - in_block if block - in_block < length - row else length - row
                n = n * inner - column
                n = n if n < size - done else size - done
                zero_point_row = scale_row if zero_point.size > 1 else 0
                numbers = scale[unsigned(scale_row)], zero_point[unsigned(zero_point_row)]
                if may_multiply and has_reciprocal(*numbers):
                    convert_run_by_reciprocal(x, (np.float32(np.float32(1) / numbers[0]), *numbers), y, done, n)
                else:
                    convert_run(x, numbers, y, done, n)
                row += block - in_block
                in_block = block
            done += n
            column = 0
            if in_block == block or row >= length:
                in_block = 0
                scale_row += 1
                if scale_row == rows:
                    scale_row = 0
                if row >= length:
                    row = 0

    return run


def serial_kernel(key: Key) -> Any:
    """Return the kernel (x, scale, zero_point, y, loop, start) -> None. The arrays are flat and contiguous. x and y have
    storage dtypes, scale and zero_point the key's dtypes for them. `loop` has the fields of a ``granularity.Loop`` as int64,
    and `start` is the index of x's first element in the array that the loop describes."""
    return array_function(_run(key), f"serial_{key.name}", types.void(*_arrays(key), types.intp))


def parallel_kernel(key: Key) -> Any:
    """Return the kernel (x, scale, zero_point, y, loop, slices) -> None."""
    convert_loop = jit.expand(_run(key))

    def parallel(x: Any, scale: Any, zero_point: Any, y: Any, loop: Any, slices: int) -> None:
        """Convert all of x on Numba's threads."""
        for i in prange(slices):
            start, stop = i * x.size // slices, (i + 1) * x.size // slices
            convert_loop(x[start:stop], scale, zero_point, y[start:stop], loop, start)

    return jit.parallel(parallel, f"parallel_{key.name}", types.void(*_arrays(key), types.intp))


def task_function(key: Key) -> Any:
    """Return the C function void (int64_t work, size_t index) that ONNX Runtime's threads call."""
    convert_loop, scale_dtype, zero_point_dtype = jit.expand(_run(key)), key.scale_dtype, key.zero_point_dtype
    x_dtype, y_dtype = key.x.storage.type, key.y.storage.type
    x_itemsize, y_itemsize = key.x.storage.itemsize, key.y.storage.itemsize
    x_bits, y_bits = (element_type.bits if element_type.is_packed else 8 for element_type in (key.x, key.y))
    unpack: Any = packing.regroup_function(8, x_bits) if x_bits < 8 else None
    pack: Any = packing.regroup_function(y_bits, 8) if y_bits < 8 else None

    def task(work_address: int, index: int) -> None:
        """Convert chunk `index` of a node's work, which is `work.chunk` elements, on one of ONNX Runtime's threads. Packed
        tensors are unpacked to one code a byte before the conversion, and packed after it."""
        work = record_at(work_address, WORK)
        start = index * work.chunk
        size = work.size - start
        size = size if size < work.chunk else work.chunk
        scale = array_at(work.scale, work.scales, scale_dtype)
        zero_point = array_at(work.zero_point, work.zero_points, zero_point_dtype)
        loop = (work.length, work.block, work.inner, work.rows, work.vary != 0)
        if x_bits < 8:
            packed = array_at(work.x + start * x_bits // 8, (size * x_bits + 7) // 8, np.uint8)
            x = array_at(stack(CHUNK // 8), size, np.uint8)
            unpack(packed, x)
        else:
            x = array_at(work.x + start * x_itemsize, size, x_dtype)
        if y_bits < 8:
            codes = array_at(stack(CHUNK // 8), size, np.uint8)
            convert_loop(x, scale, zero_point, codes, loop, start)
            pack(codes, array_at(work.y + start * y_bits // 8, (size * y_bits + 7) // 8, np.uint8))
        else:
            convert_loop(x, scale, zero_point, array_at(work.y + start * y_itemsize, size, y_dtype), loop, start)

    return jit.c_function(task, f"task_{key.name}", types.void(types.int64, types.intp))


@functools.cache
def widen_function(element_type: ElementType, dtype: Any) -> Any:
    """Return the C function void (source, target, int64_t count) that converts the elements of a scale or a zero point from a
    tensor's codes to numbers of `dtype`, or None if the tensor already holds such numbers."""
    if element_type.dtype == dtype:
        return None
    decode, storage = codecs.decoder(element_type), element_type.storage.type
    bits = element_type.bits if element_type.is_packed else 8

    def widen(source_address: int, target_address: int, count: int) -> None:
        """Convert `count` codes of a tensor to their values, in a dtype that holds every value."""
        per_byte = 8 // bits if bits < 8 else 1
        source = array_at(source_address, (count + per_byte - 1) // per_byte, storage)
        target = array_at(target_address, count, dtype)
        for i in range(count):
            code = source[i // per_byte]
            if bits < 8:
                code = np.uint8(code >> np.uint8(i % per_byte * bits))
            target[i] = decode(code)

    name = f"widen_{element_type.name}_{np.dtype(dtype).name}"
    return jit.c_function(widen, name, types.void(types.int64, types.int64, types.int64))


def _arrays(key: Key) -> list[Any]:
    def array(dtype: Any, is_written: bool = False) -> Any:
        return types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=not is_written)

    inputs = (array(dtype) for dtype in (key.x.storage, key.scale_dtype, key.zero_point_dtype))
    # A tuple of the loop's fields would take Numba longer than an array.
    return [*inputs, array(key.y.storage, is_written=True), array(np.int64)]
