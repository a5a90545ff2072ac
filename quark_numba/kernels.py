"""The loops: templates, and their compilation for a key of the dispatch table."""

from __future__ import annotations

from typing import Any

import numba
from numba import carray, prange, types

from . import codecs, jit
from .dispatch import Key
from .intrinsics import pointer

# Names in the templates that a compilation binds.
convert: Any = None  # scalar (x, scale, zero point) -> y, of codecs.quantizer or codecs.dequantizer
constant: Any = None  # constant_scale, compiled
varying: Any = None  # varying_scale, compiled
run_slice: Any = None  # run, compiled
X_DTYPE: Any = None
SCALE_DTYPE: Any = None
ZERO_POINT_DTYPE: Any = None
Y_DTYPE: Any = None

# The work of one node, as int64 words that `task` reads: addresses, then extents in elements.
WORK_X, WORK_SCALE, WORK_ZERO_POINT, WORK_Y, WORK_SIZE, WORK_LENGTH, WORK_INNER, WORK_CHUNK, WORK_WORDS = range(9)


def constant_scale(x: Any, scale: Any, zero_point: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = convert(x[i], scale, zero_point)


def varying_scale(x: Any, scale: Any, zero_point: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = convert(x[i], scale[i], zero_point[i])


def run(x: Any, scale: Any, zero_point: Any, y: Any, length: int, inner: int, start: int, stop: int) -> None:
    """Convert x[start:stop] of a flat x that is (outer, length, inner) in C order, run by run: a run has one scale, or
    where inner is 1 one scale an element."""
    i = start
    while i < stop:
        if inner == 1 and length > 1:
            j = i % length
            end = min(stop, i + length - j)
            varying(x[i:end], scale[j : j + end - i], zero_point[j : j + end - i], y[i:end])
        else:
            row = i // inner
            end = min(stop, (row + 1) * inner)
            constant(x[i:end], scale[row % length], zero_point[row % length], y[i:end])
        i = end


def parallel(x: Any, scale: Any, zero_point: Any, y: Any, length: int, inner: int, slices: int) -> None:
    """`run` over all of x, on Numba's threads."""
    for i in prange(slices):
        run_slice(x, scale, zero_point, y, length, inner, i * x.size // slices, (i + 1) * x.size // slices)


def task(work_pointer: Any, index: int) -> None:
    """`run` over the chunk `index` of a node's work, on a thread of ONNX Runtime's."""
    work = carray(work_pointer, WORK_WORDS)
    size, length = work[WORK_SIZE], work[WORK_LENGTH]
    start = index * work[WORK_CHUNK]
    run_slice(
        carray(pointer(work[WORK_X]), size, X_DTYPE),
        carray(pointer(work[WORK_SCALE]), length, SCALE_DTYPE),
        carray(pointer(work[WORK_ZERO_POINT]), length, ZERO_POINT_DTYPE),
        carray(pointer(work[WORK_Y]), size, Y_DTYPE),
        length,
        work[WORK_INNER],
        start,
        min(start + work[WORK_CHUNK], size),
    )


def serial_kernel(key: Key) -> Any:
    """(x, scale, zero_point, y, length, inner, start, stop) -> None, on flat contiguous arrays of storage dtypes."""
    make = codecs.quantizer if key.operation == "quantize" else codecs.dequantizer
    convert = make(key.x, key.scale, key.y)
    return jit.kernel(
        run,
        _name("run", key),
        types.void(*_arrays(key), *[types.intp] * 4),
        constant=jit.inline(constant_scale, convert=convert),
        varying=jit.inline(varying_scale, convert=convert),
    )


def parallel_kernel(key: Key, serial: Any) -> Any:
    """(x, scale, zero_point, y, length, inner, slices) -> None"""
    signature = types.void(*_arrays(key), *[types.intp] * 3)
    return jit.kernel(parallel, _name("parallel", key), signature, parallel=True, run_slice=serial)


def task_function(key: Key, serial: Any) -> Any:
    """The C function void (int64_t *work, size_t index) that ONNX Runtime's threads call."""
    return jit.c_function(
        task,
        _name("task", key),
        types.void(types.CPointer(types.int64), types.intp),
        run_slice=serial,
        X_DTYPE=key.x.storage.type,
        SCALE_DTYPE=key.scale.storage.type,
        ZERO_POINT_DTYPE=key.quantized.storage.type,
        Y_DTYPE=key.y.storage.type,
    )


def _arrays(key: Key) -> list[Any]:
    inputs = [types.Array(numba.from_dtype(row.storage), 1, "C", readonly=True) for row in (key.x, key.scale, key.quantized)]
    return [*inputs, types.Array(numba.from_dtype(key.y.storage), 1, "C")]


def _name(template: str, key: Key) -> str:
    return f"{key.operation}_{template}_{key.x.name}_{key.scale.name}_{key.y.name}"
