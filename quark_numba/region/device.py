"""The kernels of this family for GPUs: a thread computes all steps of some elements, or of a block; how many elements, and when
they are read as vectors."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from ..block.device import round_trip
from ..compiling import jit
from ..compiling.device import THREADS, VECTOR, DeviceKernel, loader, store
from ..compiling.intrinsics import record_at
from ..compiling.text import branch, function_of, indented, tuple_of
from ..linear.device import reader
from . import arithmetic
from .element_source import ElementWriter, bind_steps
from .gpu_loops import BLOCK_LOOP, work_of
from .granularity import GPU_LOOPS
from .key import Program
from .loops import Apply
from .step_operators import BLOCK_ROUND_TRIPS

# The number of elements in a vector of float32. A thread computes this many elements of y, or one block.
COUNT = VECTOR // 4


@functools.cache
def kernel(program: Program) -> DeviceKernel:
    """Return the kernel of a program.

    Raises
    ------
    ValueError
        If blocks of the program have too many elements for registers.
    """
    elements, work = ElementWriter(program), work_of(program)
    block = program.block_size
    count, units = block or COUNT, 1 if block else COUNT
    names = {"THREADS": THREADS, "WORK": work, "record_at": record_at, "store": store, "load": loader(COUNT)}
    names |= {"place_of": _place_of, "after": _after, **bind_steps(program)}
    inputs = enumerate(zip(program.inputs, arithmetic.input_dtypes(program), strict=True))
    names |= {f"read{k}": reader(x.element_type, dtype) for k, (x, dtype) in inputs}
    names |= {f"round{number}": round_trip(*program.steps[number].block_format) for number in program.block_formats}
    lines = [
        "work = record_at(work_address, WORK)",
        f"first = unsigned(thread_block * THREADS + thread) * unsigned({units})",
        *("if first >= work.units:", "    return 0"),
        *(f"x{k} = read{k}(work.x{k}, unsigned(0))" for k, x in enumerate(program.inputs) if x.is_scalar),
        *elements.prepare(),
        *(_find_elements_of_block(program, block) if block else _find_elements(program, count)),
        *_read_streams(program, count, block),
        *_compute_steps(program, elements, count),
        *_write_y([elements.name(len(program.inputs) + len(program.steps) - 1, j) for j in range(count)]),
    ]
    text = ["def run_region(work_address, thread_block, thread):", *indented([*lines, "return 0"]), ""]
    run_region = function_of("\n".join(text), __name__, __file__, names)
    return DeviceKernel(__name__, run_region, program.name, work, units)


def _find_elements(program: Program, count: int) -> list[str]:
    """Return the lines that compute which elements a thread has. They set `rows`, the number of elements; `start`, the index of
    the first element in y; `along`, the distance between the elements; `is_vector`, whether y and the inputs that are laid out
    as y may be accessed in vectors; and the places of the elements in the loops. If there are fewer elements than places, the
    last element is repeated."""
    places = ["place0 = place_of(work, first)"]
    for j in range(1, count):
        places.append(f"place{j} = after(work, place{j - 1}) if rows > unsigned({j}) else place{j - 1}")
    inputs = zip(program.inputs, arithmetic.input_dtypes(program), strict=True)
    if all(x.is_scalar or x.element_type.storage == dtype for x, dtype in inputs):
        # These divisions take longer than everything else that a thread does with four elements that are read as a vector.
        all_streams = sum(1 << k for k in program.streams)
        no_places = f"{' = '.join(f'place{j}' for j in range(count))} = {', '.join(['unsigned(0)'] * GPU_LOOPS)}"
        places = [no_places, f"if not is_vector or work.full != unsigned({all_streams}):", *indented(places)]
    return [
        f"start, rows, along = first, min(unsigned({count}), work.units - first), unsigned(1)",
        f"is_vector = work.is_aligned and rows == unsigned({count})",
        *places,
    ]


def _find_elements_of_block(program: Program, block: int) -> list[str]:
    """Return `_find_elements` for a thread that has a block. i{k} is the index of its first element in input k."""
    return [
        "p0, p1, p2, p3 = place_of(work, first)",
        f"place = p0, p1, p2 * unsigned({block}), p3",
        f"start, along = {_index('_y', 'place')}, work.stride_y_{BLOCK_LOOP}",
        f"rows = min(unsigned({block}), work.rows - place[{BLOCK_LOOP}])",
        f"is_vector = along == unsigned(1) and work.is_aligned and start % unsigned({COUNT}) == unsigned(0)",
        f"is_vector = is_vector and rows == unsigned({block})",
        *(f"i{k} = {_index(k, 'place')}" for k in program.streams),
    ]


def _read_streams(program: Program, count: int, block: int) -> list[str]:
    """Return the lines that read the elements of a thread: `count` elements e{k}_{j} of each input k that has more than one
    element. If an input is laid out as y and aligned, its elements are read as vectors."""
    lines = []
    for k, (x, dtype) in enumerate(zip(program.inputs, arithmetic.input_dtypes(program), strict=True)):
        if x.is_scalar:
            continue
        reads = _read_block(k, block) if block else _read_each(k, [_index(k, f"place{j}") for j in range(count)])
        if x.element_type.storage == dtype and count % COUNT == 0:
            vectors = " + ".join(f"load(a{k}, start + unsigned({j}))" for j in range(0, count, COUNT))
            loads = [f"a{k} = array_at(work.x{k}, work.units, np.{dtype.name})"]
            loads.append(f"{', '.join(f'e{k}_{j}' for j in range(count))} = {vectors}")
            reads = branch(f"is_vector and work.full & unsigned({1 << k})", loads, reads)
        lines += reads
    return lines


def _read_each(k: int, indices: list[str]) -> list[str]:
    """Return the lines that read these elements of input k, one by one."""
    return [f"e{k}_{j} = read{k}(work.x{k}, {index})" for j, index in enumerate(indices)]


def _read_block(k: int, block: int) -> list[str]:
    """Return the lines that read a block. The last element of a short one is repeated, which changes no maximum."""
    whole = [f"i{k} + unsigned({j}) * work.stride{k}_{BLOCK_LOOP}" for j in range(block)]
    short = [f"i{k} + min(unsigned({j}), rows - unsigned(1)) * work.stride{k}_{BLOCK_LOOP}" for j in range(block)]
    return branch(f"rows == unsigned({block})", _read_each(k, whole), _read_each(k, short))


def _index(k: int | str, place: str) -> str:
    """Return the source of the index of the element of input k, or of y, at a place of the loops."""
    return " + ".join(f"{place}[{d}] * work.stride{k}_{d}" for d in range(GPU_LOOPS))


def _compute_steps(program: Program, elements: ElementWriter, count: int) -> list[str]:
    """Return the lines that compute all steps for the elements of a thread. The steps between those that round blocks are
    computed element by element."""
    lines = []
    rounds_blocks = [step.operator in BLOCK_ROUND_TRIPS for step in program.steps]
    for are_rounded, group in itertools.groupby(range(len(program.steps)), rounds_blocks.__getitem__):
        numbers = [*group]
        if not are_rounded:
            lines += [elements.write(Apply(number), j) for j in range(count) for number in numbers]
            continue
        for number in numbers:
            x = [name for j in range(count) for name in elements.operands(number, j)]
            y = [elements.name(len(program.inputs) + number, j) for j in range(count)]
            lines.append(f"{', '.join(y)}, = round{number}({tuple_of(x)})")
            # A single element stays as it is.
            lines.append(f"{y[0]} = {x[0]} if work.units == unsigned(1) and work.rows == unsigned(1) else {y[0]}")
    return lines


def _write_y(y: list[str]) -> list[str]:
    """Return the lines that write these elements to y, as vectors or one by one. Elements that only repeat the last one are not
    written."""
    count = len(y)
    lines = ["y = array_at(work.y, work.units, np.float32)"]
    if count % COUNT == 0:
        stores = [f"store(y, start + unsigned({j}), ({', '.join(y[j : j + COUNT])}))" for j in range(0, count, COUNT)]
        lines += ["if is_vector:", *indented([*stores, "return 0"])]
    writes = [f"y[start + unsigned({j}) * along] = {y[j]}" for j in range(count)]
    lines += [f"if rows == unsigned({count}):", *indented([*writes, "return 0"])]
    for j in range(count - 1):
        lines += [f"if rows > unsigned({j}):", f"    {writes[j]}"]
    return lines


@jit.inline
def _place_of(work: Any, i: Any) -> Any:
    """Return the indices of element i of y, or of block i, in the loops."""
    outer_three = i // work.length3  # the number of the element in the outer three loops
    outer_two = outer_three // work.length2
    outer_one = outer_two // work.length1
    return (
        outer_one,
        outer_two - outer_one * work.length1,
        outer_three - outer_two * work.length2,
        i - outer_three * work.length3,
    )


@jit.inline
def _after(work: Any, place: Any) -> Any:
    """Return the indices of the next element."""
    i0, i1, i2, i3 = place
    one, zero = np.uintp(1), np.uintp(0)
    i3 += one
    if i3 == work.length3:
        i3 = zero
        i2 += one
        if i2 == work.length2:
            i2 = zero
            i1 += one
            if i1 == work.length1:
                i1 = zero
                i0 += one
    return i0, i1, i2, i3
