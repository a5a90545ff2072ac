"""The kernels of this family for GPUs: a thread computes all steps of some elements."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.device import THREADS, VECTOR, DeviceKernel, loader, store, work_dtype
from ..compiling.intrinsics import record_at
from ..compiling.text import function_of, indented
from ..linear.device import reader
from . import arithmetic
from .granularity import GPU_LOOPS
from .key import Program
from .source import Writer

# The dimensions of the loop, and the elements of y that a thread computes.
DIMENSIONS, COUNT = GPU_LOOPS, VECTOR // 4


def work_of(program: Program) -> Any:
    """Return the dtype of the record of a launch. The units are y's elements.

    It has the addresses `y`, and `x0`, `x1` and so on of the inputs, which have the tensors' element types. `length0` to
    `length3` are the dimensions of y, with neighbours joined or dimensions of 1 in front. For input k with more than one
    element, `step{k}_{d}` is how many of its elements are from one index along dimension d to the next; 0: it lacks the
    dimension. Bit k of `full` is set if its elements lie as y's do. `is_aligned`: y and these inputs are at multiples of
    VECTOR."""
    steps = [f"step{k}_{d}" for k in _streams(program) for d in range(DIMENSIONS)]
    addresses = [f"x{k}" for k in range(len(program.inputs))]
    return work_dtype(["y", *addresses], [*(f"length{d}" for d in range(DIMENSIONS)), *steps, "full", "is_aligned"])


def _streams(program: Program) -> list[int]:
    return [k for k, x in enumerate(program.inputs) if not x.is_scalar]


@functools.cache
def kernel(program: Program) -> DeviceKernel:
    """Return the kernel of a program.

    Raises
    ------
    ValueError
        If the program has steps of blocks.
    """
    if program.block_steps:
        raise ValueError("program has steps of blocks; expected none on a GPU")
    writer, work = Writer(program), work_of(program)
    names: dict[str, Any] = {"THREADS": THREADS, "WORK": work, "record_at": record_at, "store": store, "after": _after}
    lines, single, whole = [], [], []
    for k, dtype in enumerate(map(np.dtype, arithmetic.input_dtypes(program))):
        element_type = program.inputs[k].element_type
        names[f"read{k}"] = reader(element_type, dtype)
        if program.inputs[k].is_scalar:
            lines.append(f"x{k} = read{k}(work.x{k}, unsigned(0))")
            continue
        single.append(f"e{k} = read{k}(work.x{k}, {_index(k, 'place')})")
        each = [f"e{k}_{j} = read{k}(work.x{k}, {_index(k, f'place{j}')})" for j in range(COUNT)]
        if element_type.storage == dtype:
            names[f"load{k}"] = loader(COUNT)
            array = f"array_at(work.x{k}, work.units, np.{dtype.name})"
            elements = ", ".join(f"e{k}_{j}" for j in range(COUNT))
            whole += [
                f"if work.full & unsigned({1 << k}):",
                f"    {elements} = load{k}({array}, first)",
                "else:",
                *indented(each),
            ]
        else:
            whole += each
    single += _steps(writer, "")
    for j in range(COUNT):
        whole += _steps(writer, f"_{j}")
    last = len(program.steps) - 1
    lines += [
        *writer.once,
        f"stop = min(first + unsigned({COUNT}), work.units)",
        "y, place = array_at(work.y, work.units, np.float32), place_of(work, first)",
        f"if not work.is_aligned or stop - first < unsigned({COUNT}):",
        "    for i in range(first, stop):",
        *indented(indented([*single, f"y[i] = v{last}", "place = after(work, place)"])),
        "    return 0",
        *(f"place{j} = {f'after(work, place{j - 1})' if j else 'place'}" for j in range(COUNT)),
        *whole,
        f"store(y, first, ({', '.join(f'v{last}_{j}' for j in range(COUNT))},))",
        "return 0",
    ]
    begin = [
        "work = record_at(work_address, WORK)",
        f"first = unsigned(block * THREADS + thread) * unsigned({COUNT})",
        "if first >= work.units:",
        "    return 0",
    ]
    text = ["def run_region(work_address, block, thread):", *indented([*begin, *lines]), ""]
    names |= writer.names | {"place_of": _place_of}
    return DeviceKernel(__name__, function_of("\n".join(text), __name__, __file__, names), program.name, work, COUNT, {})


def _index(k: int, place: str) -> str:
    """Return the source of the index of the element of input k at a place of the loop."""
    return " + ".join(f"{place}[{d}] * work.step{k}_{d}" for d in range(DIMENSIONS))


def _steps(writer: Writer, suffix: str) -> list[str]:
    """Return the lines that compute all steps for one element."""
    program, lines = writer.program, []
    names = [f"x{k}" if x.is_scalar else f"e{k}{suffix}" for k, x in enumerate(program.inputs)]
    for number, step in enumerate(program.steps):
        operands = [names[operand] for operand in step.operands if operand is not None]
        names.append(f"v{number}{suffix}")
        lines.append(f"{names[-1]} = {writer.expression(number, operands)}")
    return lines


@jit.inline
def _place_of(work: Any, i: Any) -> Any:
    """Return the indices of an element of y along the dimensions of the loop."""
    third = i // work.length3
    second = third // work.length2
    first = second // work.length1
    return first, second - first * work.length1, third - second * work.length2, i - third * work.length3


@jit.inline
def _after(work: Any, place: Any) -> Any:
    """Return the indices of the next element."""
    i, j, k, m = place
    one, zero = np.uintp(1), np.uintp(0)
    m += one
    if m == work.length3:
        m = zero
        k += one
        if k == work.length2:
            k = zero
            j += one
            if j == work.length1:
                j = zero
                i += one
    return i, j, k, m
