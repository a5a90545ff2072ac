"""Which float32 tensors of a graph hold 8-bit codes times a power of two, and which convolutions of them are exact: the limits
of scales and sums, and the reasons why some are not.

A *grid* is a power of two and a range of codes of 8 bits: the tensor holds (code - zero point) * scale, and nothing else. Such
numbers, their products and sums are integers times a power of two. A float32 sum of them is exact, in whatever order it is
computed, as long as no partial sum reaches 2^24 times that power."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from ...declaration.reasons import stays_if
from ...linear.versions import OWN_DOMAIN
from ...models.protos import attributes_of
from ...region.key import Program, Step, parse
from ...region.operators import OPERATORS
from ...region.step_operators import ROUND_TRIP
from ...rewriting.signs_of_zeros import MOVE_FIRST

(_REGION,) = OPERATORS

# Magnitudes of scales, and of weights and biases that are not 0, are within these. A weight is at most 2^7 times its step. So
# the steps of products are from 2^-87 to 2^80, the lowest bit of a bias is at least 2^-63, and sums are below 2^24 steps:
# nothing is subnormal or overflows.
_LEAST, _LARGEST = 2.0**-40, 2.0**40

# Integers of smaller magnitude are exact in float32, with their sums and differences.
_EXACT = 1 << 24


# The weights whose sums are proved at once.
_ELEMENTS = 1 << 18


class Grid(NamedTuple):
    """The numbers that a tensor may hold: (code - zero_point) * scale, with codes of uint8. The scale is a power of two."""

    scale: float
    zero_point: int

    @property
    def largest(self) -> int:
        """The largest magnitude of a number, divided by the scale."""
        return max(self.zero_point, 255 - self.zero_point)


class ExactConv(NamedTuple):
    """The weights of an exact convolution: codes of int8, and the scale of the products for each channel of y."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]


# Operators of ONNX whose output has only elements of their first input.
_MOVES = {*MOVE_FIRST, "GlobalMaxPool"}


# Returns the value of a constant of one element, by its name, or None for any other tensor.
Constant = Callable[[str], NDArray[Any] | None]


def grids_of(nodes: Iterable[onnx.NodeProto], constant: Constant) -> dict[str, Grid]:
    """Return the grids of tensors, by name. `nodes` are those of a graph in their order."""
    grids: dict[str, Grid] = {}
    for node in nodes:
        if grid := _grid_after(node, grids, constant):
            grids |= dict.fromkeys(filter(None, node.output[: None if node.op_type == "Split" else 1]), grid)
    return grids


def _grid_after(node: onnx.NodeProto, grids: Mapping[str, Grid], constant: Constant) -> Grid | None:
    """Return the grid of a node's first output, or None."""
    kind = "" if node.domain == "ai.onnx" else node.domain, node.op_type
    attributes = attributes_of(node)
    if kind == (_REGION.domain, _REGION.name):
        program = parse(attributes["program"])
        return grid_of_step(program, _rounding_step(program), node.input, constant)
    if kind in {(OWN_DOMAIN, ROUND_TRIP), (OWN_DOMAIN, "Dequantize")}:
        has_other = len(node.input) < 3 or attributes.get("block_size") or attributes.get("output_dtype")
        return None if has_other else _grid(constant(node.input[1]), constant(node.input[2]))
    given = [grids.get(name) for name in node.input]
    if kind[0] or not given or given[0] is None:
        return None
    if node.op_type == "Concat":
        return given[0] if all(other == given[0] for other in given) else None
    is_nearest = node.op_type == "Resize" and attributes.get("mode", "nearest") == "nearest"
    extrapolates = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    is_pool = node.op_type == "MaxPool" and _has_elements_in_each_window(attributes)
    is_pad = node.op_type == "Pad" and _adds_numbers_of_grids(node, attributes, constant)
    moves = node.op_type in _MOVES or is_pool or is_pad or (is_nearest and not extrapolates)
    return given[0] if moves or node.op_type == "Relu" else None


def _adds_numbers_of_grids(node: onnx.NodeProto, attributes: Mapping[str, Any], constant: Constant) -> bool:
    """Return whether a Pad adds only elements of its input, or 0, which every grid has."""
    if attributes.get("mode", "constant") != "constant":
        return True
    name = node.input[2] if len(node.input) > 2 else ""
    value = constant(name) if name else np.asarray(attributes.get("value", 0.0))  # an attribute before opset 11
    return value is not None and not value.any() and not np.signbit(value).any()


