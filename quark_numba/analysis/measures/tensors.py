"""The measures of a quantized tensor, from its sums: the figures that `analyze` reports (errors, saturated and flushed
elements, used range), and which elements count as saturated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...compiling.lock import created_cache
from ..twin.forms import Array, Block, Linear
from ..twin.quantizers import Kind, Quantizer
from .sums import LANES, TENSOR_SUMS, TensorSums, cosine, decibels, share


@dataclass
class QuantizedTensor:
    """The measures of a quantized tensor over all data. A figure of no element is NaN.

    Errors are None for a tensor without elements, and for a weight without float values: the model has only its codes, and no
    reference has the values. If the shape of an activation differs in the float model, only its own errors are known.

    Parameters
    ----------
    name : name of the tensor before it is rounded
    place : index in the order of execution
    kind : "activation" or "weight"
    type : the quantized type, or the block format
    parameters : scale and zero point, or the least and the largest if there are several; axis; block size
    made_by, used_by : names of nodes
    sqnr_db : signal-to-quantization-noise ratio (SQNR) of the tensor after rounding: the inherited error and its own. This and
        the other ratios are inf for an exact tensor, zeros among them, and NaN if only one of the two tensors has a NaN.
    own_sqnr_db : SQNR of the float model's tensor after rounding: the error of this rounding alone
    inherited_sqnr_db : SQNR of the tensor just before it is rounded: the error that it has from the tensors before it
    cosine, max_abs_error : cosine and largest error of the tensor after rounding
    saturated : share of the float model's elements that lie beyond the type's range and change in rounding: by more than half a
        step for integers, by any amount for floats
    flushed_to_zero : share of elements that are not zero and become zero
    range_used : part of the type's range between the least and the largest element; None for block formats
    what_if : own_sqnr_db with other types, by name
    """

    name: str
    place: int
    kind: Kind
    type: str
    parameters: dict[str, Any]
    made_by: str
    used_by: list[str]
    sqnr_db: float | None = None
    own_sqnr_db: float | None = None
    inherited_sqnr_db: float | None = None
    cosine: float | None = None
    max_abs_error: float | None = None
    saturated: float | None = None
    flushed_to_zero: float | None = None
    range_used: float | None = None
    what_if: dict[str, float] = field(default_factory=dict)


def tensor_of(quantizer: Quantizer, sums: TensorSums | None) -> QuantizedTensor:
    tensor = QuantizedTensor(
        name=quantizer.name,
        place=quantizer.place,
        kind=quantizer.kind,
        type=quantizer.form.type,
        parameters=quantizer.form.parameters,
        made_by=quantizer.made_by,
        used_by=list(quantizer.users),
    )
    if sums is None or not sums.count:
        return tensor
    tensor.own_sqnr_db = decibels(sums.signal, sums.own_noise)
    tensor.saturated = share(sums.saturated, sums.count)
    tensor.flushed_to_zero = share(sums.flushed, sums.count)
    if quantizer.form.code_ends:
        lowest, highest = quantizer.form.code_ends
        used = min(sums.largest_code, highest) - max(sums.least_code, lowest)
        is_known = sums.least_code <= sums.largest_code
        tensor.range_used = min(max(used, 0.0) / (highest - lowest), 1.0) if is_known else math.nan
    if not sums.reshaped:
        tensor.sqnr_db = decibels(sums.signal, sums.noise)
        tensor.inherited_sqnr_db = decibels(sums.signal, sums.inherited_noise)
        tensor.cosine = cosine(sums.signal, sums.energy, sums.product)
        tensor.max_abs_error = sums.largest
    return tensor


@created_cache
def _kernel(name: str) -> Any:
    from . import kernels

    return getattr(kernels, name)()


def measure(quantizer: Quantizer, x: Array, before: Array, after: Array) -> TensorSums:
    """Return the sums over a tensor: x in the float model, `before` and `after` before and after rounding in the quantized
    model. If their shape differs from that of x, the sums are those of x and its own error."""
    own = quantizer.apply(x)
    form = quantizer.form
    lowest, highest = form.limits or (-math.inf, math.inf)
    is_reshaped = before.shape != x.shape
    sums = add_up(x, own, x if is_reshaped else before, own if is_reshaped else after, lowest, highest)
    sums.reshaped = float(is_reshaped)
    if isinstance(form, Block):
        sums.saturated = float(_saturated_in_blocks(form, x, own))
    elif isinstance(form, Linear) and form.is_per_tensor:
        if sums.least_code <= sums.largest_code:  # some element is a number
            sums.least_code, sums.largest_code = form.code_range(sums.least_code, sums.largest_code)
    elif isinstance(form, Linear) and x.size:
        codes, (lowest, highest) = form.codes(x), form.code_limits
        sums.saturated = float(np.sum(((codes < lowest) | (codes > highest)) & (own != x)))
        # Codes are NaN where x is, and where both x and its scale are 0.
        sums.least_code = float(np.fmin.reduce(codes, axis=None, initial=np.inf))
        sums.largest_code = float(np.fmax.reduce(codes, axis=None, initial=-np.inf))
    return sums


def own_noise(x: Array, rounded: Array) -> float:
    """Return the sum of the squared differences between x and its rounded values."""
    return add_up(x, rounded, x, x, -math.inf, math.inf).own_noise


def signal(x: Array) -> float:
    """Return the sum of the squares of the finite elements."""
    return add_up(x, x, x, x, -math.inf, math.inf).signal


def add_up(x: Array, own: Array, before: Array, after: Array, lowest: float, highest: float) -> TensorSums:
    sums = np.zeros(len(TENSOR_SUMS))
    _kernel("add_up")(*map(_flat, (x, own, before, after)), lowest, highest, sums, np.zeros(LANES * sums.size))
    return TensorSums(x.size, **dict(zip(TENSOR_SUMS, sums.tolist(), strict=True)))


def _saturated_in_blocks(form: Block, x: Array, own: Array) -> int:
    if not x.size:
        return 0
    block_format, (length, inner) = form.block_format, form.layout(x.shape)
    numbers = block_format.block, block_format.sub_block, block_format.max_shift, block_format.drop, length, inner
    # An element that is beyond the last step by no more than half a step is rounded to it.
    highest = block_format.highest + 0.5 if form.is_whole else float(block_format.highest)
    return _kernel("saturated_in_blocks")(_flat(x), _flat(own), numbers, highest, np.zeros(2 * inner))


def _flat(array: Array) -> Array:
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return array.reshape(-1)
    return np.ascontiguousarray(array, np.float32).reshape(-1)
