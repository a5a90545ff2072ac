"""What the family computes, in the standard operators of ONNX: rounding, padding of short blocks, and the reasons why a node
has no such form.

Nearly all of it is Mul, Add, Sub, Abs and Clip of float32: comparisons and choices are slow on large tensors, and not every
provider has the small types. Inf and NaN pass from operator to operator, and do not affect the powers of two of `_powers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np

from ..declaration.meaning import AnyOperand
from ..declaration.reasons import require
from ..declaration.standard_arithmetic import (
    LARGEST,
    half_away_from_zero,
    least_step,
    nearest,
    on_grid,
    one_where_zero,
    power_of_two,
    sign,
)
from ..declaration.standard_form import Builder, Given, int64s
from ..element_types import BFLOAT16, FLOAT32, INT32, UINT8, ElementType
from .formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, NVIDIA_NVFP4, NvidiaFormat
from .granularity import Format
from .key import X_TYPES, Key

_LARGEST_SUBNORMAL = 2.0**-126 - 2.0**-149


def round_trip(
    make_format: Callable[..., tuple[Key, Format]],
    op: Builder[AnyOperand],
    inputs: Sequence[AnyOperand],
    attributes: Mapping[str, Any],
) -> list[AnyOperand]:
    """Write BFPQuantizeDequantize or MXQuantizeDequantize, whose format `make_format` returns. An x of one element is returned
    as it is (see ``kernels.run``)."""
    x, (key, block_format) = inputs[0], make_format(X_TYPES[0], **attributes)
    shape, x_type = op.shape(x), require(x.element_type, "the type of its x is not known")
    if shape is not None and (0 in shape or all(length == 1 for length in shape)):
        return [x]
    whole = value = op.cast(x, FLOAT32)
    if key.rounds_to_bfloat16:
        value = op.cast(op.cast(value, BFLOAT16), FLOAT32)
    axis = int(attributes["axis"])
    if shape is None:
        value = _with_axis(op, value, axis)
    else:
        axis = axis % len(shape) if len(shape) > 1 else 0
    cut = _cut(op, value, axis, block_format.block, block_format.sub_block, is_padded=True)
    if key.is_microexponent:
        y = _microexponents(op, cut, block_format)
    elif key.element:
        y = _floats(op, cut, key.element, block_format.drop)
    else:
        y = _whole_numbers(op, cut, block_format)
    y = cut.restore(y)
    if shape is None:
        y = op.like(y, whole)
    if shape is None or all(length in (None, 1) for length in shape):
        y = op("Where", op("Equal", op("Size", whole), np.array(1, np.int64)), whole, y)
    return [op.cast(y, x_type)]


def _powers(op: Builder[AnyOperand], cut: _Cut[AnyOperand], factor: float = 1.0) -> AnyOperand:
    """Return `factor` times the power of two with the exponent of each block's largest finite element. The power is 2**-127 if
    the element is subnormal, and 1 if it is 0.

    ThresholdedRelu gives 0 for -3/4 of Inf, which is below its threshold, and for NaN. If all elements are zeros, any power is
    right. A subnormal power would be slow, or be 0 where subnormal numbers are flushed to 0."""
    negative = op("Mul", op("Abs", cut.blocks), -0.75)
    finite = op("ThresholdedRelu", negative, alpha=-0.875 * LARGEST)
    largest = op("Neg", op.reduce("ReduceMin", finite, cut.elements))
    return op("Add", power_of_two(op, largest, factor), one_where_zero(op, largest))


def _floats(op: Builder[AnyOperand], cut: _Cut[AnyOperand], element: ElementType, drop: int) -> AnyOperand:
    """Write Microscaling formats of floats. The value of a code is a multiple of 2**-drop times the power of two.

    `least` is half of the smallest value of the type. If a result is not 0, the quotient of x and the power is above `least` in
    magnitude. Clipped to -`least`..`least`, the quotient is then `least` with the sign of x. The product of a magnitude and
    this is divided by `least` again. The quotients are computed with a step instead of the power: the power divided by about
    the square root of 1 / `least`. So every factor stays in the range of float32. A magnitude saturates by subtracting a
    difference that is never Inf, so that Inf stays."""
    least = 0.5 * least_step(element) * 2.0**-drop
    steps = 2.0 ** -(math.floor(math.log2(least)) // 2)  # in a power
    highest, most = float(element.highest) * 2.0**-drop * steps, 2.0 * steps
    step = _powers(op, cut, 1 / steps)
    v = op("Div", cut.blocks, step)
    number = on_grid(op, op("Abs", v), element, 2.0**-drop * steps)
    number = op("Sub", number, op.clip(op("Sub", number, highest), 0.0, most - highest))
    signed = op("Mul", number, op.clip(v, -least * steps, least * steps))
    return op("Mul", signed, op("Mul", step, 1 / (least * steps)))


def _whole_numbers(op: Builder[AnyOperand], cut: _Cut[AnyOperand], block_format: Format) -> AnyOperand:
    """Write block floating point, and Microscaling formats of int8.

    A number that is rounded up beyond the highest one is too large by 1. HardSigmoid gives this 1, also for Inf, so that Inf
    stays."""
    step = _powers(op, cut, 2.0**-block_format.drop)
    v = op("Div", cut.blocks, step)  # the inverse of a step may be Inf
    is_symmetric = block_format.lowest == -block_format.highest
    if is_symmetric and block_format.rounding_mode == HALF_AWAY_FROM_ZERO:
        number = half_away_from_zero(op, op("Abs", v))
        number = op("Sub", number, op("HardSigmoid", number, alpha=1.0, beta=-float(block_format.highest)))
        return _signed_product(op, number, v, step, block_format)
    finite = op.clip(cut.blocks, -LARGEST, LARGEST)
    if is_symmetric:  # x - 0 is x; this keeps -0
        y = op("Mul", _rounded(op, v, block_format), step)
        return op("Sub", y, op("Sub", finite, cut.blocks))
    if block_format.rounding_mode == HALF_AWAY_FROM_ZERO:
        further = op.clip(op("Add", v, op.clip(v, -0.5, 0.5)), block_format.lowest - 0.5, block_format.highest + 0.5)
        number = op.cast(op.cast(further, INT32), FLOAT32)
    else:
        number = _rounded(op, v, block_format)
    return op("Add", op("Mul", number, step), op("Sub", cut.blocks, finite))  # -0 + 0 is 0


def _microexponents(op: Builder[AnyOperand], cut: _Cut[AnyOperand], block_format: Format) -> AnyOperand:
    """Write MicroeXponents: subnormal elements become zeros, and Inf and NaN make the step of their block NaN.

    The maximum is Inf if an element is Inf, and the sum of the signs is NaN if an element is NaN."""
    kept, signs = op("ThresholdedRelu", op("Abs", cut.blocks), alpha=_LARGEST_SUBNORMAL), sign(op, cut.blocks, 2.0**-126)
    largest = op.reduce("ReduceMax", kept, cut.elements)
    step = power_of_two(op, op("Mul", largest, 0.75), 2.0**-block_format.drop)
    axes = [cut.elements]
    if cut.has_sub_blocks:
        axes.insert(0, cut.elements - 1)
        largest = op.reduce("ReduceMax", largest, axes[0])
        step_of_block = op.reduce("ReduceMax", step, axes[0])
        step = op("Max", step, op("Mul", step_of_block, 2.0**-block_format.max_shift))
    step = op("Add", step, one_where_zero(op, largest))
    v = op("Div", op("Mul", kept, signs), step)
    nothing = op("Mul", op("Add", largest, op.reduce("ReduceSum", signs, *axes)), 0.0)  # 0, or NaN
    step = op("Add", step, nothing)
    if block_format.rounding_mode == HALF_AWAY_FROM_ZERO:
        number = op.clip(half_away_from_zero(op, op("Abs", v)), 0.0, float(block_format.highest))
        return _signed_product(op, number, v, step, block_format)
    return op("Mul", _rounded(op, v, block_format), step)


def _signed_product(
    op: Builder[AnyOperand], number: AnyOperand, v: AnyOperand, step: AnyOperand, block_format: Format
) -> AnyOperand:
    """Return the product of `number`, the sign of v and the step. `number` is the magnitude of v, rounded to a whole number of
    steps. If it is not 0, v is at least 1/2 in magnitude."""
    if not block_format.drop:  # twice the step may be Inf
        return op("Mul", op("Mul", number, sign(op, v, 0.5)), step)
    return op("Mul", op("Mul", number, op.clip(v, -0.5, 0.5)), op("Mul", step, 2.0))


def _rounded(op: Builder[AnyOperand], v: AnyOperand, block_format: Format) -> AnyOperand:
    """Return v rounded to even or half upward, within the bounds. A zero has the sign of v."""
    if block_format.rounding_mode == HALF_TO_EVEN:
        number = op("Round", v)
    else:
        most = block_format.highest + 1.0
        v = op.clip(v, -most, most)
        number = op("Round", v)
        # If a tie was rounded down, the rest is 1/2. Every other rest is below 1/2.
        below = op("Sub", float(np.nextafter(np.float32(0.5), np.float32(0))), op("Sub", v, number))
        number = op("Sub", number, op.clip(op("Mul", below, 2.0**25), -1.0, 0.0))
    return op.clip(number, float(block_format.lowest), float(block_format.highest))


# The formats of NVIDIA.


def nvidia_round_trip(
    nvidia: NvidiaFormat, op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
) -> list[AnyOperand]:
    """Write NVFP4QuantizeDequantize or MXFP8QuantizeDequantize."""
    if 0 in (op.shape(inputs[0]) or ()):
        return [inputs[0]]
    cut, quotient, _, step = _quantized(nvidia, op, inputs, attributes)
    return [cut.restore(op("Mul", nearest(op, quotient, nvidia.codes), step))]


def nvidia_quantizer(
    nvidia: NvidiaFormat, op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
) -> list[AnyOperand]:
    """Write TRT_FP4DynamicQuantize or TRT_MXFP8DynamicQuantize. The operands of the Casts are numbers that the types of codes
    and scales hold."""
    scales = nvidia.scales if nvidia is NVIDIA_NVFP4 else UINT8
    cut, quotient, scale, _ = _quantized(nvidia, op, inputs, attributes)
    if not nvidia.codes.has_nan:
        quotient = op.without_nan(quotient, float(nvidia.codes.highest))
    codes = op.cast(cut.restore(nearest(op, quotient, nvidia.codes)), nvidia.codes)
    if scales is UINT8:  # The logarithm is near a whole number. Twice the power is never subnormal, but may be Inf.
        exponent = op("Mul", op("Log", op.clip(op("Mul", scale, 2.0), 0.0, LARGEST)), 1 / math.log(2))
        scale = op.without_nan(op("Add", op("Round", exponent), 126.0), 255.0)
    return [codes, op.cast(cut.restore_blocks(scale), scales)]


def _quantized(
    nvidia: NvidiaFormat, op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
) -> tuple[_Cut[AnyOperand], AnyOperand, AnyOperand, AnyOperand]:
    """Return x in blocks, the quotients to be rounded to codes, the scales of blocks, and their steps (see
    ``arithmetic.block_functions``)."""
    x, block = op.cast(inputs[0], FLOAT32), int(attributes["block_size"])
    cut = _cut(op, x, int(attributes["axis"]), block, block, is_padded=False)
    magnitude, highest = op("Abs", cut.blocks), float(nvidia.codes.highest)
    largest = op.reduce("ReduceMax", magnitude, cut.elements)
    if nvidia is NVIDIA_NVFP4:
        of_tensor = op.reshape(inputs[1], ())
        scale = op("Div", largest, op("Mul", of_tensor, highest))
        scale = op("Where", op("Equal", scale, 0.0), 1.0, scale)
        scale = on_grid(op, op.clip(scale, 2.0**-9, float(nvidia.scales.highest)), nvidia.scales)
    else:
        scale = _ceil_power(op, op("Div", largest, highest))
    if op.may_be_nan(x):  # a maximum need not be NaN, but a sum is; 1 / (1 + Inf) is 0
        sums = op.reduce("ReduceSum", op("Reciprocal", op("Add", magnitude, 1.0)), cut.elements)
        scale = op("Add", scale, op("Mul", sums, 0.0))
    if nvidia is not NVIDIA_NVFP4:
        return cut, op("Mul", cut.blocks, op("Reciprocal", scale)), scale, scale
    step = op("Mul", scale, of_tensor)
    quotient = op("Div", cut.blocks, step)
    if not _is_usual(inputs[1], nvidia):
        quotient = op("Where", op("IsNaN", quotient), highest, quotient)
    return cut, quotient, scale, step


def _ceil_power(op: Builder[AnyOperand], number: AnyOperand) -> AnyOperand:
    """Return the least power of two, from 2**-127 to 2**127, that is at least a number from 0 to 2**120, or Inf.

    The result is twice the largest power of two that is at most the next float32 below the number. That float32 is the rounded
    product of the number and 1 - 2**-24. All this is computed with 2**7 times the number, so that no number that matters is
    subnormal."""
    below = op.clip(op("Mul", number, 2.0**7 - 2.0**-17), 2.0**-121, LARGEST)
    power = op("Mul", power_of_two(op, op("Mul", below, 0.75)), 2.0**-6)
    return op("Max", power, op.clip(op("Sub", number, LARGEST), 0.0, 2.0**127))


def _is_usual(tensor_scale: AnyOperand, nvidia: NvidiaFormat) -> bool:
    """Return whether no step is 0, subnormal or Inf. Then a quotient is NaN only if the step is NaN."""
    if tensor_scale.array is None or tensor_scale.array.size != 1:
        return False
    scale = abs(float(tensor_scale.array.reshape(())))
    return 2.0**-117 <= scale <= LARGEST / (2 * float(nvidia.scales.highest))


# Blocks as an axis of a tensor.


class _Cut(NamedTuple, Generic[AnyOperand]):
    """x in blocks. `blocks` is x, padded to whole blocks, in a shape with an axis for the elements of a sub-block. If a block
    has several sub-blocks, the axis in front of that is for the sub-blocks. If lengths are known only in the run, `apart` is
    the padded x with axes of length 1, `new`, in their places. An axis below 0 counts from the end."""

    op: Builder[AnyOperand]
    x: AnyOperand
    axis: int
    block: int
    padded: AnyOperand
    blocks: AnyOperand
    elements: int  # the axis of the elements
    has_sub_blocks: bool
    apart: AnyOperand | None = None
    new: Sequence[int] = ()

    def restore(self, y: AnyOperand) -> AnyOperand:
        """Return a tensor of the shape of `blocks` in the shape of x."""
        op, shape, padded = self.op, self.op.shape(self.x), self.op.shape(self.padded)
        if self.apart is not None:
            y = op.squeeze(op("Reshape", y, op("Shape", self.apart)), *self.new)
        elif padded is not None:
            y = self._shaped(y, padded[self.axis])
        if self.padded is self.x:
            return y
        length = shape[self.axis] if shape is not None else None
        return op("Slice", y, int64s(0), int64s(length) if length else op.length(self.x, self.axis), int64s(self.axis))

    def restore_blocks(self, y: AnyOperand) -> AnyOperand:
        """Return a tensor with one element for each block. Its shape is the shape of x, except that the length of the axis is
        the number of blocks."""
        if self.apart is not None:
            return self.op.squeeze(y, *self.new)
        length = (self.op.shape(self.x) or ())[self.axis]
        return self._shaped(y, None if length is None else length // self.block)

    def _shaped(self, y: AnyOperand, length: int | None) -> AnyOperand:
        """Return y in the shape of x, except that the axis has this `length`. At most one length is unknown."""
        shape = [*(self.op.shape(self.x) or ())]
        shape[self.axis] = length
        return self.op.reshape(y, [-1 if each is None else each for each in shape])


def _cut(op: Builder[AnyOperand], x: AnyOperand, axis: int, block: int, sub_block: int, *, is_padded: bool) -> _Cut[AnyOperand]:
    """Return x in blocks. With `is_padded`, a short last block is padded; without it, a short last block makes the run fail.

    If at most one length is unknown, Reshape gets a constant shape, with -1 for that length."""
    shape = op.shape(x)
    axis = axis if shape is None else axis % len(shape)
    length = None if shape is None else shape[axis]
    if length is not None and length < block:
        block = max(1, -(-length // sub_block) * sub_block if sub_block < length else length)
        sub_block = min(sub_block, block)
    padded = _padded(op, x, axis, block) if is_padded and (length is None or length % block) else x
    count = None if length is None else -(-length // block)
    parts = [block] if sub_block == block else [block // sub_block, sub_block]
    if shape is None or shape.count(None) > 1 or 0 in shape:
        return _cut_in_run(op, x, axis, block, padded, count, parts)
    before, after = shape[:axis], shape[axis + 1 :]
    tail = [-1] if None in after else [math.prod(after)]  # type: ignore[arg-type]
    if count is not None and None not in before:
        head = [math.prod(before) * count]  # type: ignore[arg-type]
    elif count is not None:
        head = [-1]
    else:
        head = [*[0] * axis, -1]
    tail = [] if tail == [1] else tail
    blocks = op.reshape(padded, (*head, *parts, *tail))
    return _Cut(op, x, axis, block, padded, blocks, len(head) + len(parts) - 1, len(parts) > 1)


def _cut_in_run(
    op: Builder[AnyOperand],
    x: AnyOperand,
    axis: int,
    block: int,
    padded: AnyOperand,
    count: int | None,
    parts: Sequence[int],
) -> _Cut[AnyOperand]:
    """Return x in blocks, with a shape that is computed in the run.

    In the shape of a Reshape, -1 is refused if another length is 0, and 0 stands for the length that x has at the same place.
    So x first gets axes of length 1 behind the axis. Then all other lengths keep their places, and may be 0."""
    shape, new = op.shape(x), len(parts)
    axes = range(axis + 1, axis + 1 + new) if axis >= 0 else range(axis + 1 - new, axis + 1)
    apart = op.unsqueeze(padded, *axes)
    if shape is None:
        dims = op("Shape", apart)
        before: Given = op.slice(dims, 0, axis if axis >= 0 else axis - new) if axis else int64s()
        after: Given = op.slice(dims, axis + 1 + new if axis >= 0 else axis + 1) if axis != -1 else int64s()
    else:
        before, after = int64s(*[0] * axis), int64s(*[0] * (len(shape) - 1 - axis))
    if count is None:
        target: Given = op.concat(before, op("Div", op.length(padded, axis), int64s(block)), int64s(*parts), after)
    elif shape is None:
        target = op.concat(before, int64s(count, *parts), after)
    else:
        target = int64s(*before, count, *parts, *after)
    blocks = op("Reshape", apart, target)
    return _Cut(op, x, axis, block, padded, blocks, axes[-1], new > 1, apart, [*axes])


def _with_axis(op: Builder[AnyOperand], x: AnyOperand, axis: int) -> AnyOperand:
    """Return an x of unknown rank so that it has the axis. If x has no or one dimension, the operators take its elements as one
    axis, whichever axis the attribute names. So x gets dimensions of length 1 beside it."""
    needed = axis + 1 if axis >= 0 else -axis
    rank = op("Shape", op("Shape", x))
    is_small = op("Less", rank, int64s(2))
    if axis >= 0:
        return op("Expand", x, op("Expand", int64s(1), op("Where", is_small, int64s(needed), int64s(0))))
    missing = op("Where", is_small, op("Sub", int64s(needed), rank), int64s(0))
    return op("Reshape", x, op.concat(op("Shape", x), op("Expand", int64s(1), missing)))


def _padded(op: Builder[AnyOperand], x: AnyOperand, axis: int, block: int) -> AnyOperand:
    """Return x padded with zeros at the end of an axis, so that its length is a whole number of blocks."""
    shape = op.shape(x)
    if shape is None:
        dims, missing = op("Shape", x), _missing(op, x, axis, block)
        before: Given = op.slice(dims, 0, axis) if axis else int64s()
        after: Given = op.slice(dims, axis + 1) if axis != -1 else int64s()
        return op("Concat", x, op("Expand", 0.0, op.concat(before, missing, after)), axis=axis)
    length, in_front, behind = shape[axis], [0] * (len(shape) + axis), [0] * (len(shape) - axis - 1)
    if length is not None:
        return op("Pad", x, int64s(*in_front, -length % block, *behind))
    return op("Pad", x, op.concat(int64s(*in_front), _missing(op, x, axis, block), int64s(*behind)))


def _missing(op: Builder[AnyOperand], x: AnyOperand, axis: int, block: int) -> AnyOperand:
    return op("Mod", op("Neg", op.length(x, axis)), int64s(block))
