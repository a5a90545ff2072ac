"""The dispatch table: from an operation and its element types to the kernel compiled for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .element_types import BFLOAT16, FLOAT8E8M0, FLOAT16, FLOAT32, FLOAT64, INT32, ElementType
from .lock import created_once
from .operators import QUANTIZED, Operation, types

# What the division of quantize may be computed in. A dequantizing product always is in float32.
PRECISIONS = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)


class Key(NamedTuple):
    """What selects a kernel. `saturate` is as in the attribute of that name, and True for all but float8 types."""

    operation: Operation
    x: ElementType
    precision: ElementType
    y: ElementType
    saturate: bool = True
    via: ElementType | None = None

    @property
    def quantized(self) -> ElementType:
        """The type of the zero point."""
        return getattr(self, QUANTIZED[self.operation])

    @property
    def there_and_back(self) -> tuple[Key, Key]:
        """The two keys that a key with a `via` stands for."""
        quantized = self.quantized
        return Key("quantize", self.x, self.precision, quantized, self.saturate), Key("dequantize", quantized, FLOAT32, self.y)

    @property
    def scale_dtype(self) -> type[Any]:
        """In which kernels take scales: it holds every value of the scale's type."""
        return np.float64 if self.precision is FLOAT64 else np.float32

    @property
    def zero_point_dtype(self) -> type[Any]:
        """In which kernels take zero points: it holds every value of the quantized type."""
        return np.float64 if self.quantized.is_integer and self.quantized.bits > 16 else np.float32


def key(
    operation: Operation,
    x: ElementType,
    scale: ElementType,
    y: ElementType,
    *,
    saturate: bool = True,
    precision: ElementType | None = None,
    via: ElementType | None = None,
) -> Key:
    """The key for operands of these types. The precision of the division is that of the scale, "unless the `precision`
    attribute is specified" (QuantizeLinear-28), but float32 for a float8e8m0 scale, as it cannot hold a quotient, and
    float64 for an int32 scale, in which quotients of such numbers are as good as exact."""
    if operation == "dequantize":
        return Key(operation, x, FLOAT32, y)
    if precision is None:
        precision = {FLOAT8E8M0: FLOAT32, INT32: FLOAT64}.get(scale, scale)
    return Key(operation, x, precision, y, saturate or not has_unsaturated_form(via or y), via)


def has_unsaturated_form(y: ElementType) -> bool:
    """ "It only applies for float 8 quantization" (QuantizeLinear-28, saturate)."""
    return y.bits == 8 and not y.is_integer


@dataclass(frozen=True)
class Kernel:
    """The compiled forms of one key (see ``kernels``), each compiled when it is first asked for."""

    key: Key

    @created_once
    def serial(self) -> Any:
        from . import kernels

        return kernels.serial_kernel(self.key)

    @created_once
    def parallel(self) -> Any:
        from . import kernels

        return kernels.parallel_kernel(self.key, self.serial)

    @created_once
    def past_cache(self) -> Any:
        from . import kernels

        return kernels.parallel_kernel(self.key, self.serial, past_cache=True)

    @created_once
    def task(self) -> Any:
        from . import kernels

        return kernels.task_function(self.key, self.serial)


def _keys() -> Iterator[Key]:
    for x in types("quantize", "x"):
        for precision in PRECISIONS:
            for y in types("quantize", "y"):
                yield Key("quantize", x, precision, y)
                if has_unsaturated_form(y):
                    yield Key("quantize", x, precision, y, saturate=False)
    for x in types("dequantize", "x"):
        for y in types("dequantize", "y"):
            yield Key("dequantize", x, FLOAT32, y)
    for via in types("quantize_dequantize", "via"):
        for saturate in (True, False) if has_unsaturated_form(via) else (True,):
            yield Key("quantize_dequantize", FLOAT32, FLOAT32, FLOAT32, saturate, via)


def _table() -> dict[Key, Kernel]:
    table: dict[Key, Kernel] = {}
    for each in _keys():
        if each in table:
            raise ValueError(f"two kernels for {each}")
        table[each] = Kernel(each)
    return table


TABLE = _table()
