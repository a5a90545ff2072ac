"""The formats, and the key of a kernel."""

from __future__ import annotations

from typing import NamedTuple

from ..element_types import FLOAT8E8M0, ElementType, named

FLOAT4E2M1, FLOAT8E4M3FN = named("float4e2m1 float8e4m3fn")


class Format(NamedTuple):
    """A format."""

    name: str
    codes: ElementType
    scales: ElementType
    has_tensor_scale: bool  # whether a scale of the whole tensor multiplies the scales of the blocks
    block_size: int  # the usual one


NVFP4 = Format("nvfp4", FLOAT4E2M1, FLOAT8E4M3FN, has_tensor_scale=True, block_size=16)
MXFP8 = Format("mxfp8", FLOAT8E4M3FN, FLOAT8E8M0, has_tensor_scale=False, block_size=32)

FORMATS = (NVFP4, MXFP8)


class Key(NamedTuple):
    """A key of the dispatch table."""

    format: Format
    x: ElementType
    is_round_trip: bool  # whether y is x rounded; otherwise codes and scales

    @property
    def y(self) -> ElementType:
        return self.x if self.is_round_trip else self.format.codes

    @property
    def name(self) -> str:
        """A name for symbols, different for each key."""
        return f"{self.format.name}_{self.x.name}{'_round_trip' * self.is_round_trip}"
