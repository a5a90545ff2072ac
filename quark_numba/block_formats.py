"""The block formats of Quark: blocks of elements along an axis that share an exponent.

From the attributes of BFPQuantizeDequantize and MXQuantizeDequantize (com.amd.quark, version 1) to what selects a kernel, and
from a shape to the loop. ``block_shape`` is compiled into the native operators as well: it uses nothing but ``len``, indexing
and integers, and reports a fault by number, whose message is in ``BLOCK_FAULTS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .element_types import BFLOAT16, ELEMENT_TYPES, FLOAT16, FLOAT32, ElementType
from .granularity import MAX_RANK
from .lock import created_once

# Of x and y.
X_TYPES = (FLOAT32, FLOAT16, BFLOAT16)

_ROWS = {row.name: row for row in ELEMENT_TYPES}

# The element types of Microscaling formats, by their names in the attribute element_dtype.
MX_ELEMENT_TYPES = {
    "fp8_e5m2": _ROWS["float8e5m2"],
    "fp8_e4m3": _ROWS["float8e4m3fn"],
    "fp6_e3m2": _ROWS["float6e3m2"],
    "fp6_e2m3": _ROWS["float6e2m3"],
    "fp4_e2m1": _ROWS["float4e2m1"],
    "int8": _ROWS["int8"],
}

# The fraction bits of the int8 of Microscaling formats.
INT8_FRACTION_BITS = 6

BFP_METHODS = {"to_bfp": False, "to_bfp_prime": True, "to_bfp_prime_shared": True}

HALF_AWAY_FROM_ZERO, HALF_UPWARD, HALF_TO_EVEN = ROUNDING_MODES = range(3)

# Sign, 8 bits of the shared exponent, and from 1 to 15 bits of a mantissa.
BIT_WIDTHS = range(10, 25)


class BlockKey(NamedTuple):
    """What selects a kernel."""

    x: ElementType  # and y
    element: ElementType | None  # a float type, or None for whole numbers of steps
    is_prime: bool  # whether Inf and NaN spread over their block, and subnormals are zero
    via_bfloat16: bool  # whether x is rounded to bfloat16 first


class Blocks(NamedTuple):
    """A block format, on x seen as (outer, length, inner) in C order, with blocks of so many rows of the length; the last one
    may be shorter.

    Elements are whole numbers of steps, from `lowest` to `highest`, or values of a float type times a step. A step is two to
    the power of the exponent of the block's largest element, less `drop`. In a sub-block whose elements are all smaller it is
    divided by 2 as often as they allow, and at most `max_shift` times.
    """

    block: int
    sub_block: int
    max_shift: int
    drop: int
    lowest: int
    highest: int
    rounding_mode: int  # of whole numbers
    length: int = 0
    inner: int = 0


NO_BLOCK_FAULT, BLOCK_AXIS, BLOCK_RANK = range(3)
BLOCK_FAULTS = {
    BLOCK_AXIS: "axis is {axis}, out of range for x of shape {x_shape}",
    BLOCK_RANK: f"a tensor has more than {MAX_RANK} dimensions",
}


def bfp_format(
    x: ElementType,
    *,
    bfp_method: str,
    bit_width: int,
    block_size: int,
    rounding_mode: int,
    sub_block_size: int,
    sub_block_shift_bits: int,
    convert_to_bfloat_before_bfp: int,
) -> tuple[BlockKey, Blocks]:
    """What BFPQuantizeDequantize's attributes select, without a shape. A wrong one raises ValueError."""
    _one_of("bfp_method", bfp_method, BFP_METHODS)
    _one_of("bit_width", bit_width, BIT_WIDTHS)
    _one_of("rounding_mode", rounding_mode, ROUNDING_MODES)
    _one_of("convert_to_bfloat_before_bfp", convert_to_bfloat_before_bfp, (0, 1))
    positive("block_size", block_size)
    is_prime = BFP_METHODS[bfp_method]
    max_shift = 0
    if is_prime:
        positive("sub_block_size", sub_block_size)
        if block_size % sub_block_size:
            raise ValueError(f"sub_block_size is {sub_block_size}; expected one that divides block_size, {block_size}")
        _one_of("sub_block_shift_bits", sub_block_shift_bits, range(9))
        max_shift = 2**sub_block_shift_bits - 1
    bits = bit_width - 9
    key = BlockKey(x, None, is_prime, bool(convert_to_bfloat_before_bfp))
    most = 2**bits - 1
    return key, Blocks(block_size, sub_block_size if is_prime else block_size, max_shift, bits - 1, -most, most, rounding_mode)


