"""The loops: templates, and their compilation for a key of the dispatch table."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, prange, types

from . import codecs, jit, packing
from .dispatch import Key
from .element_types import ElementType
from .intrinsics import LINE, copy_past_cache, fence, pointer, stack

# Names in the templates that a compilation binds.
convert: Any = None  # scalar (x, scale, zero point) -> y, of codecs.converter
convert_plain: Any = None  # of codecs.plain_round_trip
constant: Any = None  # constant_scale, compiled
varying: Any = None  # varying_scale, compiled
run_slice: Any = None  # run, compiled
run_past: Any = None  # run_past_cache, compiled
x_chunk: Any = None  # the three that `task` calls for a chunk
y_chunk: Any = None
finish: Any = None
pack: Any = None  # packing.regroup, compiled
unpack: Any = None  # packing.regroup, compiled
DTYPE: Any = None
ITEMSIZE: Any = None
BITS: Any = None
SCALE_DTYPE: Any = None
ZERO_POINT_DTYPE: Any = None

# Bytes of y from which on it is not written to the cache, which would drop it anyway before anyone reads it.
PAST_CACHE = 1 << 24 if jit.JIT_ENABLED else np.iinfo(np.int64).max

# Elements on the way there: they stay in the first-level cache.
BUFFER = 1 << 11

# Elements that one call of a task converts: 2 to 8 µs of work, so that threads share evenly, at some 20 ns a call. A
# multiple of what a byte holds of any type: no two tasks touch one byte.
CHUNK = 1 << 14

# The work of one node, as int64 words that `task` reads: addresses, elements behind them, and the loop.
(
    WORK_X,
    WORK_SCALE,
    WORK_ZERO_POINT,
    WORK_Y,
    WORK_SIZE,
    WORK_SCALES,
    WORK_ZERO_POINTS,
    WORK_LENGTH,
    WORK_BLOCK,
    WORK_INNER,
    WORK_ROWS,
    WORK_VARY,
    WORK_WORDS,
) = range(13)


# Unsigned indices: signed ones might be negative, that is, count from an array's end, which makes each access a choice.
# They may wrap around, there and back; Python's own integers need not. And no slices: each would cost more than the
# conversion of 32 elements.
unsigned = np.uintp if jit.JIT_ENABLED else int


def constant_scale(x: Any, scale: Any, zero_point: Any, y: Any, start: int, n: int) -> None:
    for i in range(unsigned(start), unsigned(start + n)):
        y[i] = convert(x[i], scale, zero_point)


def constant_round_trip(x: Any, scale: Any, zero_point: Any, y: Any, start: int, n: int) -> None:
    """The same, faster for scales that are powers of two, which have an exact reciprocal unless they are next to the largest,
    and a zero point that is 0, and not -0."""
    bits = np.float32(scale).view(np.uint32)
    exponent = bits >> np.uint32(23)
    if bits & np.uint32(0x7FFFFF) == 0 and 0 < exponent < 253 and zero_point == 0 and not np.signbit(zero_point):
        reciprocal = np.float32(np.float32(1) / scale)
        for i in range(unsigned(start), unsigned(start + n)):
            y[i] = convert_plain(x[i], reciprocal, scale, zero_point)
    else:
        for i in range(unsigned(start), unsigned(start + n)):
            y[i] = convert(x[i], scale, zero_point)


def varying_scale(x: Any, scale: Any, zero_point: Any, y: Any, start: int, n: int, s: Any) -> None:
    """Element `start` of x has the scale `s`, and the zero point `s` as well if there are several."""
    s = unsigned(s - start)
    if zero_point.size == 1:
        one = zero_point[0]
        for i in range(unsigned(start), unsigned(start + n)):
            y[i] = convert(x[i], scale[i + s], one)
    else:
        for i in range(unsigned(start), unsigned(start + n)):
            y[i] = convert(x[i], scale[i + s], zero_point[i + s])


def run(
    x: Any, scale: Any, zero_point: Any, y: Any, length: int, block: int, inner: int, rows: int, vary: bool, start: int
) -> None:
    """Convert x, which begins at element `start` of an array with this ``granularity.Loop``, run by run: a run ends where
    its scale does, or the row of scales that lies beside it. There are as many zero points as scales, or one for all."""
    i, size = 0, x.size
    if size == 0:
        return
    d, k = divmod(start, inner)  # element k of row d
    outer, d = divmod(d, length)
    blocks = -(-length // block)
    b, r = divmod(d, block)  # row r of block b
    b = (outer * blocks + b) % rows
    while i < size:
        if vary:
            n = min(inner - k, size - i)
            varying(x, scale, zero_point, y, i, n, b * inner + k)
            r += 1
            d += 1
        else:
            n = min(min(block - r, length - d) * inner - k, size - i)
            z = b if zero_point.size > 1 else 0
            constant(x, scale[unsigned(b)], zero_point[unsigned(z)], y, i, n)
            d += block - r
            r = block
        i += n
        k = 0
        if r == block or d >= length:
            r = 0
            b += 1
            if b == rows:
                b = 0
            if d >= length:
                d = 0


def run_past_cache(
    x: Any, scale: Any, zero_point: Any, y: Any, length: int, block: int, inner: int, rows: int, vary: bool, start: int
) -> None:
    """`run`, by way of a buffer from which whole cache lines go to y, which thus need not be read first."""
    at = min(-y.ctypes.data % LINE // y.itemsize, y.size)
    run_slice(x[:at], scale, zero_point, y[:at], length, block, inner, rows, vary, start)
    buffer = np.empty(BUFFER, y.dtype)
    while at + BUFFER <= y.size:
        run_slice(x[at : at + BUFFER], scale, zero_point, buffer, length, block, inner, rows, vary, start + at)
        copy_past_cache(y[at:].ctypes.data, buffer.ctypes.data, BUFFER * y.itemsize // LINE)
        at += BUFFER
    fence()
    run_slice(x[at:], scale, zero_point, y[at:], length, block, inner, rows, vary, start + at)


def parallel(
    x: Any, scale: Any, zero_point: Any, y: Any, length: int, block: int, inner: int, rows: int, vary: bool, slices: int
) -> None:
    """`run`, or `run_past_cache`, over all of x, on Numba's threads."""
    for i in prange(slices):
        start, stop = i * x.size // slices, (i + 1) * x.size // slices
        run_slice(x[start:stop], scale, zero_point, y[start:stop], length, block, inner, rows, vary, start)


