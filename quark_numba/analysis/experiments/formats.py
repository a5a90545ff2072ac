"""The formats that `what_if` tries for a tensor: their names, the bits of an element, and their parameters, such as block
sizes. They need no calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.arguments import did_you_mean
from ...block.formats import MX_ELEMENT_TYPES
from ...block.operators import BFP, MX
from ...declaration import BlockRoundTrip, Operator
from ...element_types import BFLOAT16, FLOAT16, ElementType
from ...linear.calls import quantize_dequantize

Array = NDArray[Any]


class Format(NamedTuple):
    """A format to try. `bits` is the size of an element, with its share of the block's exponent."""

    name: str
    bits: float
    apply: Callable[[Array], Array]


def _float(element_type: ElementType) -> Format:
    return Format(
        element_type.name, element_type.bits, lambda x: quantize_dequantize(_float32(x), np.float32(1), dtype=element_type.name)
    )


def _blocks(operator: Operator, **attributes: Any) -> Format:
    """Return the format of a block operator with these attributes. Other attributes have their defaults."""
    values = operator.values(attributes)
    meaning = operator.meaning([None], values) if operator.meaning else None
    assert isinstance(meaning, BlockRoundTrip)
    return Format(meaning.format, meaning.bits, lambda x: operator.call(_float32(x), **values))


def _float32(x: Array) -> Array:
    return x.astype(np.float32, copy=False)


_MICROEXPONENTS: dict[str, Any] = {"bfp_method": "to_bfp_prime", "block_size": 16}

# Blocks lie along axis 1, which is Quark's default.
FORMATS = {
    format_.name: format_
    for format_ in (
        Format("float32", 32, _float32),
        _float(BFLOAT16),
        _float(FLOAT16),
        _blocks(BFP),
        *(_blocks(BFP, bit_width=width, **_MICROEXPONENTS) for width in (16, 13, 11)),
        *(_blocks(MX, element_dtype=element) for element in MX_ELEMENT_TYPES),
    )
}


def formats(names: list[str]) -> list[Format]:
    """Return the formats with these names, each once. Raise ValueError if a name is unknown."""
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"what_if is {name!r}; expected any of {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    return [FORMATS[name] for name in dict.fromkeys(names)]
