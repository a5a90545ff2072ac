"""The key of a kernel: the element types, the rules by which the elements of a block share a scale (`FLOOR`, `EVEN` and
others), and the kind of the result."""

from __future__ import annotations

from typing import NamedTuple

from ..element_types import BFLOAT16, FLOAT8E8M0, FLOAT16, FLOAT32, INT8, ElementType, named

FLOAT4E2M1, FLOAT8E4M3FN = named("float4e2m1 float8e4m3fn")

# The element types of x.
X_TYPES = (FLOAT32, FLOAT16, BFLOAT16)

# How the step of a block is computed from its largest element. FLOOR: the exponent of the largest element minus a constant
# (Quark's formats, OCP Microscaling). MICROEXPONENT: sub-blocks also have shifts, Inf and NaN make their block NaN, and
# subnormal elements become zero ("to_bfp_prime"). EVEN, CEIL: as FLOOR, but the largest element is first rounded: to the
# mantissa bits of the element type, or up to a power of two. RCEIL: the least power of two that brings the largest element into
# the range of the element type (MXFP8 of NVIDIA). NVFP4: the largest element becomes the largest value of the element type, but
# the scale is rounded to float8e4m3fn, and the whole tensor also has a scale.
FLOOR, MICROEXPONENT, EVEN, CEIL, RCEIL, NVFP4 = ("floor", "microexponent", "even", "ceil", "rceil", "nvfp4")


class Key(NamedTuple):
    """A key of the dispatch table of block formats."""

    x: ElementType
    element: ElementType | None  # a float type, or None for whole numbers of steps
    rule: str
    rounds_to_bfloat16: bool = False  # whether x is rounded to bfloat16 first
    has_codes: bool = False  # whether the results are codes and scales; otherwise y is x rounded

    @property
    def is_microexponent(self) -> bool:
        return self.rule == MICROEXPONENT

    @property
    def has_scales(self) -> bool:
        """Return whether the kernel computes scales as they are stored, and steps from the stored scales."""
        return self.has_codes or self.rule in (RCEIL, NVFP4)

    @property
    def codes(self) -> ElementType:
        return self.element or INT8

    @property
    def scales(self) -> ElementType:
        return FLOAT8E4M3FN if self.rule == NVFP4 else FLOAT8E8M0

    @property
    def y(self) -> ElementType:
        return self.codes if self.has_codes else self.x

    @property
    def name(self) -> str:
        """A name for symbols, different for each key."""
        element = self.element.name if self.element else "whole"
        return f"blocks_{self.x.name}_{element}_{self.rule}{'_bfloat16' * self.rounds_to_bfloat16}{'_codes' * self.has_codes}"
