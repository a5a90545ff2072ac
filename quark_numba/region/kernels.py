"""The loop over elements: for all programs a part that cuts the work into tiles, and for each one that runs it on a tile."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..compiling import jit
from ..compiling.intrinsics import array_at, call, record_at, stack
from ..linear.arithmetic import converter
from . import arithmetic
from .key import MOST_INPUTS, ROUND_TRIP, Program

# Elements that are worked on at a time: inputs that are not as large as y are spread out to so many, in the first-level cache.
TILE = 1 << 10

# Elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 14

# What a node's tasks share: the C function that runs the program on a tile; the address of y's elements, how many there are;
# how many inputs there are, how many of these have more than one element, where an array has the addresses of their elements,
# and where one has the bytes of an element, 0 for those of one; and the loop, as ``granularity.loop_shape`` has it.
WORK = np.dtype(
    [
        (name, np.int64)
        for name in ("run", "y", "size", "count", "streams", "inputs", "itemsizes", "dimensions", "lengths", "masks")
    ]
)

# Indices that cannot be negative: see linear.kernels.
unsigned = np.uintp if jit.JIT_ENABLED else int


@jit.function
def row_offset(row: int, k: int, dimensions: int, lengths: Any, masks: Any) -> int:
    """The index at which input k has its elements beside a row of y: one along the last dimension of the loop."""
    stride = lengths[dimensions - 1] if (masks[dimensions - 1] >> k) & 1 else 1
    offset = 0
    for d in range(dimensions - 2, -1, -1):
        index = row % lengths[d]
        row //= lengths[d]
        if (masks[d] >> k) & 1:
            offset += index * stride
            stride *= lengths[d]
    return offset


@jit.function
def spread(work_address: int, k: int, itemsize: int, at: int, n: int, buffer: int, spread_to: int) -> int:
    """Spread out what input k has beside the n elements of y from `at` on. Returns the address: `buffer`, or where they lie one
    after the other already. `spread_to` is the index in y up to which the buffer has one repeated value already."""
    work = record_at(work_address, WORK)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    data = array_at(work.inputs, k + 1, np.int64)[k]
    last = work.dimensions - 1
    length, varies = lengths[last], (masks[last] >> k) & 1 == 1
    row = at // length
    column = at - row * length
    if varies and column + n <= length:
        return data + (row_offset(row, k, work.dimensions, lengths, masks) + column) * itemsize
    if at + n <= spread_to:
        return buffer
    done = 0
    while done < n:
        m = length - column if length - column < n - done else n - done
        source = data + (row_offset(row, k, work.dimensions, lengths, masks) + (column if varies else 0)) * itemsize
        if itemsize == 8:
            wide_source, wide_target = array_at(source, m, np.float64), array_at(buffer + 8 * done, m, np.float64)
            for i in range(unsigned(m)):
                wide_target[i] = wide_source[i if varies else unsigned(0)]
        elif varies:
            from_words, to_words = array_at(source, m, np.float32), array_at(buffer + 4 * done, m, np.float32)
            for i in range(unsigned(m)):
                to_words[i] = from_words[i]
        else:
            value, words = array_at(source, 1, np.float32)[0], array_at(buffer + 4 * done, m, np.float32)
            for i in range(unsigned(m)):
                words[i] = value
        done += m
        column = 0
        row += 1
    return buffer


def chunk(work_address: int, index: int) -> None:
    """Chunk `index` of a node's work, on a thread of ONNX Runtime's."""
    work = record_at(work_address, WORK)
    start = index * CHUNK
    stop = start + CHUNK if start + CHUNK < work.size else work.size
    count = work.count
    inputs, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    length = lengths[work.dimensions - 1]
    buffers = stack(TILE * work.streams)
    addresses, spread_to = array_at(stack(count), count, np.int64), array_at(stack(count), count, np.int64)
    is_full = np.int64(-1)
    for d in range(work.dimensions):
        is_full &= masks[d]
    step = CHUNK  # at once, if nothing is spread out
    for k in range(count):
        addresses[k], spread_to[k] = inputs[k], 0
        if itemsizes[k] and (is_full >> k) & 1 == 0:
            step = TILE
    for at in range(start, stop, step):
        n = stop - at if stop - at < step else step
        buffer = buffers
        for k in range(count):
            itemsize = itemsizes[k]
            if itemsize == 0:  # one element
                continue
            if (is_full >> k) & 1:
                addresses[k] = inputs[k] + at * itemsize
            else:
                addresses[k] = spread(work_address, k, itemsize, at, n, buffer, spread_to[k])
                rest = length - at % length
                # The buffer is of use for the rest of the row, if it has the same value throughout.
                is_repeated = (masks[work.dimensions - 1] >> k) & 1 == 0 and rest >= n and n == TILE
                spread_to[k] = at + rest if is_repeated else 0
            buffer += TILE * 8
        call(work.run, (addresses.ctypes.data, work.y + at * 4, n))


@functools.cache
def chunk_function() -> Any:
    """The C function void (int64_t work, size_t index) that ONNX Runtime's threads call, for every program."""
    return jit.c_function(chunk, "chunk_region", types.void(types.int64, types.intp))


