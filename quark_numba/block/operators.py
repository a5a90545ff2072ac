"""The declarations of the operators of block formats: inputs, attributes with their texts, shapes, and the check of whole
blocks; the defaults are those of ``calls``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..arrays.arguments import element_type_of
from ..declaration.meaning import AnyOperand, BlockRoundTrip, DynamicQuantize, StoredForm
from ..declaration.operator import Operator
from ..declaration.schema import Attribute, Kind, Parameter, Tensor, known, shape_text
from ..element_types import FLOAT8E8M0, FLOAT32, UINT8
from ..linear.versions import OWN_DOMAIN
from . import formats, standard_form
from .calls import bfp_quantize_dequantize, block_input, convert, mx_quantize_dequantize
from .granularity import AXIS, FAULTS, SCALE, Format, block_shape, whole_block_shape
from .key import X_TYPES, Key
from .storage import codes_and_scales, mx_codes_and_factors, one


def _operator(
    name: str,
    call: Callable[..., Any],
    make_format: Callable[..., tuple[Key, Format]],
    describe: Callable[[Mapping[str, Any]], tuple[str, float]],
    docs: Mapping[str, str],
    values: Mapping[str, tuple[Any, ...]],
    stored: Callable[[Mapping[str, Any]], StoredForm] | None = None,
) -> Operator:
    """Return a declaration. ``make_format(type of x, attributes)`` returns the key of a kernel, and the numbers of the format.
    `describe` returns the name of a format, and the bits of an element. `docs` describes the attributes; the first of them
    names the format. `values` has the possible values of attributes that have only a few. The defaults of attributes are those
    of `call`."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}
    defaults["rounding_mode"] = formats.MODE_NAMES[defaults["rounding_mode"]]
    kinds: dict[type, Kind] = {int: "INT", str: "STRING"}
    own_attributes = tuple(
        Attribute(name, defaults[name], doc, kinds[type(defaults[name])], values=values.get(name, ()))
        for name, doc in docs.items()
    )
    format_attribute = own_attributes[0]

    def infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        x = inputs[0] or Tensor(None, None)
        _, block_format = make_format(x.element_type or X_TYPES[0], **attributes)
        if x.shape is not None:
            # An unknown dimension is replaced by any number.
            fault, _, _ = block_shape([2 if size is None else size for size in x.shape], attributes["axis"], block_format.block)
            if fault:
                raise ValueError(FAULTS[AXIS].format(axis=attributes["axis"], x_shape=shape_text(x.shape)))
        return [x]

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> BlockRoundTrip[AnyOperand]:
        # Raises ValueError if an attribute is invalid.
        returns_own = formats.is_idempotent(*make_format(X_TYPES[0], **attributes))
        return BlockRoundTrip(inputs[0], name, attributes, *describe(attributes), stored and stored(attributes), returns_own)

    return Operator(
        family="block",
        domain="com.amd.quark",
        name=name,
        operation="round",
        doc="y is x, rounded to a format whose elements share exponents, block by block along `axis`. See "
        f"quark_numba.{call.__name__} for the attributes.",
        types={"T": X_TYPES},
        inputs=(Parameter("x", "T", "What to round."),),
        attributes=own_attributes,
        call=call,
        infer=infer,
        faults={AXIS: FAULTS[AXIS]},
        formats=dict.fromkeys(format_attribute.values),
        select_format=lambda types, attributes: str(attributes.get(format_attribute.name, format_attribute.default)),
        meaning=meaning,
        standard_form=functools.partial(standard_form.round_trip, make_format),
        runs_on_gpus=True,
    )


def _mx_stored(attributes: Mapping[str, Any]) -> StoredForm:
    element_type = formats.MX_ELEMENT_TYPES[attributes["element_dtype"]]
    return StoredForm(element_type, functools.partial(mx_codes_and_factors, **attributes))


_AXIS = "The axis along which blocks are cut, -r..r-1; for an x of one dimension any."
_BLOCK_SIZE = "Elements that share an exponent. The last block along the axis may be shorter."
_ROUNDING_MODE = "How halves are rounded: 0 away from zero, 1 upward, 2 to even."

