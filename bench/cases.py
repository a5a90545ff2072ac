"""The cases to measure: an operation on a type, at a size and granularity."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from labels import group_of

from quark_numba import quantize
from quark_numba.catalog import OPERATORS
from quark_numba.declaration import Operator
from quark_numba.element_types import ElementType, find
from quark_numba.linear.versions import types

# How often contenders take turns at a case.
TURNS = 3

SIZES = (1, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
SQUARE = (4096, 4096)

# The shape of x, that of the scale, axis and block size.
GRANULARITIES = {
    "per_axis/64x56x56/first": ((64, 56, 56), (64,), 0, 0),
    "per_axis/4096x4096/first": (SQUARE, (4096,), 0, 0),
    "per_axis/4096x4096/last": (SQUARE, (4096,), 1, 0),
    "blocks_of_32/4096x4096/first": (SQUARE, (128, 4096), 0, 32),
    "blocks_of_32/4096x4096/last": (SQUARE, (4096, 128), 1, 32),
    "blocks_of_128/4096x4096/first": (SQUARE, (32, 4096), 0, 128),
    "blocks_of_128/4096x4096/last": (SQUARE, (4096, 32), 1, 128),
}
GRANULAR_TYPES = ("uint8", "int4", "float8e4m3fn", "bfloat16")
PER_TENSOR = "per_tensor"

STANDARD_TYPES, EXTENDED_TYPES = (
    tuple(OPERATORS.find(*operator).formats.values())
    for operator in (("", "QuantizeLinear"), ("com.amd.quark", "ExtendedQuantizeLinear"))
)


@dataclass(frozen=True)
class Case:
    operation: str
    element_type: ElementType
    granularity: str
    shape: tuple[int, ...]
    scale_shape: tuple[int, ...] = ()
    axis: int = 1
    block_size: int = 0
    threads: int = 2

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def label(self) -> str:
        return f"{self.operation} {self.element_type.name}"

    @property
    def group(self) -> str:
        name = f"{self.operation}/{self.element_type.name}/{self.granularity}/{self.size}_elements"
        return group_of(name, self.threads)

    @property
    def attributes(self) -> dict[str, int]:
        return {"axis": self.axis, "block_size": self.block_size}

    @property
    def is_extended(self) -> bool:
        """Return whether Quark's operators have the case."""
        return self.element_type in EXTENDED_TYPES and not self.block_size

    @property
    def is_quick(self) -> bool:
        return self.element_type.name in ("uint8", "bfloat16") and self.size in (1 << 10, 1 << 16)


def cases() -> Iterator[Case]:
    for operation in ("quantize", "dequantize"):
        for element_type in types("quantize", "quantized"):
            for size in SIZES:
                yield Case(operation, element_type, PER_TENSOR, (size,))
        for name in ("uint8", "int8"):
            yield Case(operation, find(name), PER_TENSOR, (1 << 16,), threads=1)
        for name in GRANULAR_TYPES:
            for granularity, (shape, scale_shape, axis, block_size) in GRANULARITIES.items():
                if not block_size or find(name) in STANDARD_TYPES:
                    yield Case(operation, find(name), granularity, shape, scale_shape, axis, block_size)


@dataclass(frozen=True, eq=False)
class BlockCase:
    format: str
    layout: str
    operator: Operator
    shape: tuple[int, ...]
    attributes: dict[str, object]

    @property
    def group(self) -> str:
        return f"{self.format}/{self.layout}"


_BFP, _MX = (OPERATORS.find("com.amd.quark", f"{kind}QuantizeDequantize") for kind in ("BFP", "MX"))
_FORMATS = {
    "BFP16": (_BFP, {"bit_width": 16, "block_size": 8, "rounding_mode": 2}),
    "MX9": (_BFP, {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16, "rounding_mode": 2}),
    "MXFP8": (_MX, {"element_dtype": "fp8_e4m3", "block_size": 32}),
    "MXINT8": (_MX, {"element_dtype": "int8", "block_size": 32}),
}
BLOCK_CASES = [
    BlockCase(name, layout, operator, shape, {**attributes, "axis": axis})
    for name, (operator, attributes) in _FORMATS.items()
    for layout, shape, axis in (("4096x4096/last_axis", SQUARE, 1), ("16x64x128x128/axis_1", (16, 64, 128, 128), 1))
]


@dataclass(frozen=True, eq=False)
class OtherCase:
    """A normalization or a layer. `shapes` are the shapes of x and of the constants."""

    operator: str
    float_operator: str
    dimensions: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, object]

    @property
    def group(self) -> str:
        return f"{self.operator}/{self.dimensions}"


def _normalization(*shape: int) -> OtherCase:
    shapes = (shape, (shape[1],), (shape[1],))
    return OtherCase("ExtendedInstanceNormalization", "InstanceNormalization", "x".join(map(str, shape)), shapes, {})


def _lstm(steps: int, inputs: int, hidden: int) -> OtherCase:
    shapes = ((steps, 1, inputs), (2, 4 * hidden, inputs), (2, 4 * hidden, hidden), (2, 8 * hidden))
    dimensions = f"{steps}_steps/{inputs}_inputs/hidden_size_{hidden}"
    return OtherCase("ExtendedLSTM", "LSTM", dimensions, shapes, {"hidden_size": hidden})


OTHER_CASES = [
    _normalization(1, 32, 128, 128),
    _normalization(1, 64, 256, 256),
    _normalization(8, 16, 32, 32),
    _lstm(80, 64, 128),
    _lstm(200, 256, 256),
]


@lru_cache(maxsize=2)
def arrays(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, scale and zero point. All are drawn with one seed."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(case.shape, np.float32) * np.float32(3)
    scale = rng.uniform(0.04, 0.06, case.scale_shape).astype(np.float32)
    zero_point = np.zeros(case.scale_shape, case.element_type.dtype)
    if case.operation == "dequantize":
        x = quantize(x, scale, zero_point, **case.attributes)
    return x, scale, zero_point
