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
    scope = {"__name__": __name__, "np": np, "array_at": array_at, "stack": stack, "unsigned": unsigned, "TILE": TILE, **names}
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
    the inputs' elements. It goes tile by tile through a loop for each round trip, with the steps before it: one loop for all
    would wait for what an element's long chain of steps takes, as a processor looks only some hundred instructions ahead. For
    example, of x0 plus x1, which has one element, quantized and dequantized, and its absolute value:

        def run_program(addresses, y_address, n):
            at = array_at(addresses, 4, np.int64)
            x1 = array_at(at[1], 1, np.float32)[0]
            ...
            room = stack(0)
            r1 = np.float32(np.float32(1) / x2)
            is_fast1 = has1(x2, x3)
            for start in range(0, n, TILE):
                m = min(TILE, n - start)
                x0 = array_at(at[0] + 4 * start, m, np.float32)
                y = array_at(y_address + 4 * start, m, np.float32)
                if is_fast1:
                    for i in range(unsigned(m)):
                        v0 = f0(x0[i], x1)
                        v1 = q1(v0, r1, x2, x3)
                        v2 = f2(v1)
                        y[i] = v2
                else:
                    for i in range(unsigned(m)):
                        v0 = f0(x0[i], x1)
                        v1 = f1(v0, x2, x3)
                        v2 = f2(v1)
                        y[i] = v2
    """
    count = len(program.inputs)
    names: dict[str, Any] = {}
    once, each_tile, values = [], [], []
    for k, (each, dtype) in enumerate(zip(program.inputs, input_dtypes(program), strict=True)):
        name = np.dtype(dtype).name
        if each.is_scalar:
            once.append(f"x{k} = array_at(at[{k}], 1, np.{name})[0]")
        else:
            each_tile.append(f"x{k} = array_at(at[{k}] + {np.dtype(dtype).itemsize} * start, m, np.{name})")
        values.append(f"x{k}" if each.is_scalar else f"x{k}[i]")
    each_tile.append("y = array_at(y_address + 4 * start, m, np.float32)")

    loops = _loops(program)
    buffers = _buffers(program, loops)
    once.append(f"room = stack({TILE // 2} * {len(set(buffers.values()))})")
    each_tile += [f"b{k} = array_at(room + {4 * TILE} * {k}, m, np.float32)" for k in sorted(set(buffers.values()))]
    for steps in loops:
        exact, fast = [], []
        for number in steps:
            step = program.steps[number]
            arguments = [values[each] for each in step.operands if each is not None]
            exact.append(f"v{number} = f{number}({', '.join(arguments)})")
            fast.append(exact[-1])
            values.append(f"v{number}")
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
            once.append(f"r{number} = np.float32(np.float32(1) / {scale})")
            once.append(f"is_fast{number} = has{number}({scale}, {zero_point})")
            fast[-1] = f"v{number} = q{number}({x}, r{number}, {scale}, {zero_point})"
            condition = f"is_fast{number}"
        for number in steps:
            if number in buffers:
                values[count + number] = f"b{buffers[number]}[i]"
            elif number != len(program.steps) - 1:
                continue
            line = f"{'y[i]' if number == len(program.steps) - 1 else values[count + number]} = v{number}"
            exact.append(line)
            fast.append(line)
        loop = "for i in range(unsigned(m)):"
        if fast != exact:
            each_tile += [f"if {condition}:", f"    {loop}", *(f"        {line}" for line in fast), "else:"]
            each_tile += [f"    {loop}", *(f"        {line}" for line in exact)]
        else:
            each_tile += [loop, *(f"    {line}" for line in exact)]
    lines = ["def run_program(addresses, y_address, n):", f"    at = array_at(addresses, {count}, np.int64)"]
    lines += [f"    {line}" for line in (*once, "for start in range(0, n, TILE):")]
    lines += [f"        {line}" for line in ("m = min(TILE, n - start)", *each_tile)]
    return "\n".join(lines) + "\n", names


def _loops(program: Program) -> list[list[int]]:
    """The steps of each loop: a round trip, what is before it, and behind the last one the rest."""
    loops: list[list[int]] = [[]]
    last = max((k for k, step in enumerate(program.steps) if step.operator == ROUND_TRIP), default=0)
    for number, step in enumerate(program.steps):
        loops[-1].append(number)
        if step.operator == ROUND_TRIP and number != last:
            loops.append([])
    return loops


def _buffers(program: Program, loops: list[list[int]]) -> dict[int, int]:
    """Of each step whose value a later loop takes: the number of the buffer for it. They are used again."""
    loop_of = {number: place for place, steps in enumerate(loops) for number in steps}
    last_use = {
        operand - len(program.inputs): loop_of[number]
        for number, step in enumerate(program.steps)
        for operand in step.operands
        if operand is not None
    }
    found: dict[int, int] = {}
    for number in range(len(program.steps) - 1):
        if last_use[number] > loop_of[number]:
            taken = {buffer for other, buffer in found.items() if last_use[other] >= loop_of[number]}
            found[number] = min(set(range(len(program.steps))) - taken)
    return found


assert MOST_INPUTS < 64  # bits of a mask
