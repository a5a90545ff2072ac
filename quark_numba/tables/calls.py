"""Tables on arrays: check the arguments and attributes (bit widths, data layouts), select a kernel, run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.arguments import flat, float32_arrays
from ..compiling.lock import created_cache
from ..compiling.python_calls import get_or_compile
from ..element_types import FLOAT32
from .dispatch import TABLE
from .granularity import BY_RANK, COUNT_FAULTS, NEAREST_FAULTS, NO_AXIS, NUMBERS, THRESHOLD, shape_of, size_of
from .key import COUNT, NEAREST

# By operation: the names of the inputs, and the messages of faults.
INPUTS = {COUNT: ("x", "thresholds"), NEAREST: ("x", "lut", "threshold")}
FAULTS = {COUNT: COUNT_FAULTS, NEAREST: NEAREST_FAULTS}

_MAX_BITS = 32


class Rule(NamedTuple):
    """What a node does: an operation, the axis of channels as `granularity.shape_of` takes it, and two numbers. The numbers
    are the factor and the offset of a count, or how many units of the values are a threshold and what is added to that."""

    operation: str
    axis: int
    first: float
    second: float

    @property
    def is_nearest(self) -> bool:
        return self.operation == NEAREST

    def message(self, fault: int, axis: int, shapes: Any) -> str:
        """Return the message of a fault of `shape_of`, for shapes of inputs in the form that it is to show."""
        named = {f"{name}_shape": shape for name, shape in zip(INPUTS[self.operation], shapes, strict=True)}
        return FAULTS[self.operation][fault].format(**named, axis=axis)


def rule(operation: str, attributes: Mapping[str, Any]) -> Rule:
    """Return what a node with these attributes does. Raise ValueError if one is invalid."""
    if operation == COUNT:
        layout = attributes["data_layout"]
        if layout and "C" not in layout:
            raise ValueError(f"data_layout is {layout!r}; expected a letter for each axis of x, with C for the channels")
        return Rule(operation, layout.index("C") if layout else BY_RANK, attributes["out_scale"], attributes["out_bias"])
    bits = attributes["lut_values_bitwidth"]
    if not 1 <= bits <= _MAX_BITS:
        raise ValueError(f"lut_values_bitwidth is {bits}; expected 1..{_MAX_BITS}")
    axis = int(attributes["channel_axis"]) if attributes["per_channel"] else NO_AXIS
    return Rule(operation, axis, 2.0 ** (bits - 1), attributes["eps"])


@created_cache
def _filler() -> Any:
    return get_or_compile("fill_table", lambda: TABLE.kernels.fill_kernel())


def convert(rule: Rule, *inputs: Any) -> NDArray[np.float32]:
    """Return the output of a node for these inputs. Raise TypeError or ValueError if one is invalid."""
    arrays = float32_arrays(**dict(zip(INPUTS[rule.operation], inputs, strict=True)))
    shapes = [array.shape for array in arrays]
    fault, axis, rows, entries, inner = shape_of(rule.is_nearest, rule.axis, shapes[0], shapes[1], shapes[-1])
    if fault:
        raise ValueError(rule.message(fault, axis, shapes))
    x, *sources = (flat(array, FLOAT32) for array in arrays)
    y = np.empty(shapes[0], np.float32)
    if not x.size:
        return y
    size = size_of(rows, entries, inner)
    table, numbers = np.empty((NUMBERS + size[1]) * size[0], np.float32), (np.float32(rule.first), np.float32(rule.second))
    if not _filler()(rule.is_nearest, *numbers, sources[0], sources[-1], rows, table, *size):
        raise ValueError(rule.message(THRESHOLD, axis, shapes))
    TABLE[rule.operation].run(x.size, x, table, y.reshape(-1), inner, *size)
    return y
