"""The dispatch table: a kernel for each operation and its element types."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiling.kernel import Table
from ..element_types import FLOAT32
from .key import PRECISIONS, Key, has_unsaturated_form
from .versions import types


def _keys() -> Iterator[Key]:
    for quantized in types("quantize", "quantized"):
        for saturate in (True, False) if has_unsaturated_form(quantized) else (True,):
            for x in types("quantize", "x"):
                for precision in PRECISIONS:
                    yield Key("quantize", x, quantized, quantized, precision, saturate)
            yield Key("quantize_dequantize", FLOAT32, quantized, FLOAT32, FLOAT32, saturate)
    for quantized in types("dequantize", "quantized"):
        for y in types("dequantize", "y"):
            yield Key("dequantize", quantized, quantized, y)


TABLE = Table(_keys(), __package__)