BFP = _operator(
    "BFPQuantizeDequantize",
    bfp_quantize_dequantize,
    formats.bfp_format,
    formats.bfp_format_name,
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
    {
        "bfp_method": (*formats.BFP_METHODS,),
        "rounding_mode": (*formats.ROUNDING_MODES,),
        "convert_to_bfloat_before_bfp": (0, 1),
    },
)
MX = _operator(
    "MXQuantizeDequantize",
    mx_quantize_dequantize,
    formats.mx_format,
    formats.mx_format_name,
    {
        "element_dtype": "The element type, to which x / scale is rounded.",
        "axis": _AXIS,
        "block_size": _BLOCK_SIZE,
        "rounding_mode": f"For int8. {_ROUNDING_MODE}",
    },
    {"element_dtype": (*formats.MX_ELEMENT_TYPES,), "rounding_mode": (*formats.ROUNDING_MODES,)},
    _mx_stored,
)
QUARK_OPERATORS = BFP, MX

# By name: (type of x, attributes) -> the key of a kernel, and the numbers of the format.
FORMATS: Mapping[str, Callable[..., tuple[Key, Format]]] = {BFP.name: formats.bfp_format, MX.name: formats.mx_format}


# The operators of TensorRT, for the dialect to name, and those that `optimize` writes. Their blocks are whole.
_NVIDIA_DOCS = {
    "nvfp4": "The scale s of a block is float8e4m3fn(max|x| / (6 * scale)), clamped to 2**-9..448, and 1 for a block of zeros. "
    "A code is float4e2m1(x / (s * scale)). See quark_numba.nvfp4_quantize.",
    "mxfp8": "The scale s of a block is the least power of two with max|x| <= 448 * s. A code is float8e4m3fn(x / s). See "
    "quark_numba.mx_quantize, scale_rule.",
}


def quantizer(domain: str, name: str, nvidia: formats.NvidiaFormat, type_attribute: str) -> Operator:
    """Return the declaration of an operator with codes and scales as outputs. The attribute `type_attribute` is the number of a
    type, and always has the same value."""
    scales = UINT8 if nvidia.scales is FLOAT8E8M0 else nvidia.scales  # powers of two are exponents of uint8
    number = {"scale_type": scales, "output_dtype": nvidia.codes}[type_attribute]

    def infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        if attributes[type_attribute] != number.number:
            raise ValueError(f"{type_attribute} is {attributes[type_attribute]}; expected {number.number} ({number.name})")
        x, scales_shape = _infer_whole_blocks(inputs, attributes)
        return [Tensor(nvidia.codes, x.shape), Tensor(scales, scales_shape)]

    def call(x: NDArray[Any], scale: Any = 1.0, **attributes: int) -> tuple[NDArray[Any], ...]:
        infer([None, None], attributes)
        x_array, element_type = block_input(x)
        _check_whole_blocks(x_array.shape, attributes, x_array.shape)
        key, block_format = nvidia.format(element_type, attributes["block_size"], has_codes=True)
        codes, factors = codes_and_scales(key, block_format, x_array, attributes["axis"], one(scale))
        return codes, factors.view(scales.dtype)

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> DynamicQuantize[AnyOperand]:
        infer([None] * len(inputs), attributes)
        x, scale = (*inputs, None)[:2]
        axis, block_size = int(attributes["axis"]), int(attributes["block_size"])
        return DynamicQuantize(x, scale, nvidia.codes, axis, block_size, _round_trip_name(nvidia))  # type: ignore[arg-type]

    return _nvidia_operator(
        nvidia,
        domain=domain,
        name=name,
        operation="quantize_dynamically",
        doc=f"x, quantized block by block along `axis`. {_NVIDIA_DOCS[nvidia.name]}",
        types={"T": X_TYPES, "C": (nvidia.codes,), "B": (scales,)},
        outputs=(
            Parameter("y", "C", "The codes, of the shape of x."),
            Parameter("y_scale", "B", "The scales, of x's shape but along `axis`, where there is one element a block."),
        ),
        attributes=(Attribute(type_attribute, number.number, f"{number.number}, which is {number.name}."),),
        call=call,
        infer=infer,
        formats={nvidia.name: nvidia.codes},
        meaning=meaning,
        standard_form=functools.partial(standard_form.nvidia_quantizer, nvidia),
    )


