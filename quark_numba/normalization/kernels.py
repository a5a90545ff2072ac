"""The loops over instances, the functions that compile them, the size of a tile, and how many instances a call of a task
normalizes.

The sums of an instance are accumulated element by element, so that an addition waits for the one before. Therefore several
instances are summed side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import new_words, release_words
from ..compiling.intrinsics import address_of, array_at, record_at, stack
from ..compiling.jit import unsigned
from ..compiling.variants import READ, WRITTEN, variants
from .arithmetic import LANES, add_up, inverse_root, minus_square, normalized, to_bfloat16

# The number of elements of each instance that are rounded together and then summed. The tile of all LANES instances stays in
# the first-level cache.
TILE = 1 << 8

# The least number of elements of one call of a task: see linear.kernels.
CHUNK = 1 << 13

# The 4-byte words of `run`'s scratch memory: a tile, and the two sums of each instance.
SCRATCH = LANES * (TILE + 2)

# The record that the tasks of a node share: the addresses of the tensors' elements, the shape of the work, the number of
# instances of a part, and epsilon.
WORK = np.dtype(
    [
        *((name, np.int64) for name in ("x", "scale", "bias", "y", "instances", "channels", "length", "part")),
        ("epsilon", np.float32),
        ("padding", np.float32),  # to a multiple of 8 bytes
    ]
)


@jit.function
def part_of(instances: int, length: int, threads: int) -> int:
    """Return the number of instances of one call of a task: enough to outweigh the cost of the call, but not more than the
    share of a thread. As fewer threads than `threads` may run, the share is at least half a group of LANES, or half of all
    instances."""
    share = max(-(-instances // threads), min(LANES // 2, -(-instances // 2)))
    return min(max(LANES, CHUNK // length), share)


@jit.function
def run(
    x: Any, scale: Any, bias: Any, y: Any, channels: int, length: int, epsilon: Any, first: int, last: int, scratch: Any
) -> None:
    """Normalize the instances from `first` up to, but not including, `last`. `scratch` has room for SCRATCH float32."""
    tile, sums = scratch[: LANES * TILE], scratch[LANES * TILE : LANES * (TILE + 1)]
    squares = scratch[LANES * (TILE + 1) : LANES * (TILE + 2)]
    reciprocal = np.float32(1.0 / length)
    for group in range(first, last, LANES):
        for k in range(LANES):
            sums[k] = squares[k] = np.float32(0)
        count = min(LANES, last - group)
        done = 0
        while done < length:
            n = min(TILE, length - done)
            columns = (n + LANES - 1) // LANES * LANES
            for k in range(count):
                start, to = unsigned((group + k) * length + done), unsigned(k * TILE)
                for i in range(unsigned(n)):
                    tile[to + i] = to_bfloat16(x[start + i])
                for i in range(unsigned(n), unsigned(columns)):
                    tile[to + i] = np.float32(0)  # changes no sum: sums begin with 0, and so are never -0
            add_up(tile, TILE, columns, sums, squares)  # sums of rows beyond `count` are not used
            done += n
        for k in range(count):
            mean = np.float32(sums[k] * reciprocal)
            variance = minus_square(mean, np.float32(squares[k] * reciprocal))
            inverse = inverse_root(np.float32(variance + epsilon))
            center = to_bfloat16(np.float32(to_bfloat16(mean) * inverse))
            channel = (group + k) % channels
            gamma, beta = to_bfloat16(scale[channel]), to_bfloat16(bias[channel])
            start = unsigned((group + k) * length)
            for i in range(start, start + unsigned(length)):
                y[i] = normalized(x[i], inverse, center, gamma, beta)


def serial(x: Any, scale: Any, bias: Any, y: Any, channels: int, length: int, epsilon: Any) -> bool:
    """Normalize all of x on one thread. Return whether there was enough memory."""
    words = new_words(SCRATCH // 2)
    has_memory = address_of(words, 0) != 0
    if has_memory:
        for i in range(SCRATCH // 2):  # unused rows are also added up, and values such as subnormals would make that slow
            words[i] = 0
        run(x, scale, bias, y, channels, length, epsilon, 0, x.size // length, words.view(np.float32))
    release_words(words)
    return has_memory


def parallel(x: Any, scale: Any, bias: Any, y: Any, channels: int, length: int, epsilon: Any, slices: int) -> None:
    """Normalize all of x on Numba's threads."""
    instances = x.size // length
    part = part_of(instances, length, slices)
    for i in prange((instances + part - 1) // part):
        last = min(instances, (i + 1) * part)
        run(x, scale, bias, y, channels, length, epsilon, i * part, last, np.zeros(SCRATCH, np.float32))


def task(work_address: int, index: int) -> None:
    """Do part `index` of a node's work, on a thread of ONNX Runtime."""
    work = record_at(work_address, WORK)
    size, first = work.instances * work.length, index * work.part
    x, y = array_at(work.x, size, np.float32), array_at(work.y, size, np.float32)
    scale, bias = array_at(work.scale, work.channels, np.float32), array_at(work.bias, work.channels, np.float32)
    scratch = array_at(stack(SCRATCH // 2), SCRATCH, np.float32)
    for i in range(SCRATCH):  # unused rows are also added up, and values such as subnormals would make that slow
        scratch[i] = np.float32(0)
    last = min(work.instances, first + work.part)
    run(x, scale, bias, y, work.channels, work.length, work.epsilon, first, last, scratch)


# The arrays are not empty.
_ARGUMENTS = (READ, READ, READ, WRITTEN, types.intp, types.intp, types.float32)

serial_kernel, parallel_kernel, task_function = variants(
    lambda key: (serial, parallel, task), lambda key: f"normalization_{key.name}", lambda key: _ARGUMENTS, allocates=True
)