def _has_elements_in_each_window(attributes: Mapping[str, Any]) -> bool:
    """Return whether no window of a pool has only pads, which are no numbers of a grid. There may be such windows if the window
    skips elements or begins behind the last element (ceil_mode)."""
    kernel, pads = attributes["kernel_shape"], attributes.get("pads", [0])
    is_plain = attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and not attributes.get("ceil_mode")
    return is_plain and set(attributes.get("dilations", [1])) == {1} and max(pads) < min(kernel)


def _rounding_step(program: Program) -> Step:
    """Return the last step of a program before steps that leave numbers on their grid."""
    step = program.steps[-1]
    while step.operator in ("Identity", "Relu") and (before := step.present[0] - len(program.inputs)) >= 0:
        step = program.steps[before]
    return step


def grid_of_step(program: Program, step: Step, inputs: Sequence[str], constant: Constant) -> Grid | None:
    """Return the grid of the result of a step, or None. `inputs` are the names of the program's inputs."""
    if step.operator != ROUND_TRIP or not program.has_scalars(step):
        return None
    _, scale, zero_point = step.present
    return _grid(constant(inputs[scale]), constant(inputs[zero_point]))


def _grid(scale: NDArray[Any] | None, zero_point: NDArray[Any] | None) -> Grid | None:
    """Return the grid of what is dequantized with this scale and zero point, or None."""
    if scale is None or zero_point is None or scale.dtype != np.float32 or zero_point.dtype not in (np.int8, np.uint8):
        return None
    value, shift = float(scale.reshape(())), 128 if zero_point.dtype == np.int8 else 0
    is_power = _LEAST <= value <= _LARGEST and math.frexp(value)[0] == 0.5
    return Grid(value, int(zero_point.reshape(())) + shift) if is_power else None


def exact_conv(grid: Grid, weights: NDArray[np.float32], bias: NDArray[np.float32]) -> ExactConv:
    """Return the weights of a convolution of a tensor on a grid. Raise NotRewrittenError unless the convolution is exact: the
    float32 result is the same in whatever order products and bias are added."""
    stays_if(not weights.size, "its weights are empty")
    stays_if(bias.shape != weights.shape[:1] or not np.isfinite(bias).all(), "its bias is not finite, or has another shape")
    stays_if(_is_extreme(bias), "its bias is extreme")
    # The integers that prove it take more memory than the weights.
    count = max(1, _ELEMENTS // weights[0].size)
    parts = [_exact_part(grid, weights[k : k + count], bias[k : k + count]) for k in range(0, len(weights), count)]
    return ExactConv(*map(np.concatenate, zip(*parts, strict=True)))


def _exact_part(grid: Grid, weights: NDArray[np.float32], bias: NDArray[np.float32]) -> ExactConv:
    """Return the weights for some channels of y, as `exact_conv` does."""
    rows = weights.reshape(len(weights), -1)
    stays_if(not np.isfinite(rows).all(), "its weights are not finite")
    stays_if(_is_extreme(rows), "its weights are extreme")
    exponents = _lowest_bits(rows).min(axis=1, initial=np.iinfo(np.int64).max, where=rows != 0)
    exponents[~rows.any(axis=1)] = 0  # a channel without weights takes any scale
    codes = np.ldexp(rows.astype(np.float64), -exponents[:, None])
    stays_if((codes < -128).any() or (codes > 127).any(), "its weights are not integers of 8 bits times a power of two")
    finest = exponents + math.frexp(grid.scale)[1] - 1
    scales = np.ldexp(1.0, finest)
    totals = np.abs(codes).sum(axis=1) * grid.largest * scales + np.abs(bias.astype(np.float64))
    finest = np.where(bias != 0, np.minimum(finest, _lowest_bits(bias)), finest)
    # A total is an integer times 2^finest. In float64 it is exact below 2^53 times that, so the comparison is right.
    stays_if((totals >= np.ldexp(float(_EXACT), finest)).any(), "its sums may need more than 24 bits")
    return ExactConv(codes.astype(np.int8).reshape(weights.shape), scales.astype(np.float32))


def _is_extreme(values: NDArray[np.float32]) -> bool:
    """Return whether a number that is not 0 has a magnitude beyond the limits."""
    magnitudes = np.abs(values)
    return bool(np.any((magnitudes > _LARGEST) | ((magnitudes < _LEAST) & (magnitudes != 0))))


def _lowest_bits(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the exponent of the lowest bit of each float32 number that is not 0, and any number for 0."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    integers = np.ldexp(mantissas, 24).astype(np.int64)  # exact: a mantissa of float32 has 24 bits
    lowest = integers & -integers
    return exponents.astype(np.int64) - 24 + np.frexp(lowest.astype(np.float64))[1] - 1
