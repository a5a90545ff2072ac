"""The dispatch table: from an operation and its element types to the kernel compiled for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .element_types import ELEMENT_TYPES, FLOAT32, ElementType
from .lock import created_once

Operation = Literal["quantize", "dequantize"]


class Key(NamedTuple):
    """What selects a kernel. The zero point has the type of the quantized side."""

    operation: Operation
    x: ElementType
    scale: ElementType
    y: ElementType

    @property
    def quantized(self) -> ElementType:
        return self.y if self.operation == "quantize" else self.x


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
    def task(self) -> Any:
        from . import kernels

        return kernels.task_function(self.key, self.serial)


def _table() -> dict[Key, Kernel]:
    table: dict[Key, Kernel] = {}
    for row in ELEMENT_TYPES:
        if row is FLOAT32:
            continue
        for key in (Key("quantize", FLOAT32, FLOAT32, row), Key("dequantize", row, FLOAT32, FLOAT32)):
            if key in table:
                raise ValueError(f"two kernels for {key}")
            table[key] = Kernel(key)
    return table


TABLE = _table()
QUANTIZED_TYPES = tuple(dict.fromkeys(key.quantized for key in TABLE))
