"""The key of a kernel: the element types, and the rules for values that are not finite."""

from __future__ import annotations

from typing import NamedTuple

from ..element_types import BFLOAT16, FLOAT16, FLOAT32, ElementType

# The element types of x and y.
X_TYPES = (FLOAT32, FLOAT16, BFLOAT16)


class Key(NamedTuple):
    """A key of the dispatch table."""

    x: ElementType  # and y
    element: ElementType | None  # a float type; None for whole numbers of steps
    is_microexponent: bool  # MicroeXponents, "to_bfp_prime": Inf and NaN make their block NaN, and subnormals become zero
    rounds_to_bfloat16: bool  # whether x is rounded to bfloat16 first

    @property
    def name(self) -> str:
        """A name for symbols, different for each key."""
        element = self.element.name if self.element else "whole"
        rules = "_microexponent" * self.is_microexponent + "_bfloat16" * self.rounds_to_bfloat16
        return f"blocks_{self.x.name}_{element}{rules}"
