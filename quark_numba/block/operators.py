"""The declarations of the wing's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..declaration import AnyOperand, Attribute, BlockRoundTrip, Operator, Parameter, Tensor, shape_text
from ..element_types import ElementType
from .calls import bfp_quantize_dequantize, mx_quantize_dequantize
from .formats import BFP_METHODS, MX_ELEMENT_TYPES, bfp_format, bfp_name, mx_format, mx_name_of
from .granularity import AXIS, FAULTS, Blocks, block_shape
from .key import X_TYPES, Key


class _Family(NamedTuple):
    """The common parts of the declarations of a family: the block floating point operators, or the Microscaling ones."""

    call: Callable[..., Any]
    make_format: Callable[..., tuple[Key, Blocks]]  # (x's type, all attributes but `axis`) -> format
    describe: Callable[[Key, Blocks, Mapping[str, Any]], tuple[str, float]]  # -> name of the format, bits of an element
    format_attribute: str  # the attribute that names the format
    formats: Mapping[str, ElementType | None]
    attributes: tuple[Attribute, ...]


_AXIS = Attribute("axis", 1, "Along which blocks are cut, -r..r-1; of an x of one dimension, that.")
_BLOCK_SIZE = "Elements that share an exponent. The last block along the axis may be shorter."
_ROUNDING_MODE = "Where halves go: 0 away from zero, 1 upward, 2 to even."

_BFP = _Family(
    bfp_quantize_dequantize,
    bfp_format,
    bfp_name,
    "bfp_method",
    dict.fromkeys(BFP_METHODS),
    (
        Attribute("bfp_method", "to_bfp", "The rules for what is not finite, and whether there are sub-blocks.", "STRING"),
        _AXIS,
        Attribute("bit_width", 16, "10..24: a sign, 8 bits of the shared exponent, and the rest."),
        Attribute("block_size", 8, _BLOCK_SIZE),
        Attribute("rounding_mode", 0, _ROUNDING_MODE),
        Attribute("sub_block_size", 2, 'Of "to_bfp_prime": elements of a sub-block, which divides a block.'),
        Attribute("sub_block_shift_bits", 1, 'Of "to_bfp_prime": bits of what a sub-block\'s exponent is smaller by, 0..8.'),
        Attribute("convert_to_bfloat_before_bfp", 0, "1: round x to bfloat16 first."),
    ),
)
_MX = _Family(
    mx_quantize_dequantize,
    mx_format,
    mx_name_of,
    "element_dtype",
    dict.fromkeys(MX_ELEMENT_TYPES),
    (
        Attribute("element_dtype", "int8", "The element type, to which x / scale is rounded.", "STRING"),
        _AXIS,
        Attribute("block_size", 32, _BLOCK_SIZE),
        Attribute("rounding_mode", 0, f"Of int8. {_ROUNDING_MODE}"),
    ),
)


def _operator(domain: str, name: str, family: _Family, newer_name: str = "") -> Operator:
    def infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        """Return the output y, which has x's type and shape. Raises ValueError if an attribute or the axis is invalid."""
        x = inputs[0] or Tensor(None, None)
        of_format = {key: value for key, value in attributes.items() if key != "axis"}
        _, blocks = family.make_format(x.element_type or X_TYPES[0], **of_format)
        if x.shape is not None:
            # Any length does for an unknown dimension.
            fault, _, _ = block_shape([2 if each is None else each for each in x.shape], attributes["axis"], blocks.block)
            if fault:
                raise ValueError(FAULTS[AXIS].format(axis=attributes["axis"], x_shape=shape_text(x.shape)))
        return [x]

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> BlockRoundTrip[AnyOperand]:
        of_format = {key: value for key, value in attributes.items() if key != "axis"}
        key, blocks = family.make_format(X_TYPES[0], **of_format)
        return BlockRoundTrip(inputs[0], newer_name or name, attributes, *family.describe(key, blocks, attributes))

    def format_of(types: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        default = next(each.default for each in family.attributes if each.name == family.format_attribute)
        return str(attributes.get(family.format_attribute, default))

    return Operator(
        wing="block",
        domain=domain,
        name=name,
        since_version=1,
        operation="round",
        doc="y is x, rounded to a format whose elements share exponents, block by block along `axis`. See "
        f"quark_numba.{family.call.__name__} for the attributes.",
        types={"T": X_TYPES},
        inputs=(Parameter("x", "T", "What to round."),),
        outputs=(Parameter("y", "T", "Of the shape of x."),),
        attributes=family.attributes,
        call=family.call,
        infer=infer,
        faults=FAULTS,
        formats=family.formats,
        format_of=format_of,
        column="T",
        meaning=meaning,
        newer_name=newer_name,
    )


_NAMES = (
    ("com.amd.quark", "BFPQuantizeDequantize", _BFP),
    ("com.amd.quark", "MXQuantizeDequantize", _MX),
    # The names in older models.
    ("com.vai.quantize", "BFPFixNeuron", _BFP, "BFPQuantizeDequantize"),
    ("com.vai.quantize", "MXFixNeuron", _MX, "MXQuantizeDequantize"),
)

OPERATORS = tuple(_operator(*each) for each in _NAMES)

# By the name of an operator, the function (type of x, all attributes but `axis`) -> (key, blocks).
FORMATS = {name: family.make_format for _, name, family, *_ in _NAMES}