def task_function(program: Program) -> Any:
    """The C function void (int64_t addresses, int64_t y, int64_t n) that runs a program for n elements of y; `addresses` is
    where those of the inputs' elements are."""
    source, names = _source(program)
    scope = {"__name__": __name__, "np": np, "array_at": array_at, "unsigned": unsigned, **names}
    exec(compile(source, __file__, "exec"), scope)
    return jit.c_function(scope["run_program"], program.name, types.void(types.int64, types.int64, types.int64))


def input_dtypes(program: Program) -> list[Any]:
    """In which the program takes its inputs: float32, but zero points as the kernels of the linear wing do."""
    dtypes: list[Any] = [np.float32] * len(program.inputs)
    for step in program.steps:
        if step.operator == ROUND_TRIP:
            assert step.operands[2] is not None
            dtypes[step.operands[2]] = arithmetic.round_trip_key(step, program.inputs).zero_point_dtype
    return dtypes


def _source(program: Program) -> tuple[str, dict[str, Any]]:
    """The function that runs a program for n elements of y, as Python writes it, and the names in it. `addresses` are those of
    the inputs' elements. For example, of x0 plus x1, which has one element, quantized and dequantized:

        def run_program(addresses, y_address, n):
            at = array_at(addresses, 4, np.int64)
            ...
            r1 = np.float32(np.float32(1) / x2)
            if has1(x2, x3):
                for i in range(unsigned(n)):
                    v0 = f0(x0[i], x1)
                    v1 = q1(v0, r1, x2, x3)
                    y[i] = v1
            else:
                for i in range(unsigned(n)):
                    v0 = f0(x0[i], x1)
                    v1 = f1(v0, x2, x3)
                    y[i] = v1
    """
    lines = ["def run_program(addresses, y_address, n):", f"    at = array_at(addresses, {len(program.inputs)}, np.int64)"]
    names: dict[str, Any] = {}
    for k, (each, dtype) in enumerate(zip(program.inputs, input_dtypes(program), strict=True)):
        array = f"array_at(at[{k}], {1 if each.is_scalar else 'n'}, np.{np.dtype(dtype).name})"
        lines.append(f"    x{k} = {array}{'[0]' * each.is_scalar}")
    lines.append("    y = array_at(y_address, n, np.float32)")
    values = [f"x{k}{'' if each.is_scalar else '[i]'}" for k, each in enumerate(program.inputs)]
    values += [f"v{k}" for k in range(len(program.steps))]
    exact, fast, conditions = [], [], []
    for number, step in enumerate(program.steps):
        arguments = [values[each] for each in step.operands if each is not None]
        exact.append(f"        v{number} = f{number}({', '.join(arguments)})")
        fast.append(exact[-1])
        if step.operator != ROUND_TRIP:
            names[f"f{number}"] = arithmetic.function(step)
            continue
        key = arithmetic.round_trip_key(step, program.inputs)
        names[f"f{number}"] = converter(key)
        by_reciprocal, takes = arithmetic.fast_round_trip(key)
        if by_reciprocal is None or "[i]" in "".join(arguments[1:]):
            continue
        names |= {f"q{number}": by_reciprocal, f"has{number}": takes}
        x, scale, zero_point = arguments
        lines.append(f"    r{number} = np.float32(np.float32(1) / {scale})")
        conditions.append(f"has{number}({scale}, {zero_point})")
        fast[-1] = f"        v{number} = q{number}({x}, r{number}, {scale}, {zero_point})"
    loop, last = "    for i in range(unsigned(n)):", f"        y[i] = v{len(program.steps) - 1}"
    if conditions:
        lines.append(f"    if {' and '.join(conditions)}:")
        lines += [f"    {line}" for line in (loop, *fast, last)]
        lines.append("    else:")
        lines += [f"    {line}" for line in (loop, *exact, last)]
    else:
        lines += [loop, *exact, last]
    return "\n".join(lines) + "\n", names


assert MOST_INPUTS < 64  # bits of a mask