def _round_trip(nvidia: formats.NvidiaFormat) -> Operator:
    name = _round_trip_name(nvidia)

    def infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        x, _ = _infer_whole_blocks(inputs, attributes)
        return [x]

    def call(x: NDArray[Any], scale: Any = 1.0, **attributes: int) -> NDArray[Any]:
        infer([None, None], attributes)
        x_array, _ = block_input(x)
        _check_whole_blocks(x_array.shape, attributes, x_array.shape)
        element_type = element_type_of(x_array.dtype, "x", (FLOAT32,))
        key, block_format = nvidia.format(element_type, attributes["block_size"], has_codes=False)
        return convert(key, block_format, x_array, attributes["axis"], None, tensor_scale=one(scale))

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> BlockRoundTrip[AnyOperand]:
        infer([None] * len(inputs), attributes)
        bits = nvidia.codes.bits + nvidia.scales.bits / int(attributes["block_size"])
        return BlockRoundTrip(inputs[0], name, attributes, nvidia.name, bits)

    return _nvidia_operator(
        nvidia,
        domain=OWN_DOMAIN,
        name=name,
        operation="round_dynamically",
        doc="x, rounded block by block along `axis`: code * s, and all products are rounded to float32. "
        f"{_NVIDIA_DOCS[nvidia.name]}",
        types={"T": (FLOAT32,)},
        call=call,
        infer=infer,
        formats={nvidia.name: None},
        meaning=meaning,
        standard_form=functools.partial(standard_form.nvidia_round_trip, nvidia),
    )


def _round_trip_name(nvidia: formats.NvidiaFormat) -> str:
    return f"{nvidia.name.upper()}QuantizeDequantize"


def _nvidia_operator(
    nvidia: formats.NvidiaFormat, *, types: Mapping[str, Any], attributes: tuple[Attribute, ...] = (), **fields: Any
) -> Operator:
    inputs = (Parameter("x", "T", "What to quantize."), Parameter("scale", "S", "One element: the scale of the whole tensor."))
    axis = Attribute("axis", -1, "The axis along which blocks are cut, -r..r-1.")
    block_size = Attribute(
        "block_size", nvidia.block_size, "Elements that share a scale. It divides the length of x along `axis`."
    )
    has_scale = nvidia is formats.NVIDIA_NVFP4
    return Operator(
        family="block",
        types={**types, "S": (FLOAT32,)} if has_scale else types,
        inputs=inputs if has_scale else inputs[:1],
        attributes=(axis, block_size, *attributes),
        faults={number: text for number, text in FAULTS.items() if number != SCALE or has_scale},
        runs_on_gpus=True,
        **fields,
    )


def _check_whole_blocks(shape: Sequence[int], attributes: Mapping[str, Any], shown: Any) -> None:
    """Raise ValueError unless the axis of a shape is a whole number of blocks. The message shows the shape as `shown`."""
    axis, block_size = attributes["axis"], attributes["block_size"]
    fault, _, _ = whole_block_shape(shape, axis, block_size)
    if fault:
        raise ValueError(FAULTS[fault].format(axis=axis, block_size=block_size, x_shape=shown))


def _infer_whole_blocks(
    inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> tuple[Tensor, list[int | None] | None]:
    """Return x and the shape of the scales. Raise ValueError if an attribute is invalid, or if the known shapes do not fit."""
    axis, block_size = int(attributes["axis"]), formats.positive("block_size", int(attributes["block_size"]))
    x = inputs[0] or Tensor(None, None)
    scale = inputs[1] if len(inputs) > 1 else None
    if scale and scale.shape is not None and any(length not in (None, 1) for length in scale.shape):
        raise ValueError(FAULTS[SCALE].format(scale_shape=shape_text(scale.shape)))
    if x.shape is None:
        return x, None
    # An unknown length is replaced by a whole number of blocks.
    _check_whole_blocks(known(x.shape, [block_size] * len(x.shape)), attributes, shape_text(x.shape))
    axis %= len(x.shape)
    return x, [length // block_size if i == axis and length is not None else length for i, length in enumerate(x.shape)]


OPERATORS = (*QUARK_OPERATORS, *map(_round_trip, formats.NVIDIA_FORMATS))
