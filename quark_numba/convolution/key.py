"""The key of a kernel."""

from __future__ import annotations

from itertools import product, starmap
from typing import NamedTuple

from ..element_types import FLOAT32, UINT8, ElementType

# The possible numbers of lanes: the channels of a block of the blocked layout, 32-bit numbers of a vector.
LANES = (8, 16)

# A vector instruction multiplies this number of consecutive channels, and adds the products.
GROUP = 4


class Key(NamedTuple):
    """The element types of x and y, and the number of lanes."""

    x_type: ElementType
    y_type: ElementType
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.x_type.name}_{self.y_type.name}_{self.lanes}"


KEYS = tuple(starmap(Key, product((FLOAT32, UINT8), (FLOAT32, UINT8), LANES)))
