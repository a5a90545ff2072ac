"""The loops of a layer, the functions that compile them, the division of the work into phases and parts, and the memory for it.

A layer is computed in phases. A phase has `count_parts` parts, which may run at the same time:

- ENCODE_WEIGHTS: compute the codes of w and r, and a constant for each row;
- ENCODE_INPUTS: compute the codes of x;
- MULTIPLY: compute the terms of x in the gates, for all steps;
- STEP: step by step, compute the terms of the hidden state in the gates, and the next hidden state. A part is one direction of
  one sequence.

Codes are uint16 codes less 32768. The codes of the weights are stored in blocks of ROWS rows, in the order of `add_products`.
The last block of a direction is padded with zeros, and so are the last columns.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import new_words, release_words
from ..compiling.intrinsics import address_of, array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.records import words
from ..compiling.variants import READ, WRITTEN, variants
from .arithmetic import MAX_PAIRS, ROWS, add_products, code, hidden_code, int32, rounded, shifted, shifts, tanhf
from .fixed_point import LAYER
from .granularity import DIRECTIONS, GATES

ENCODE_WEIGHTS, ENCODE_INPUTS, MULTIPLY, STEP, PHASES = range(5)

# The record that the parts of a phase share: the addresses of the tensors' elements, of the memory for weights, of the working
# memory and of the layer; the phase; and the sizes.
WORK = words("x", "w", "r", "b", "y", "weights", "memory", "layer", "phase", "steps", "batch", "inputs")


@jit.function
def pairs_of(length: int) -> int:
    """Return the number of pairs of codes for this length, rounded up to an even number to fill whole 64-bit words."""
    return (length + 3) // 4 * 2


@jit.function
def blocks_of(rows: int) -> int:
    return (rows + ROWS - 1) // ROWS


@jit.function
def count_parts(phase: int, steps: int, batch: int, hidden: int) -> int:
    if phase == ENCODE_WEIGHTS:
        return DIRECTIONS * blocks_of(GATES * hidden)
    if phase == ENCODE_INPUTS:
        return blocks_of(steps * batch)
    if phase == MULTIPLY:
        return batch * DIRECTIONS * blocks_of(GATES * hidden)
    return batch * DIRECTIONS


@jit.function
def ceil_log2(number: int) -> int:
    """Return the base-2 logarithm, rounded up, or 0 for 0."""
    power = 0
    while np.int64(1) << np.int64(power) < number:
        power += 1
    return power


@jit.inline
def split(q: Any) -> Any:
    """Return (low, high) with q = 256 * high + low and low from 0 to 255."""
    wide = np.int32(q)
    return np.int16(wide & np.int32(255)), np.int16(wide >> np.int32(8))


@jit.function
def encode_block(
    values: Any, direction: int, first: int, rows: int, columns: int, scale: Any, zero: Any, codes: Any, sums: Any
) -> None:
    """Write the codes of a block of the weights of one direction, and the sums of its rows. The first row of the block is
    `first`."""
    count = unsigned(min(ROWS, rows - first))
    source, to_sums = unsigned((direction * rows + first) * columns), unsigned(direction * rows + first)
    for row in range(count):
        sums[to_sums + row] = 0
    to = unsigned(2 * (direction * blocks_of(rows) * ROWS + first) * pairs_of(columns))
    for column in range(2 * pairs_of(columns)):
        at = unsigned(to + 2 * ROWS * (column // 2) + column % 2)
        for row in range(unsigned(ROWS)):
            codes[at + row + row] = np.int16(0)
        if column < columns:
            for row in range(count):
                q = code(values[source + row * unsigned(columns) + unsigned(column)], scale, zero)
                codes[at + row + row] = q
                sums[to_sums + row] += np.int64(q)


@jit.function
def encode_weights(part: int, inputs: int, tensors: Any, codes: Any, sums: Any, constants: Any, layer: Any) -> None:
    """Write the codes, sums and constants of a block of rows. `tensors` are w, r and b; `codes` and `sums` are those of w and
    r."""
    (w, r, b), (w_codes, r_codes), (w_sums, r_sums) = tensors, codes, sums
    hidden = layer.hidden
    rows = GATES * hidden
    direction, first = part // blocks_of(rows), part % blocks_of(rows) * ROWS
    w_zero, r_zero, b_zero = np.float32(layer.w_zero_point), np.float32(layer.r_zero_point), np.float32(layer.b_zero_point)
    encode_block(w, direction, first, rows, inputs, np.float32(layer.w_scale), w_zero, w_codes, w_sums)
    encode_block(r, direction, first, rows, hidden, np.float32(layer.r_scale), r_zero, r_codes, r_sums)
    half = np.int64(1 << 15)
    x_zero, y_zero = np.float64(layer.x_zero_point - half), np.float64(layer.y_zero_point - half)
    base = (np.float64(inputs) * layer.xz_step) * x_zero + (np.float64(hidden) * layer.hz_step) * y_zero
    w_factor, r_factor, b_factor = layer.x_step * x_zero, layer.h_step * y_zero, layer.b_scale * 16777216.0
    b_scale = np.float32(layer.b_scale)
    for row in range(first, min(rows, first + ROWS)):
        at = direction * 2 * rows + row
        biases = np.int64(code(b[at], b_scale, b_zero)) + np.int64(code(b[at + rows], b_scale, b_zero))
        biases -= 2 * (layer.b_zero_point - half)
        sum_w, sum_r = w_sums[direction * rows + row], r_sums[direction * rows + row]
        value = base - w_factor * np.float64(sum_w) - r_factor * np.float64(sum_r) + b_factor * np.float64(biases)
        constants[direction * rows + row] = np.int32(rounded(value))


@jit.function
def encode_inputs(part: int, sizes: Any, x: Any, input_codes: Any, layer: Any) -> None:
    """Write a block of rows of the input codes: of the codes of x, split by `split`, and of the sum of those of each row."""
    steps, batch, inputs = sizes
    low, high, sums = input_codes
    scale, zero = np.float32(layer.x_scale), np.float32(layer.x_zero_point)
    for row in range(part * ROWS, min(steps * batch, (part + 1) * ROWS)):
        total, at, to = np.int64(0), unsigned(row * inputs), unsigned(row * 2 * pairs_of(inputs))
        for i in range(unsigned(inputs)):
            q = code(x[at + i], scale, zero)
            low[to + i], high[to + i] = split(q)
            total += np.int64(q)
        for i in range(unsigned(inputs), unsigned(2 * pairs_of(inputs))):
            low[to + i] = high[to + i] = np.int16(0)
        sums[row] = total


@jit.function
def multiply_block(codes: Any, at: int, low: Any, high: Any, start: int, pairs: int, products: Any, to: int) -> None:
    """Write to `products`, from `to` on, the products of a block of weights with the numbers from `start` on."""
    for row in range(to, to + ROWS):
        products[row] = np.int64(0)
    for done in range(0, pairs, MAX_PAIRS):
        n = min(MAX_PAIRS, pairs - done)
        add_products(codes, at + 2 * ROWS * done, low, high, start + 2 * done, n, products, to)


@jit.function
def multiply(
    part: int, sizes: Any, w_codes: Any, constants: Any, input_codes: Any, gates: Any, layer: Any, products: Any
) -> None:
    """Write to `gates`, for each sequence, direction and step, the terms that do not depend on the hidden state, as int32,
    wrapped around. `products` has room for ROWS numbers."""
    steps, batch, inputs = sizes
    low, high, sums = input_codes
    rows, pairs = GATES * layer.hidden, pairs_of(inputs)
    sequence, block = part // blocks_of(rows), part % blocks_of(rows)
    n, direction = sequence // DIRECTIONS, sequence % DIRECTIONS
    count = min(ROWS, rows - block * ROWS)
    at = (direction * blocks_of(rows) + block) * ROWS * 2 * pairs
    mean = np.int64(ceil_log2(inputs))
    x_left, x_right = shifts(layer.x_shift - mean)
    z_left, z_right = shifts(layer.xz_shift)
    first = unsigned(direction * rows + block * ROWS)
    for t in range(steps):
        multiply_block(w_codes, at, low, high, (t * batch + n) * 2 * pairs, pairs, products, 0)
        offset = shifted(sums[t * batch + n] * layer.xz_mantissa, z_left, z_right)
        to = unsigned((sequence * steps + t) * rows + block * ROWS)
        for row in range(unsigned(count)):
            product = shifted(shifted(products[row], np.int64(0), mean) * layer.x_mantissa, x_left, x_right)
            gates[to + row] = int32(product - offset + np.int64(constants[first + row]))


@jit.function
def step(part: int, sizes: Any, r_codes: Any, gates: Any, y: Any, layer: Any, memory: Any) -> None:
    """Run all steps of a sequence in one direction. `memory` is what a part has to itself: a product for each row of all
    blocks; a float for each row, and 2 * hidden more; and the codes of the hidden state, split by `split`."""
    steps, batch, _ = sizes
    products, floats, low, high = memory
    hidden = layer.hidden
    rows, pairs = GATES * hidden, pairs_of(hidden)
    blocks = blocks_of(rows)
    n, direction = part // DIRECTIONS, part % DIRECTIONS
    mean = np.int64(ceil_log2(hidden))
    h_left, h_right = shifts(layer.h_shift - mean)
    z_left, z_right = shifts(layer.hz_shift)
    y_left, y_right = np.int64(min(max(-layer.y_shift, 0), 16)), np.int64(min(max(layer.y_shift, 0), 42))
    y_scale, back, half = np.float32(layer.y_scale), np.int64(1 << 15) - layer.y_zero_point, np.float32(0.5)
    cells, tanhs = floats[rows : rows + hidden], floats[rows + hidden : rows + 2 * hidden]
    for j in range(2 * pairs):
        low[j], high[j] = split(np.int16(layer.initial if j < hidden else 0))
    for j in range(hidden):
        cells[j] = np.float32(0)
    total = layer.initial * hidden
    outputs, forgets, candidates = unsigned(hidden), unsigned(2 * hidden), unsigned(3 * hidden)
    for i in range(steps):
        t = i if direction == 0 else steps - 1 - i
        for block in range(blocks):
            at_block = (direction * blocks + block) * ROWS * 2 * pairs
            multiply_block(r_codes, at_block, low, high, 0, pairs, products, block * ROWS)
        offset = shifted(total * layer.hz_mantissa, z_left, z_right)
        at = unsigned((part * steps + t) * rows)
        for row in range(unsigned(rows)):
            product = shifted(shifted(products[row], np.int64(0), mean) * layer.h_mantissa, h_left, h_right)
            value = int32(np.int64(gates[at + row]) + product - offset)
            # The value is in steps of 2**-24. A sigmoid is computed from the tanh of half its argument, hence 2**-25.
            floats[row] = np.float32(np.float32(value) * np.float32(2.0**-25))
        for row in range(candidates, unsigned(rows)):
            floats[row] = np.float32(floats[row] * np.float32(2))
        for row in range(rows):
            floats[row] = tanhf(floats[row])
        for j in range(unsigned(hidden)):
            inward = np.float32(np.float32(floats[j] * half) + half)
            forget = np.float32(np.float32(floats[j + forgets] * half) + half)
            cells[j] = np.float32(np.float32(inward * floats[j + candidates]) + np.float32(forget * cells[j]))
        for j in range(hidden):
            tanhs[j] = tanhf(cells[j])
        total = np.int64(0)
        to = unsigned(((t * DIRECTIONS + direction) * batch + n) * hidden)
        for j in range(unsigned(hidden)):
            outward = np.float32(np.float32(floats[j + outputs] * half) + half)
            state = hidden_code(np.float32(outward * tanhs[j]), layer.y_mantissa, y_left, y_right, layer.initial)
            total += state
            low[j], high[j] = split(state)
            y[to + j] = np.float32(np.float32(state + back) * y_scale)


@jit.function
def count_code_words(columns: int, hidden: int) -> int:
    """Return the number of 64-bit words of the codes of one matrix of weights."""
    return DIRECTIONS * blocks_of(GATES * hidden) * ROWS * pairs_of(columns) // 2


@jit.function
def count_weight_words(inputs: int, hidden: int) -> int:
    """Return the number of 64-bit words for the codes of the weights, the sums of their rows, and the constants."""
    sums_and_constants = DIRECTIONS * GATES * hidden * 5 // 2
    return count_code_words(inputs, hidden) + count_code_words(hidden, hidden) + sums_and_constants


@jit.function
def count_own_words(phase: int, hidden: int) -> int:
    """Return the number of 64-bit words of memory that a part of a phase does not share with other parts."""
    if phase == MULTIPLY:
        return ROWS
    return blocks_of(GATES * hidden) * ROWS + (GATES + 2) * hidden // 2 + pairs_of(hidden)


@jit.function
def count_words(steps: int, batch: int, inputs: int, hidden: int) -> int:
    """Return the number of 64-bit words of the working memory of a run."""
    shared = steps * batch * (1 + pairs_of(inputs) + DIRECTIONS * GATES * hidden // 2)
    own = 0
    for phase in (MULTIPLY, STEP):
        own = max(own, count_parts(phase, steps, batch, hidden) * count_own_words(phase, hidden))
    return shared + own


@jit.function
def run(phase: int, part: int, sizes: Any, tensors: Any, layer: Any, weights: Any, memory: Any) -> None:
    """Run a part of a phase. `sizes` are the numbers of steps, of sequences and of inputs, `tensors` are x, w, r, b and y.
    `weights` and `memory` are int64 arrays of ``count_weight_words`` and ``count_words`` elements."""
    (steps, batch, inputs), (x, w, r, b, y) = sizes, tensors
    hidden, rows = layer.hidden, DIRECTIONS * GATES * layer.hidden
    w_end = count_code_words(inputs, hidden)
    r_end = w_end + count_code_words(hidden, hidden)
    w_codes, r_codes = weights[:w_end].view(np.int16), weights[w_end:r_end].view(np.int16)
    constants = weights[r_end + 2 * rows :].view(np.int32)
    if phase == ENCODE_WEIGHTS:
        w_sums, r_sums = weights[r_end : r_end + rows], weights[r_end + rows : r_end + 2 * rows]
        encode_weights(part, inputs, (w, r, b), (w_codes, r_codes), (w_sums, r_sums), constants, layer)
        return
    sums_end, code_words = steps * batch, steps * batch * pairs_of(inputs) // 2
    high_begin, gates_begin = sums_end + code_words, sums_end + 2 * code_words
    own_begin = gates_begin + steps * batch * rows // 2
    low, high = memory[sums_end:high_begin].view(np.int16), memory[high_begin:gates_begin].view(np.int16)
    input_codes, gates = (low, high, memory[:sums_end]), memory[gates_begin:own_begin].view(np.int32)
    if phase == ENCODE_INPUTS:
        encode_inputs(part, sizes, x, input_codes, layer)
        return
    own = memory[own_begin + part * count_own_words(phase, hidden) :]
    if phase == MULTIPLY:
        multiply(part, sizes, w_codes, constants, input_codes, gates, layer, own[:ROWS])
        return
    floats_begin = blocks_of(GATES * hidden) * ROWS
    low_begin = floats_begin + (GATES + 2) * hidden // 2
    high_begin, end = low_begin + pairs_of(hidden) // 2, low_begin + pairs_of(hidden)
    products, floats = own[:floats_begin], own[floats_begin:low_begin].view(np.float32)
    low, high = own[low_begin:high_begin].view(np.int16), own[high_begin:end].view(np.int16)
    step(part, sizes, r_codes, gates, y, layer, (products, floats, low, high))


def serial(x: Any, w: Any, r: Any, b: Any, y: Any, steps: int, batch: int, inputs: int, layers: Any) -> bool:
    """Run all phases on one thread. Return whether there was enough memory."""
    weights = new_words(count_weight_words(inputs, layers[0].hidden))
    memory = new_words(count_words(steps, batch, inputs, layers[0].hidden))
    has_memory = address_of(weights, 0) != 0 and address_of(memory, 0) != 0
    if has_memory:
        for phase in range(PHASES):
            for part in range(count_parts(phase, steps, batch, layers[0].hidden)):
                run(phase, part, (steps, batch, inputs), (x, w, r, b, y), layers[0], weights, memory)
    release_words(weights)
    release_words(memory)
    return has_memory


def parallel(x: Any, w: Any, r: Any, b: Any, y: Any, steps: int, batch: int, inputs: int, layers: Any, slices: int) -> None:
    """Run all phases on Numba's threads."""
    weights = np.empty(count_weight_words(inputs, layers[0].hidden), np.int64)
    memory = np.empty(count_words(steps, batch, inputs, layers[0].hidden), np.int64)
    for phase in range(PHASES):
        for part in prange(count_parts(phase, steps, batch, layers[0].hidden)):
            run(phase, part, (steps, batch, inputs), (x, w, r, b, y), layers[0], weights, memory)


