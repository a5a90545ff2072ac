"""The declarations of the wing's operators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..declaration import AnyOperand, Attribute, BlockRoundTrip, Kind, Operator, Parameter, StoredForm, Tensor, shape_text
from ..element_types import ElementType
from .calls import bfp_quantize_dequantize, mx_quantize_dequantize
from .formats import BFP_METHODS, MX_ELEMENT_TYPES, ROUNDING_MODES, bfp_format, bfp_name, mx_format, mx_name_of
from .granularity import AXIS, FAULTS, Blocks, block_shape
from .key import X_TYPES, Key
from .storage import mx_codes_and_factors


class _Family(NamedTuple):
    """What the operators of block floating point, or those of Microscaling, share."""

    call: Callable[..., Any]
    make_format: Callable[..., tuple[Key, Blocks]]  # of x's type and all attributes but `axis`
    describe: Callable[[Key, Blocks, Mapping[str, Any]], tuple[str, float]]  # the name of a format, and the bits of an element
    stored: Callable[[Mapping[str, Any]], StoredForm | None]  # of all attributes
    format_attribute: str  # the one that names the format
    formats: Mapping[str, ElementType | None]
    docs: Mapping[str, str]  # of the attributes
    values: Mapping[str, tuple[Any, ...]]  # of the attributes that have few values


def _attributes(family: _Family) -> tuple[Attribute, ...]:
    """The attributes of an operator, with the defaults of the call on arrays."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(family.call).parameters.items()}
    kinds: dict[type, Kind] = {int: "INT", str: "STRING"}
    return tuple(
        Attribute(name, defaults[name], doc, kinds[type(defaults[name])], values=family.values.get(name, ()))
        for name, doc in family.docs.items()
    )


def _mx_stored(attributes: Mapping[str, Any]) -> StoredForm:
    element_type = MX_ELEMENT_TYPES[attributes["element_dtype"]]
    return StoredForm(element_type, functools.partial(mx_codes_and_factors, **attributes))


_AXIS = "The axis along which blocks are cut, -r..r-1; for an x of one dimension any."
_BLOCK_SIZE = "Elements that share an exponent. The last block along the axis may be shorter."
_ROUNDING_MODE = "How halves are rounded: 0 away from zero, 1 upward, 2 to even."

_BFP = _Family(
    bfp_quantize_dequantize,
    bfp_format,
    bfp_name,
    lambda attributes: None,
    "bfp_method",
    dict.fromkeys(BFP_METHODS),
    {
        "bfp_method": "The rules for Inf and NaN, and whether there are sub-blocks.",
        "axis": _AXIS,
        "bit_width": "10..24: a sign, 8 bits of the shared exponent, and the rest.",
        "block_size": _BLOCK_SIZE,
        "rounding_mode": _ROUNDING_MODE,
        "sub_block_size": 'For "to_bfp_prime": elements of a sub-block. It divides block_size.',
        "sub_block_shift_bits": 'For "to_bfp_prime": bits of the shift that a sub-block takes off the exponent, 0..8.',
        "convert_to_bfloat_before_bfp": "1: round x to bfloat16 first.",
    },
    {"bfp_method": (*BFP_METHODS,), "rounding_mode": (*ROUNDING_MODES,), "convert_to_bfloat_before_bfp": (0, 1)},
)
_MX = _Family(
    mx_quantize_dequantize,
    mx_format,
    mx_name_of,
    _mx_stored,
    "element_dtype",
    dict.fromkeys(MX_ELEMENT_TYPES),
    {
        "element_dtype": "The element type, to which x / scale is rounded.",
        "axis": _AXIS,
        "block_size": _BLOCK_SIZE,
        "rounding_mode": f"For int8. {_ROUNDING_MODE}",
    },
    {"element_dtype": (*MX_ELEMENT_TYPES,), "rounding_mode": (*ROUNDING_MODES,)},
)


def _operator(name: str, family: _Family) -> Operator:
    own_attributes = _attributes(family)

    def infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        """y is like x."""
        x = inputs[0] or Tensor(None, None)
        of_format = {key: value for key, value in attributes.items() if key != "axis"}
        _, blocks = family.make_format(x.element_type or X_TYPES[0], **of_format)
        if x.shape is not None:
            # Any number stands for a dimension that is not known.
            fault, _, _ = block_shape([2 if each is None else each for each in x.shape], attributes["axis"], blocks.block)
            if fault:
                raise ValueError(FAULTS[AXIS].format(axis=attributes["axis"], x_shape=shape_text(x.shape)))
        return [x]

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> BlockRoundTrip[AnyOperand]:
        of_format = {key: value for key, value in attributes.items() if key != "axis"}
        key, blocks = family.make_format(X_TYPES[0], **of_format)
        described = family.describe(key, blocks, attributes)
        return BlockRoundTrip(inputs[0], name, attributes, *described, family.stored(attributes))

    def format_of(types: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        default = next(each.default for each in own_attributes if each.name == family.format_attribute)
        return str(attributes.get(family.format_attribute, default))

    return Operator(
        wing="block",
        domain="com.amd.quark",
        name=name,
        since_version=1,
        operation="round",
        doc="y is x, rounded to a format whose elements share exponents, block by block along `axis`. See "
        f"quark_numba.{family.call.__name__} for the attributes.",
        types={"T": X_TYPES},
        inputs=(Parameter("x", "T", "What to round."),),
        outputs=(Parameter("y", "T", "Of the shape of x."),),
        attributes=own_attributes,
        call=family.call,
        infer=infer,
        faults=FAULTS,
        formats=family.formats,
        format_of=format_of,
        column="T",
        meaning=meaning,
    )


_FAMILIES = {"BFPQuantizeDequantize": _BFP, "MXQuantizeDequantize": _MX}

OPERATORS = BFP, MX = tuple(_operator(*each) for each in _FAMILIES.items())

# By name: (type of x, all attributes but `axis`) -> what selects a kernel, and the numbers of the format.
FORMATS = {name: family.make_format for name, family in _FAMILIES.items()}
