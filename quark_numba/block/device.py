"""The loop over blocks on a GPU, and this family's kernels for GPUs: how many blocks a thread converts, when vectors are read,
and the block sizes that are refused (the limit is in ``granularity``)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.device import THREADS, VECTOR, DeviceKernel, loader, store, work_dtype
from ..compiling.intrinsics import array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.text import branch, function_of, indented, tuple_of
from ..linear.device import putters, stored
from . import arithmetic
from .formats import HALF_TO_EVEN
from .granularity import MAX_IN_REGISTERS, BlockLoop, Format
from .kernels import bounds_of
from .key import Key

# The record of a launch. The units are from `count_units`. `x`, `y`, `scales` and `tensor_scale` are addresses. The scale of
# the tensor is a float32; the address 0 stands for a scale of 1. `size` is the number of elements of x. The scales have the
# order of their blocks: (outer, blocks of an axis, inner). `is_aligned`: x and y lie at multiples of VECTOR.
WORK = work_dtype(("x", "y", "scales", "tensor_scale", *Format._fields, *BlockLoop._fields), ("size", "is_aligned"))


def count_columns(inner: int, per_byte: int) -> int:
    """Return the number of blocks that one thread converts, of the `inner` blocks that lie side by side. Two threads must not
    write to the same byte."""
    if per_byte == 1 or inner == 1:
        return 1
    return per_byte if inner % per_byte == 0 else inner


def count_units(size: int, length: int, inner: int, block: int, per_byte: int) -> int:
    """Return the number of threads for `size` elements. A byte of y has `per_byte` elements. `length` and `inner` are as in
    BlockLoop."""
    if size == 0:
        return 0
    return size // (length * inner) * -(-length // block) * (inner // count_columns(inner, per_byte))


_columns = jit.inline(count_columns)


def _any_block(functions: arithmetic.BlockFunctions, convert: Any, put: Any, has_sub_blocks: bool) -> Any:
    measure, find_step, find_scale = functions
    has_scales = find_scale is not None

    @jit.expand
    def find_largest(x: Any, start: Any, inner: Any, rows: Any) -> Any:
        magnitude = np.uint32(0)
        for i in range(rows):
            magnitude = np.uint32(max(magnitude, measure(x[start + i * inner])))
        return magnitude

    def any_block(x: Any, y: Any, start: Any, inner: Any, rows: Any, sub_block: Any, format_of: Any) -> Any:
        """Convert a block of any size, whose elements are `inner` apart. Return its scale, if the key has scales."""
        max_shift, drop, tensor_scale, bounds = format_of
        shared = find_largest(x, start, inner, rows)
        if has_scales:
            shared = np.uint32(find_scale(shared, drop, tensor_scale))
        step = find_step(shared, shared, max_shift, drop, tensor_scale)
        for i in range(rows):
            if has_sub_blocks and i % sub_block == unsigned(0):
                largest = find_largest(x, start + i * inner, inner, min(sub_block, rows - i))
                step = find_step(shared, largest, max_shift, drop, tensor_scale)
            put(y, start + i * inner, convert(x[start + i * inner], step, bounds))
        return shared

    return jit.expand(any_block)


def _in_registers(functions: arithmetic.BlockFunctions, convert: Any, rows: int, sub_block: int) -> Any:
    """Return the function ((element of x, ...), the format as for `_any_block`) -> ((element of y, ...), scale) for a block of
    `rows` elements."""
    lines = ["max_shift, drop, tensor_scale, bounds = format_of"]
    lines += [f"m{i} = np.uint32(measure(x[{i}]))" for i in range(rows)]
    heads = range(0, rows, sub_block)
    for head in heads:
        lines.append(f"s{head} = m{head}")
        lines += [f"s{head} = np.uint32(max(s{head}, m{i}))" for i in range(head + 1, head + sub_block)]
    lines += ["shared = s0", *(f"shared = np.uint32(max(shared, s{head}))" for head in heads[1:])]
    if functions.find_scale:
        lines.append("shared = np.uint32(find_scale(shared, drop, tensor_scale))")
    for head in heads:
        lines.append(f"t{head} = find_step(shared, s{head}, max_shift, drop, tensor_scale)")
    y = tuple_of([f"convert(x[{i}], t{i - i % sub_block}, bounds)" for i in range(rows)])
    text = ["def convert_elements(x, format_of):", *indented([*lines, f"return {y}, shared"]), ""]
    names = functions._asdict() | {"convert": convert}
    return jit.inline(function_of("\n".join(text), __name__, __file__, names))


def _whole(convert_elements: Any, rows: int, count: int, y_dtype: Any, per_byte: int) -> Any:
    """Return the function that converts a block of `rows` elements by `convert_elements`, and returns its scale. If
    `is_vector`, `inner` is 1, and elements are read and written in vectors."""
    vectors = " + ".join(f"load(x, start + unsigned({at}))" for at in range(0, rows, count))
    elements = tuple_of([f"x[start + unsigned({i}) * inner]" for i in range(rows)])
    lines = branch("is_vector", [f"elements = {vectors}"], [f"elements = {elements}"])
    lines.append(f"({', '.join(f'y{i}' for i in range(rows))}), shared = convert_elements(elements, format_of)")
    y = stored(rows, 8 // per_byte)
    size, at = count // per_byte, f"start // unsigned({per_byte})"
    stores = [f"store(y, {at} + unsigned({i}), ({', '.join(y[i : i + size])},))" for i in range(0, len(y), size)]
    single_stores = [f"y[start + unsigned({i}) * inner] = {element}" for i, element in enumerate(y)]
    lines += branch("is_vector", stores, single_stores) if per_byte == 1 else stores
    text = ["def convert_whole(x, y, start, inner, is_vector, format_of):", *indented([*lines, "return shared"]), ""]
    names = {"load": loader(count), "store": store, "convert_elements": convert_elements, "Y_DTYPE": y_dtype}
    return jit.inline(function_of("\n".join(text), __name__, __file__, names))


def round_trip(key: Key, block_format: Format) -> Any:
    """Return the function that rounds a block to a format: a tuple of elements of x as stored -> a tuple of those of y. The key
    has no scales.

    Raises
    ------
    ValueError
        If the blocks have too many elements for registers.
    """
    if block_format.block > MAX_IN_REGISTERS:
        raise ValueError(f"block_size is {block_format.block}; expected at most {MAX_IN_REGISTERS} on a GPU")
    functions, by_mode = arithmetic.block_functions(key), arithmetic.converters(key)
    convert = _in_registers(functions, by_mode[block_format.rounding_mode], block_format.block, block_format.sub_block)
    max_shift, drop, one = np.uint32(block_format.max_shift), np.int32(block_format.drop), np.float32(1)
    return jit.inline(lambda x: convert(x, (max_shift, drop, one, bounds_of(block_format)))[0])


@functools.cache
def kernel(key: Key, block_format: Format) -> DeviceKernel:
    """Return the kernel of a key of the dispatch table for the blocks of a format, in any shape.

    Codes of less than 8 bits are packed as in tensors of ONNX Runtime. Only the block sizes and the rounding mode of
    `block_format` are used; the record of a launch has the other numbers.

    Raises
    ------
    ValueError
        If packed codes of two blocks would share a byte.
    """
    per_byte = 8 // key.y.bits if key.y.is_packed else 1
    if block_format.block % per_byte:
        raise ValueError(f"block_size is {block_format.block}; expected a multiple of {per_byte} on a GPU")
    converters, functions = arithmetic.converters(key), arithmetic.block_functions(key)
    mode = block_format.rounding_mode if len(converters) > 1 else HALF_TO_EVEN
    count, (clear, put) = VECTOR // max(key.x.storage.itemsize, key.y.storage.itemsize), putters(8 // per_byte)
    sub_block = block_format.sub_block if key.is_microexponent else block_format.block
    x_dtype, y_dtype, has_scales, has_codes = key.x.storage.type, key.y.storage.type, key.has_scales, key.has_codes
    convert_any = _any_block(functions, converters[mode], put, sub_block < block_format.block)
    whole_rows, convert_whole = 0, jit.inline(lambda x, y, start, inner, is_vector, format_of: np.uint32(0))
    if block_format.block <= MAX_IN_REGISTERS and block_format.block % count == 0:
        whole_rows = block_format.block
        convert_elements = _in_registers(functions, converters[mode], whole_rows, sub_block)
        convert_whole = _whole(convert_elements, whole_rows, count, y_dtype, per_byte)

    def blocks(work_address: int, thread_block: int, thread: int) -> int:
        """Convert the blocks of one thread of the GPU."""
        work = record_at(work_address, WORK)
        unit = unsigned(thread_block * THREADS + thread)
        if unit >= work.units:
            return 0
        x, y = array_at(work.x, work.size, x_dtype), array_at(work.y, work.size, y_dtype)
        if work.size == 1 and not has_scales:  # as on processors
            put(y, unsigned(0), x[0])
            return 0
        inner, length, most = unsigned(work.inner), unsigned(work.length), unsigned(work.block)
        columns = unsigned(_columns(work.inner, per_byte))
        down = unit // (inner // columns)
        column = (unit - down * (inner // columns)) * columns
        along = (length + most - unsigned(1)) // most
        outer = down // along
        row = (down - outer * along) * most
        start, rows = (outer * length + row) * inner + column, min(most, length - row)
        tensor_scale = np.float32(1)
        if work.tensor_scale != 0:
            tensor_scale = array_at(work.tensor_scale, 1, np.float32)[0]
        scales = array_at(work.scales, work.size, np.uint8)
        format_of = (np.uint32(work.max_shift), np.int32(work.drop), tensor_scale, bounds_of(work))
        is_vector = inner == unsigned(1) and work.is_aligned and start % unsigned(count) == unsigned(0)
        if rows == unsigned(whole_rows) and (is_vector or per_byte == 1):
            shared = convert_whole(x, y, start, inner, is_vector, format_of)
            if has_codes:
                scales[down * inner + column] = shared
            return 0
        for i in range(rows * columns):
            clear(y, start + i // columns * inner + i % columns)
        for i in range(columns):
            shared = convert_any(x, y, start + i, inner, rows, unsigned(work.sub_block), format_of)
            if has_codes:
                scales[down * inner + column + i] = shared
        return 0

    return DeviceKernel(__name__, blocks, f"{key.name}_{block_format.block}_{sub_block}_{mode}", WORK, 1)