def task(work_address: int, part: int) -> None:
    """Run a part of a phase of a node's work, on a thread of ONNX Runtime."""
    work = record_at(work_address, WORK)
    layer = record_at(work.layer, LAYER)
    hidden, steps, batch, inputs = layer.hidden, work.steps, work.batch, work.inputs
    rows = DIRECTIONS * GATES * hidden
    x, w = array_at(work.x, steps * batch * inputs, np.float32), array_at(work.w, rows * inputs, np.float32)
    r, b = array_at(work.r, rows * hidden, np.float32), array_at(work.b, 2 * rows, np.float32)
    y = array_at(work.y, steps * DIRECTIONS * batch * hidden, np.float32)
    weights = array_at(work.weights, count_weight_words(inputs, hidden), np.int64)
    memory = array_at(work.memory, count_words(steps, batch, inputs, hidden), np.int64)
    run(work.phase, part, (steps, batch, inputs), (x, w, r, b, y), layer, weights, memory)


# Operands, sizes, and an array of one LAYER.
_SIZES, _LAYERS = (types.intp,) * 3, types.Array(numba.from_dtype(LAYER), 1, "C")
_ARGUMENTS = (READ, READ, READ, READ, WRITTEN, *_SIZES, _LAYERS)

serial_kernel, parallel_kernel, task_function = variants(
    lambda key: (serial, parallel, task), lambda key: f"recurrent_{key.name}", lambda key: _ARGUMENTS, allocates=True
)