def mx_format(x: ElementType, *, element_dtype: str, block_size: int, rounding_mode: int) -> tuple[BlockKey, Blocks]:
    """What MXQuantizeDequantize's attributes select, without a shape. A wrong one raises ValueError."""
    _one_of("element_dtype", element_dtype, MX_ELEMENT_TYPES)
    _one_of("rounding_mode", rounding_mode, ROUNDING_MODES)
    positive("block_size", block_size)
    row = MX_ELEMENT_TYPES[element_dtype]
    if row.is_integer:
        key, drop = BlockKey(x, None, False, False), INT8_FRACTION_BITS
    else:
        key, drop = BlockKey(x, row, False, False), math.floor(math.log2(row.highest))
    return key, Blocks(block_size, block_size, 0, drop, int(row.lowest), int(row.highest), rounding_mode)


def _one_of(name: str, value: Any, allowed: Collection[Any]) -> None:
    kind = type(next(iter(allowed)))
    if not isinstance(value, kind) or value not in allowed:
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, allowed))}")


def positive(name: str, value: int) -> int:
    """`value`, if it is one that an attribute may hold."""
    if not 0 < value < 2**63:
        raise ValueError(f"{name} is {value}; expected a positive integer below 2**63")
    return value


@dataclass(frozen=True, eq=False)
class BlockOperator:
    """An operator of one input x and one output y of its shape and type; version 1."""

    domain: str
    name: str
    function: str  # the one of ``block_api`` that does the same
    defaults: dict[str, Any]  # of the attributes, all of which but `axis` are for `make_format`
    make_format: Callable[..., tuple[BlockKey, Blocks]]
    formats: tuple[str, ...]  # values of the attribute that names the format

    @property
    def full_name(self) -> str:
        return f"{self.domain}::{self.name}"


_BFP_DEFAULTS = {
    "bfp_method": "to_bfp",
    "axis": 1,
    "bit_width": 16,
    "block_size": 8,
    "rounding_mode": 0,
    "sub_block_size": 2,
    "sub_block_shift_bits": 1,
    "convert_to_bfloat_before_bfp": 0,
}
_MX_DEFAULTS = {"element_dtype": "int8", "axis": 1, "block_size": 32, "rounding_mode": 0}

BLOCK_OPERATORS = (
    BlockOperator(
        "com.amd.quark", "BFPQuantizeDequantize", "bfp_quantize_dequantize", _BFP_DEFAULTS, bfp_format, tuple(BFP_METHODS)
    ),
    BlockOperator(
        "com.amd.quark", "MXQuantizeDequantize", "mx_quantize_dequantize", _MX_DEFAULTS, mx_format, tuple(MX_ELEMENT_TYPES)
    ),
    BlockOperator("com.vai.quantize", "BFPFixNeuron", "bfp_quantize_dequantize", _BFP_DEFAULTS, bfp_format, tuple(BFP_METHODS)),
    BlockOperator(
        "com.vai.quantize", "MXFixNeuron", "mx_quantize_dequantize", _MX_DEFAULTS, mx_format, tuple(MX_ELEMENT_TYPES)
    ),
)


def block_shape(x_shape: Any, axis: int, block: int) -> tuple[int, int, int]:
    """(fault, length, inner) of a shape given as a sequence of integers."""
    rank = len(x_shape)
    size = 1
    for dimension in x_shape:
        size *= dimension
    if rank < 2:
        axis = 0  # whatever the attribute says
    if axis < -rank or axis >= max(rank, 1):
        return BLOCK_AXIS, 0, 0
    if size <= 1:
        return NO_BLOCK_FAULT, size, 1
    if axis < 0:
        axis += rank
    length = x_shape[axis]
    inner = 1
    for i in range(axis + 1, rank):
        inner *= x_shape[i]
    if length % block == 0:
        length = size // inner  # as good as one row
    return NO_BLOCK_FAULT, length, inner


@dataclass(frozen=True)
class BlockKernel:
    """The compiled forms of one key (see ``block_kernels``), each compiled when it is first asked for."""

    key: BlockKey

    @created_once
    def serial(self) -> Any:
        from . import block_kernels

        return block_kernels.serial_kernel(self.key)

    @created_once
    def parallel(self) -> Any:
        from . import block_kernels

        return block_kernels.parallel_kernel(self.key, self.serial)

    @created_once
    def task(self) -> Any:
        from . import block_kernels

        return block_kernels.task_function(self.key, self.serial)


def _keys() -> Iterable[BlockKey]:
    for x in X_TYPES:
        for row in MX_ELEMENT_TYPES.values():
            if not row.is_integer:
                yield BlockKey(x, row, False, False)
        for is_prime in (False, True):
            for via_bfloat16 in (False, True):
                yield BlockKey(x, None, is_prime, via_bfloat16)


BLOCK_TABLE = {key: BlockKernel(key) for key in _keys()}
