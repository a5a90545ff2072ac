"""The loop over elements on a GPU, and this family's kernels for GPUs: which elements a thread converts, when vectors are read,
and codes of fewer than 8 bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.device import THREADS, VECTOR, DeviceKernel, loader, store, work_dtype
from ..compiling.intrinsics import array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.text import function_of, indented
from ..element_types import FLOAT8E8M0, ElementType, codecs
from . import arithmetic, exponents
from .granularity import Loop
from .key import Key

# The record of a launch. The units are x's elements. `x`, `y`, `scale` and `zero_point` are addresses; a `zero_point` of 0
# stands for zeros. Scales and zero points have the element types of the tensors. There are `scales` of each, and the others are
# the fields of a Loop; but where a Loop that varies repeats scales, `inner` is their number. `is_aligned`: x and y lie at
# multiples of VECTOR.
WORK = work_dtype(("x", "y", "scale", "zero_point"), ("scales", *Loop._fields, "is_aligned"))


@jit.inline
def _place_of(work: Any, i: Any) -> Any:
    """Return the place of element i: (number of the first scale in its row of scales, column, row within the block, row along
    the axis). If there is one scale, all elements are at the first place."""
    if work.scales == 1:
        return unsigned(0), unsigned(0), unsigned(0), unsigned(0)
    line = i // work.inner
    outer = line // work.length
    row = line - outer * work.length
    number = outer * ((work.length + work.block - unsigned(1)) // work.block) + row // work.block
    number *= work.inner if work.vary else unsigned(1)
    return number % work.scales, i - line * work.inner, row % work.block, row


@jit.inline
def _after(work: Any, place: Any) -> Any:
    """Return the place of the next element."""
    first, column, in_block, row = place
    if work.scales == 1:
        return place
    column += unsigned(1)
    if column == work.inner:
        column = unsigned(0)
        in_block += unsigned(1)
        row += unsigned(1)
        if in_block == work.block or row == work.length:
            in_block = unsigned(0)
            row = unsigned(0) if row == work.length else row
            first += work.inner if work.vary else unsigned(1)
            first = unsigned(0) if first == work.scales else first
    return first, column, in_block, row


@jit.inline
def _index_of(work: Any, place: Any) -> Any:
    """Return the number of the scale of the element at a place."""
    return place[0] + place[1] if work.vary else place[0]


def _vector_functions(names: dict[str, Any], x_bits: int, y_bits: int) -> tuple[Any, Any]:
    """Return the functions (x, y, first, numbers) and (x, y, first, record, place), which convert COUNT elements from the first
    one on. They are unrolled, so that all elements are in registers. `names` are the names that the source uses."""
    count, per_byte = names["COUNT"], max(1, 8 // y_bits)
    x = [f"x[{k}]" for k in range(count)]
    if x_bits < 8:
        x = [f"X_DTYPE(x[{k * x_bits // 8}] >> X_DTYPE({k * x_bits % 8}))" for k in range(count)]
    alike = [f"y{k} = convert({x[k]}, numbers)" for k in range(count)]
    each = [f"y{k} = convert({x[k]}, numbers_at(work, index_of(work, p{k})))" for k in range(count)]
    places = ["p0 = place", *(f"p{k} = after(work, p{k - 1})" for k in range(1, count))]
    begin = [f"x = load(x, first // unsigned({max(1, 8 // x_bits)}))"]
    end = [f"store(y, first // unsigned({per_byte}), ({', '.join(stored(count, y_bits))},))"]
    load = loader(count * x_bits // (8 * names["X_DTYPE"]().itemsize))
    names = names | {"after": _after, "index_of": _index_of, "load": load, "store": store}

    def function(parameters: str, lines: list[str]) -> Any:
        text = [f"def convert_vector(x, y, first, {parameters}):", *indented([*begin, *lines, *end]), ""]
        return jit.inline(function_of("\n".join(text), __name__, __file__, names))

    return function("numbers", alike), function("work, place", places + each)


def stored(count: int, bits: int) -> list[str]:
    """Return the sources of the values to store for the elements y0, y1, ... of so many bits: the elements, or bytes of several
    elements."""
    if bits >= 8:
        return [f"Y_DTYPE(y{k})" for k in range(count)]
    parts = [f"((np.uint32(y{k}) & np.uint32({2**bits - 1})) << np.uint32({k * bits % 8}))" for k in range(count)]
    return [f"Y_DTYPE({' | '.join(parts[k : k + 8 // bits])})" for k in range(0, count, 8 // bits)]


def getter(bits: int) -> Any:
    """Return the function (array, i) -> element i, for elements of so many bits. Elements of fewer than 8 bits share a byte;
    the bits above an element are not cleared."""
    if bits >= 8:
        return jit.inline(lambda array, i: array[i])
    per_byte, u8 = unsigned(8 // bits), np.uint8
    return jit.inline(lambda array, i: u8(array[i // per_byte] >> u8(i % per_byte * unsigned(bits))))


def putters(bits: int) -> tuple[Any, Any]:
    """Return the functions `clear`: (array, i) and `put`: (array, i, element), which write element i after it was cleared. The
    elements of a byte have to be written by one thread, after all of them were cleared."""
    per_byte, u8, mask = unsigned(max(1, 8 // bits)), np.uint8, np.uint8(2 ** min(bits, 8) - 1)

    def clear(array: Any, i: Any) -> None: ...

    def put(array: Any, i: Any, element: Any) -> None:
        array[i] = element

    def clear_bits(array: Any, i: Any) -> None:
        array[i // per_byte] = u8(0)

    def put_bits(array: Any, i: Any, element: Any) -> None:
        array[i // per_byte] |= u8((u8(element) & mask) << u8(i % per_byte * unsigned(bits)))

    clear, put = (clear_bits, put_bits) if bits < 8 else (clear, put)
    return jit.inline(clear), jit.inline(put)


def bits_in(element_type: ElementType) -> int:
    """Return the bits of an element in a tensor of ONNX Runtime."""
    return element_type.bits if element_type.is_packed else 8 * element_type.storage.itemsize


def reader(element_type: ElementType, dtype: Any) -> Any:
    """Return the function (address, i) -> element i of a tensor, as a number of `dtype`, which holds every value, or as it is
    stored."""
    storage, get, number = element_type.storage.type, getter(bits_in(element_type)), np.dtype(dtype).type
    decode = exponents.value_of if element_type is FLOAT8E8M0 else codecs.decoder(element_type)
    if dtype in (element_type.dtype, element_type.storage):
        decode = codecs.same
    return jit.inline(lambda address, i: number(decode(get(array_at(address, 1, storage), i))))


@functools.cache
def kernel(key: Key, scale: ElementType) -> DeviceKernel:
    """Return the kernel of a key of the dispatch table for scales of an element type. Codes of fewer than 8 bits lie as in ONNX
    Runtime's tensors."""
    scale_at, zero_point_at = reader(scale, key.scale_dtype), reader(key.quantized, key.zero_point_dtype)
    convert_by_two, zero = arithmetic.converter(key), np.dtype(key.zero_point_dtype).type(0)

    @jit.inline
    def numbers_at(work: Any, index: Any) -> Any:
        zero_point = zero
        if work.zero_point != 0:
            zero_point = zero_point_at(work.zero_point, index)
        return scale_at(work.scale, index), zero_point

    convert = jit.inline(lambda x, numbers: convert_by_two(x, numbers[0], numbers[1]))
    count = VECTOR // max(key.x.storage.itemsize, key.y.storage.itemsize)
    x_dtype, y_dtype = key.x.storage.type, key.y.storage.type
    names = {"COUNT": count, "X_DTYPE": x_dtype, "Y_DTYPE": y_dtype, "convert": convert, "numbers_at": numbers_at}
    x_bits, y_bits = bits_in(key.x), bits_in(key.y)
    convert_alike, convert_each = _vector_functions(names, x_bits, y_bits)
    get, (clear, put) = getter(x_bits), putters(y_bits)

    def elements(work_address: int, thread_block: int, thread: int) -> int:
        """Convert `count` elements: at most a VECTOR of x and of y. The last elements of a tensor, and all elements of tensors
        that are not aligned, are converted one by one."""
        work = record_at(work_address, WORK)
        first = unsigned(thread_block * THREADS + thread) * unsigned(count)
        if first >= work.units:
            return 0
        x, y = array_at(work.x, work.units, x_dtype), array_at(work.y, work.units, y_dtype)
        stop, place = first + unsigned(count), _place_of(work, first)
        if not work.is_aligned or stop > work.units:
            stop = min(stop, work.units)
            for i in range(first, stop):
                clear(y, i)
            for i in range(first, stop):
                put(y, i, convert(get(x, i), numbers_at(work, _index_of(work, place))))
                place = _after(work, place)
            return 0
        _, column, in_block, row = place
        rows = min(work.block - in_block, work.length - row)
        if work.scales == 1 or (not work.vary and column + unsigned(count) <= rows * work.inner):
            convert_alike(x, y, first, numbers_at(work, place[0]))
        else:
            convert_each(x, y, first, work, place)
        return 0

    return DeviceKernel(__name__, elements, f"{key.name}_by_{scale.name}", WORK, count)
