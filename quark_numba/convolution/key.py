"""The key of a kernel: the element type of y, and the number of lanes, with those that are possible."""

from __future__ import annotations

from itertools import product, starmap
from typing import NamedTuple

from ..element_types import FLOAT32, UINT8, ElementType

# The possible numbers of lanes: the channels of a block of the blocked layout, 32-bit numbers of a vector.
LANES = (8, 16)

# A vector instruction multiplies this number of consecutive channels, and adds the products.
GROUP = 4


class Key(NamedTuple):
    """The element type of y, and the number of lanes."""

    element_type: ElementType
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.element_type.name}_{self.lanes}"


KEYS = tuple(starmap(Key, product((FLOAT32, UINT8), LANES)))
