"""The forms to which tensors are rounded (scales and zero points, a block format, or a format without codes): their names and
bits, their values, and the limits beyond which elements saturate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...block.granularity import Format, block_shape
from ...block.operators import FORMATS as BLOCK_FORMATS
from ...declaration import Affine, BlockRoundTrip, FakeQuantize
from ...declaration.reasons import NotRewrittenError
from ...element_types import FLOAT32, ElementType, find
from ...fake_quantization.key import CASTS, FORMS
from ...rewriting.fake_quantizers import array_of
from ...rewriting.nodes import GraphOperand

Array = NDArray[Any]

Limits = tuple[float, float]


class Form:
    """A form to which a tensor is rounded.

    `type` is the name of the format, and `bits` the size of an element, with its share of a block's scale or exponent.
    `parameters` are as reports show them. Elements beyond `limits` saturate; they are None if they differ between elements.
    `code_ends` are the ends of the range of codes, or of the values without codes, and None if elements do not share a
    range."""

    type: str
    bits: float
    parameters: dict[str, Any]
    limits: Limits | None = None
    code_ends: Limits | None = None

    def grid(self) -> Array | None:
        """Return all values that an element can become, or None if they differ between elements or need more than 16 bits."""
        return None


class Linear(Form):
    """Scales and zero points: of the whole tensor, of each index along an axis, or of each block along it. Raise
    NotRewrittenError if they are not constants."""

    def __init__(self, meaning: Affine[GraphOperand]) -> None:
        scale, zero_point = meaning.scale.array, meaning.zero_points
        if scale is None or (meaning.zero_point and zero_point is None):
            raise NotRewrittenError("its scale or its zero point is not a constant")
        if meaning.element_type is None:
            raise NotRewrittenError("its type is not known")
        type_of_scale = find(scale.dtype)
        assert type_of_scale
        self.element_type: ElementType = meaning.element_type
        self.scale: Array = scale
        self.zero_point: Array | None = zero_point
        self.axis, self.block_size = meaning.axis, meaning.block_size
        self.is_per_tensor = scale.size == 1
        self.type = self.element_type.name
        self.bits = self.element_type.bits + (type_of_scale.bits / self.block_size if self.block_size else 0)
        self.code_ends = float(self.element_type.lowest), float(self.element_type.highest)
        self.parameters = {"scale": _range(scale)}
        if zero_point is not None and zero_point.astype(np.float64).any():
            self.parameters["zero_point"] = _range(zero_point)
        if not self.is_per_tensor:
            self.parameters["axis"] = self.axis
        if self.block_size:
            self.parameters["block_size"] = self.block_size
        if self.is_per_tensor:
            scale_of_all, zero_point_of_all = self.only
            self.limits = _ordered([(code - zero_point_of_all) * scale_of_all for code in self.code_limits])

    @cached_property
    def only(self) -> tuple[float, float]:
        """The scale and the zero point, if there is only one scale."""
        zero_point = 0.0 if self.zero_point is None else float(self.zero_point.astype(np.float64).reshape(-1)[0])
        return float(self.scale.reshape(-1)[0]), zero_point

    @property
    def code_limits(self) -> Limits:
        """The limits beyond which codes saturate: the range of the type, and for integers half a step more on each side."""
        half = 0.5 if self.element_type.is_integer else 0.0
        return self.element_type.lowest - half, self.element_type.highest + half

    def codes(self, x: Array) -> Array:
        """Return x / scale + zero point in float64, not rounded."""
        zero_point = 0.0 if self.zero_point is None else self._spread(self.zero_point, x.shape)
        with np.errstate(all="ignore"):
            return x.astype(np.float64) / self._spread(self.scale, x.shape) + zero_point

    def _spread(self, parameter: Array, shape: tuple[int, ...]) -> Array:
        """Return a parameter in float64, in a form that broadcasts to `shape`."""
        values = parameter.astype(np.float64)
        if values.size == 1:
            return values.reshape(())
        axis = self.axis % len(shape)
        if self.block_size:
            return np.repeat(values, self.block_size, axis)[(slice(None),) * axis + (slice(shape[axis]),)]
        return values.reshape([-1 if dimension == axis else 1 for dimension in range(len(shape))])

    def code_range(self, least: float, largest: float) -> Limits:
        """Return the range of the codes of values from `least` to `largest`, if there is only one scale."""
        scale, zero_point = self.only
        return _ordered([value / scale + zero_point for value in (least, largest)]) if scale else (-math.inf, math.inf)

    def grid(self) -> Array | None:
        if not self.is_per_tensor or self.element_type.bits > 16:
            return None
        scale, zero_point = self.only
        with np.errstate(invalid="ignore"):  # numpy warns about codes that are signalling NaNs
            values = (self.element_type.code_values.astype(np.float64) - zero_point) * scale
        return np.unique(values[np.isfinite(values)])


@dataclass(frozen=True)
class Block(Form):
    """A block format along an axis."""

    type: str
    bits: float
    parameters: dict[str, Any]
    block_format: Format
    is_whole: bool  # elements are whole numbers of steps
    axis: int

    def layout(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return (length, inner) of the shape (outer, length, inner) in which the kernels see x."""
        _, length, inner = block_shape(shape, self.axis, self.block_format.block)
        return length, inner