def task(work_pointer: Any, index: int) -> None:
    """`run` over the chunk `index` of a node's work, on a thread of ONNX Runtime's."""
    work = carray(work_pointer, WORK_WORDS)
    start = index * CHUNK
    codes = carray(stack(CHUNK // 8), CHUNK, np.uint8)[: min(CHUNK, work[WORK_SIZE] - start)]
    x = x_chunk(work[WORK_X], start, codes)
    y = y_chunk(work[WORK_Y], start, codes)
    scale = carray(pointer(work[WORK_SCALE]), work[WORK_SCALES], SCALE_DTYPE)
    zero_point = carray(pointer(work[WORK_ZERO_POINT]), work[WORK_ZERO_POINTS], ZERO_POINT_DTYPE)
    length, block, inner, rows = work[WORK_LENGTH], work[WORK_BLOCK], work[WORK_INNER], work[WORK_ROWS]
    if work[WORK_SIZE] * y.itemsize >= PAST_CACHE:
        run_past(x, scale, zero_point, y, length, block, inner, rows, work[WORK_VARY] != 0, start)
    else:
        run_slice(x, scale, zero_point, y, length, block, inner, rows, work[WORK_VARY] != 0, start)
    finish(work[WORK_Y], start, codes)


# A chunk of x or y: where it lies, or, of a tensor that holds several elements a byte, in `codes`, one a byte.


def in_place(address: int, start: int, codes: Any) -> Any:
    return carray(pointer(address + start * ITEMSIZE), codes.size, DTYPE)


def unpacked(address: int, start: int, codes: Any) -> Any:
    unpack(packed_bytes(address, start, codes), codes)
    return codes


def aside(address: int, start: int, codes: Any) -> Any:
    return codes


def pack_back(address: int, start: int, codes: Any) -> None:
    pack(codes, packed_bytes(address, start, codes))


def nothing(address: int, start: int, codes: Any) -> None:
    pass


def packed_bytes(address: int, start: int, codes: Any) -> Any:
    return carray(pointer(address + start * BITS // 8), (codes.size * BITS + 7) // 8, np.uint8)


def serial_kernel(key: Key) -> Any:
    """(x, scale, zero_point, y, *loop, start) -> None: flat contiguous arrays, x and y of storage dtypes, scale and
    zero_point of the key's dtypes for them; a ``granularity.Loop``; the place of x in what that describes."""
    names = {"convert": codecs.converter(key)}
    if key.via:
        names["convert_plain"] = codecs.plain_round_trip(key)
    return jit.kernel(
        run,
        _name("run", key),
        types.void(*_arrays(key), *_LOOP, types.intp),
        constant=jit.function(constant_round_trip if key.via else constant_scale, _name("constant", key), **names),
        varying=jit.function(varying_scale, _name("varying", key), **names),
    )


def parallel_kernel(key: Key, serial: Any, *, past_cache: bool = False) -> Any:
    """(x, scale, zero_point, y, *loop, slices) -> None"""
    name = _name("parallel_past_cache" if past_cache else "parallel", key)
    run_slice = _run_past_cache(key, serial) if past_cache else serial
    signature = types.void(*_arrays(key), *_LOOP, types.intp)
    return jit.kernel(parallel, name, signature, parallel=True, run_slice=run_slice)


def task_function(key: Key, serial: Any) -> Any:
    """The C function void (int64_t *work, size_t index) that ONNX Runtime's threads call."""

    def in_place_of(row: ElementType) -> Any:
        return jit.inline(in_place, DTYPE=row.storage.type, ITEMSIZE=row.storage.itemsize)

    bits = key.quantized.bits
    ends = jit.inline(packed_bytes, BITS=bits)
    x_chunk, y_chunk, finish_chunk = in_place_of(key.x), in_place_of(key.y), jit.inline(nothing)
    run_past = _run_past_cache(key, serial)
    if key.x.is_packed:
        unpack = jit.function(packing.regroup, f"unpack_{bits}", FROM_BITS=8, TO_BITS=bits)
        x_chunk = jit.inline(unpacked, packed_bytes=ends, unpack=unpack)
    if key.y.is_packed:
        y_chunk, run_past = jit.inline(aside), serial
        pack = jit.function(packing.regroup, f"pack_{bits}", FROM_BITS=bits, TO_BITS=8)
        finish_chunk = jit.inline(pack_back, packed_bytes=ends, pack=pack)
    return jit.c_function(
        task,
        _name("task", key),
        types.void(types.CPointer(types.int64), types.intp),
        run_slice=serial,
        run_past=run_past,
        SCALE_DTYPE=key.scale_dtype,
        ZERO_POINT_DTYPE=key.zero_point_dtype,
        x_chunk=x_chunk,
        y_chunk=y_chunk,
        finish=finish_chunk,
    )


def _run_past_cache(key: Key, serial: Any) -> Any:
    return jit.function(run_past_cache, _name("run_past_cache", key), run_slice=serial)


_LOOP = [types.intp] * 4 + [types.boolean]


def _arrays(key: Key) -> list[Any]:
    inputs = [key.x.storage, np.dtype(key.scale_dtype), np.dtype(key.zero_point_dtype)]
    return [
        *(types.Array(numba.from_dtype(dtype), 1, "C", readonly=True) for dtype in inputs),
        types.Array(numba.from_dtype(key.y.storage), 1, "C"),
    ]


def _name(template: str, key: Key) -> str:
    unsaturated = "" if key.saturate else "_unsaturated"
    via = f"_{key.via.name}" if key.via else ""
    return f"{key.operation}_{template}_{key.x.name}_{key.precision.name}{via}_{key.y.name}{unsaturated}"
