"""The key and the numbers of a format, from the attributes of BFPQuantizeDequantize and MXQuantizeDequantize (com.amd.quark),
or of NVIDIA's NVFP4 and MXFP8; valid values, their errors, and names."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..arrays.arguments import MX_NAMES, did_you_mean, index
from ..element_types import FLOAT8E8M0, ElementType, find, named
from .granularity import Format
from .key import CEIL, EVEN, FLOAT4E2M1, FLOAT8E4M3FN, FLOOR, MICROEXPONENT, NVFP4, RCEIL, Key

# The element types of Microscaling formats, by their names in the attribute element_dtype.
MX_ELEMENT_TYPES = dict(zip((*MX_NAMES, "int8"), named(" ".join((*MX_NAMES.values(), "int8"))), strict=True))

# The number of fraction bits of int8 in Microscaling formats.
INT8_FRACTION_BITS = 6

# The values of the attribute bfp_method, and whether they mean MicroeXponents.
BFP_METHODS = {"to_bfp": False, "to_bfp_prime": True, "to_bfp_prime_shared": True}

# The values of the attribute rounding_mode, and their names in calls on arrays.
HALF_AWAY_FROM_ZERO, HALF_UPWARD, HALF_TO_EVEN = ROUNDING_MODES = range(3)
MODE_NAMES = {"half_away": HALF_AWAY_FROM_ZERO, "half_upward": HALF_UPWARD, "half_even": HALF_TO_EVEN}

# The values of the parameter scale_rule of mx_quantize.
SCALE_RULES = (FLOOR, CEIL, EVEN, RCEIL)

# The sign, 8 bits of the shared exponent, and 1 to 15 bits of magnitude.
BIT_WIDTHS = range(10, 25)

# The largest number of bits for the shift of a sub-block.
SHIFT_BITS = range(9)


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
    axis: int = 0,
) -> tuple[Key, Format]:
    """Return the key of a kernel and the format for attributes of BFPQuantizeDequantize. `axis` has no
    effect on them. Raise ValueError if an attribute is invalid."""
    _one_of("bfp_method", bfp_method, BFP_METHODS)
    _one_of("bit_width", bit_width, BIT_WIDTHS)
    _one_of("rounding_mode", rounding_mode, ROUNDING_MODES)
    _one_of("convert_to_bfloat_before_bfp", convert_to_bfloat_before_bfp, (0, 1))
    positive("block_size", block_size)
    is_microexponent = BFP_METHODS[bfp_method]
    if is_microexponent:
        positive("sub_block_size", sub_block_size)
        if block_size % sub_block_size:
            raise ValueError(f"sub_block_size is {sub_block_size}; expected one that divides block_size, {block_size}")
        _one_of("sub_block_shift_bits", sub_block_shift_bits, SHIFT_BITS)
    key = Key(x, None, MICROEXPONENT if is_microexponent else FLOOR, bool(convert_to_bfloat_before_bfp))
    fields = bfp_fields(is_microexponent, bit_width, block_size, sub_block_size, sub_block_shift_bits)
    return key, Format(block_size, *fields, rounding_mode)


def bfp_fields(
    is_microexponent: Any, bit_width: int, block_size: int, sub_block_size: int, sub_block_shift_bits: int
) -> tuple[int, int, int, int, int]:
    """Return the fields `sub_block`, `max_shift`, `drop`, `lowest` and `highest` of Format for whole numbers of steps. It is
    also compiled into libraries."""
    most = (1 << (bit_width - 9)) - 1
    if is_microexponent:
        return sub_block_size, (1 << sub_block_shift_bits) - 1, bit_width - 10, -most, most
    return block_size, 0, bit_width - 10, -most, most


def mx_format(x: ElementType, *, element_dtype: str, block_size: int, rounding_mode: int, axis: int = 0) -> tuple[Key, Format]:
    """Return the key of a kernel and the format for attributes of MXQuantizeDequantize. `axis` has no
    effect on them. Raise ValueError if an attribute is invalid."""
    _one_of("element_dtype", element_dtype, MX_ELEMENT_TYPES)
    _one_of("rounding_mode", rounding_mode, ROUNDING_MODES)
    positive("block_size", block_size)
    element = MX_ELEMENT_TYPES[element_dtype]
    if element.is_integer:
        key, drop = Key(x, None, FLOOR), INT8_FRACTION_BITS
    else:
        key, drop, rounding_mode = Key(x, element, FLOOR), math.floor(math.log2(element.highest)), HALF_TO_EVEN
    return key, Format(block_size, block_size, 0, drop, int(element.lowest), int(element.highest), rounding_mode)


def mx_codes_format(x: ElementType, *, scale_rule: str, **attributes: Any) -> tuple[Key, Format]:
    """Return the key of a kernel and the format for the codes of a Microscaling format."""
    _one_of("scale_rule", scale_rule, SCALE_RULES)
    key, block_format = mx_format(x, **attributes)
    return key._replace(rule=scale_rule, has_codes=True), block_format


def is_idempotent(key: Key, block_format: Format) -> bool:
    """Return whether a second round trip to the format leaves float32 results as they are, even if some of them were replaced
    by 0 or changed their signs in between.

    It is proved for results that are whole numbers of steps, from -highest to highest. A result is m * step with |m| <=
    highest. The step is 2 ** (e - drop), where e is the exponent of the largest element of the block, or e minus the shift of
    the sub-block. highest is below 2 ** (drop + 1), so all results are below 2 ** (e + 1). So no exponent is larger the second
    time, and no step is larger: the results are also whole numbers of the new steps. They are below 2 ** (e' + 1) for the new
    exponent e', so these whole numbers are at most highest. Inf and NaN are ignored, and stay as they are. In MicroeXponents no
    result is subnormal, because the least normal number is a multiple of every smaller step.

    A format that rounds to bfloat16 first does not change results whose m has at most 7 bits: no step is below 2 ** (-127 -
    drop), and the least bfloat16 is 2**-133."""
    is_symmetric = block_format.lowest == -block_format.highest
    return key.element is None and is_symmetric and (block_format.drop <= 6 or not key.rounds_to_bfloat16)


class NvidiaFormat(NamedTuple):
    """A format of TensorRT, whose blocks are whole."""

    name: str
    codes: ElementType
    scales: ElementType
    rule: str
    block_size: int  # the usual one

    def format(self, x: ElementType, block_size: int, *, has_codes: bool) -> tuple[Key, Format]:
        """Return the key of a kernel and the numbers of the format."""
        key = Key(x, self.codes, self.rule, has_codes=has_codes)
        return key, Format(block_size, block_size, 0, 0, int(self.codes.lowest), int(self.codes.highest), HALF_TO_EVEN)


NVIDIA_FORMATS = NVIDIA_NVFP4, NVIDIA_MXFP8 = (
    NvidiaFormat("nvfp4", FLOAT4E2M1, FLOAT8E4M3FN, NVFP4, 16),
    NvidiaFormat("mxfp8", FLOAT8E4M3FN, FLOAT8E8M0, RCEIL, 32),
)


def bfp_format_name(attributes: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name of a format of BFPQuantizeDequantize, and the bits of an element, including its share of the
    exponents."""
    width = attributes["bit_width"]
    bits = width - 8 + 8 / attributes["block_size"]
    if not BFP_METHODS[attributes["bfp_method"]]:
        return f"bfp{width}", bits
    return f"mx{width - 7}", bits + attributes["sub_block_shift_bits"] / attributes["sub_block_size"]


def mx_format_name(attributes: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name of a format of MXQuantizeDequantize, and the bits of an element, including its share of the scale."""
    element = attributes["element_dtype"]
    return f"mx{element}", MX_ELEMENT_TYPES[element].bits + 8 / attributes["block_size"]


def element_dtype_name(value: Any) -> Any:
    """Return the value of the attribute element_dtype for an element type given by any of its names or as a dtype; anything
    else is returned as it is."""
    if isinstance(value, str) and value in MX_ELEMENT_TYPES:
        return value
    return next((name for name, element_type in MX_ELEMENT_TYPES.items() if element_type is find(value)), value)


def rounding_mode_number(value: Any) -> int:
    """Return the value of the attribute rounding_mode for a name, whose case does not matter, or for the value itself."""
    if not isinstance(value, str):
        return index(value, "rounding_mode")
    _one_of("rounding_mode", value.lower(), MODE_NAMES)
    return MODE_NAMES[value.lower()]


def _one_of(name: str, value: Any, allowed: Collection[Any]) -> None:
    kind = type(next(iter(allowed)))
    if not isinstance(value, kind) or value not in allowed:
        expected = " or ".join(map(repr, allowed))
        hint = did_you_mean(value, allowed) if kind is str else ""
        raise ValueError(f"{name} is {value!r}; expected {expected}{hint}")


def positive(name: str, value: int) -> int:
    """Return `value`. Raise ValueError unless it is positive and fits the 64 bits of an attribute."""
    if not 0 < value < 2**63:
        raise ValueError(f"{name} is {value}; expected a positive integer below 2**63")
    return value