@dataclass
class Codeless(Form):
    """A format without codes, or one whose codes are not known. `apply` rounds to it."""

    type: str
    bits: float
    parameters: dict[str, Any]
    apply: Callable[[Array], Array]
    limits: Limits | None = None

    def __post_init__(self) -> None:
        self.code_ends = self.limits

    def grid(self) -> Array | None:
        if self.limits is None or self.bits > 16:
            return None
        return np.unique(self.apply(np.linspace(*self.limits, 1 << 16, dtype=np.float32)).astype(np.float64))


def block_form(meaning: BlockRoundTrip[GraphOperand], apply: Callable[[Array], Array]) -> Form:
    parameters = {"axis": meaning.axis, "block_size": meaning.block_size}
    if meaning.operator not in BLOCK_FORMATS:
        return Codeless(meaning.format, meaning.bits, parameters, apply)
    attributes = {name: value for name, value in meaning.attributes.items() if name != "axis"}
    key, block_format = BLOCK_FORMATS[meaning.operator](FLOAT32, **attributes)
    return Block(meaning.format, meaning.bits, parameters, block_format, key.element is None, meaning.axis)


def fake_quantization_form(meaning: FakeQuantize[GraphOperand], apply: Callable[[Array], Array]) -> Codeless:
    """Return the form of a format without codes. Raise NotRewrittenError if a parameter is not a constant."""
    if meaning.form in CASTS:
        element_type = find(meaning.form)
        assert element_type
        return Codeless(meaning.form, element_type.bits, {}, apply, (float(element_type.lowest), float(element_type.highest)))
    arrays = {name: array_of(meaning, name) for name in FORMS[meaning.form].parameters}
    is_per_tensor = all(array.size == 1 for array in arrays.values())
    parameters = {name: _range(array) for name, array in arrays.items()}
    return Codeless(*_type_of(arrays), parameters, apply, _saturation_limits(apply) if is_per_tensor else None)


def _type_of(parameters: Mapping[str, Array]) -> tuple[str, float]:
    """Return the name of a format, and the bits of an element."""
    numbers = {name: float(array.reshape(-1)[0]) for name, array in parameters.items()}
    if "mantissa_bits" in numbers:
        exponent, mantissa = numbers["exponent_bits"], numbers["mantissa_bits"]
        return f"e{exponent:g}m{mantissa:g}", 1 + exponent + mantissa
    if "levels" in numbers:
        whole = math.ceil(math.log2(max(numbers["levels"], 2)))
        return ("int" if min(numbers["output_low"], numbers["output_high"]) < 0 else "uint") + str(whole), whole
    bits = numbers.get("bit_width", numbers.get("out_bits", 1.0))
    return ("int" if numbers.get("signed", 1) else "uint") + f"{bits:g}", bits


def _ordered(ends: list[float]) -> Limits:
    return min(ends), max(ends)


def _range(values: Array) -> float | list[float]:
    """Return the least and the largest value, or the only one."""
    floats = values.astype(np.float64)
    lowest, highest = float(floats.min()), float(floats.max())
    return lowest if floats.size == 1 else [lowest, highest]


# A value that is larger than any in a model, and that all formats can still divide by their scales.
_LARGE = np.float32(2.0**100)


def _saturation_limits(apply: Callable[[Array], Array]) -> Limits | None:
    """Return the limits beyond which x saturates: half a step beyond the values at the ends. The values between half a step
    before an end and the end itself are rounded to it, so that they show how long half a step is."""
    limits = []
    for sign in (-1, 1):
        end = float(apply(np.array([sign * _LARGE], np.float32))[0])
        if not math.isfinite(end):
            return None
        within, beyond = 0.0, end
        for _ in range(40):
            middle = (within + beyond) / 2
            is_end = float(apply(np.array([middle], np.float32))[0]) == end
            within, beyond = (within, middle) if is_end else (middle, beyond)
        limits.append(end + (end - beyond))
    return (limits[0], limits[1]) if limits[0] < limits[1] else None
