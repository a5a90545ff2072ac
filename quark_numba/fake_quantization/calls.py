"""Fake quantization on arrays (`fake_quantize`, `minifloat_quantize_dequantize`): defaults, the types and shapes of parameters,
and their errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import array, check_no_output, convert_in_order, element_type_of, flat
from ..arrays.chunks import Cut, Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..checks import check_flags
from ..compiling.lock import created_cache
from ..compiling.python_calls import get_or_compile
from ..element_types import ELEMENT_TYPES, FLOAT32
from ..element_types.operands import INT64
from .dispatch import TABLE
from .granularity import first_place, last_place
from .key import FORMS, Key, count_numbers, dtype_of, select

# The element types of parameters.
_TYPES = (FLOAT32, *(each for each in ELEMENT_TYPES if each.is_integer and each.bits >= 8), INT64)


@keeps_labels
def fake_quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0.0,
    bit_width: ArrayLike = 8,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: str = "ROUND",
    out: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """Return x rounded to integers of some bits and back, all in float32, as Quant-1 of QONNX (qonnx.custom_op.general).

    y = (round(clamp(x / scale + zero_point, lowest, highest)) - zero_point) * scale. The zero point is added before rounding,
    so that it need not be whole. `quantize_dequantize` adds it afterwards, as ONNX does. Each operation is rounded once. NaN
    stays NaN, but for one bit with a sign, where it becomes -scale. A small negative x may become -0.

    Parameters
    ----------
    x : array_like of float32, any shape, strides and memory order
    scale, zero_point : array_like of float32
        They broadcast to x as in numpy: one element for all, or shape (C, 1, 1, 1) for one element for each index of axis 0.
    bit_width : number
        A whole number from 1 to 64. One bit with a sign has the codes -1 and 1.
    signed : bool
        Whether codes are from -2 ** (bit_width - 1) to 2 ** (bit_width - 1) - 1, or from 0 to 2 ** bit_width - 1.
    narrow : bool
        Whether the lowest code of signed formats, or the highest code of unsigned formats, is left out.
    rounding_mode : str
        "ROUND" or "HALF_EVEN" (to nearest, ties to even), "CEIL", "FLOOR", "UP" (away from 0), "DOWN" or "ROUND_TO_ZERO",
        "HALF_UP" (to nearest, ties away from 0), "HALF_DOWN" (ties towards 0). Case does not matter.
    out : ndarray of float32, optional
        Where to write the result: x's shape.

    Returns
    -------
    ndarray of float32, of x's shape: `out`, or a new array in the memory order of x. If an argument is a dask array, a lazy
    dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    arguments = locals()
    check_flags(signed=signed, narrow=narrow)
    return convert(select("integer", rounding_mode), x, arguments, out=out)


@keeps_labels
def minifloat_quantize_dequantize(
    x: ArrayLike,
    scale: ArrayLike = 1.0,
    *,
    exponent_bits: ArrayLike,
    mantissa_bits: ArrayLike,
    exponent_bias: ArrayLike,
    max_val: ArrayLike = np.inf,
    has_inf: bool = False,
    has_nan: bool = False,
    saturation: bool = True,
    rounding_mode: str = "ROUND",
    out: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """Return x rounded to a float format of any widths and back, as FloatQuant-1 of QONNX (qonnx.custom_op.general).

    y = scale * round(x / scale), to the values of a format with a sign, subnormals, and the given exponent and mantissa. NaN
    stays NaN. Inf, and quotients beyond float32, become NaN, as in QONNX and Brevitas.

    Parameters
    ----------
    x : array_like of float32, any shape, strides and memory order
    scale : array_like of float32
        It broadcasts to x as in numpy.
    exponent_bits, mantissa_bits, exponent_bias : whole numbers
        1 to 8 and 0 to 23 bits. The mantissa's hidden bit does not count. Float8e4m3fn has 4 and 3 bits, and the bias 7.
    max_val : number
        The largest value of x / scale, if it is less than the widths allow. Float8e4m3fn has 448.
    has_inf, has_nan, saturation : bool
        What a value beyond the largest one becomes: the largest one with `saturation`, or else Inf, or else NaN.
    rounding_mode, out
        As in `fake_quantize`, and so are the result and the errors.
    """
    arguments = locals()
    check_flags(has_inf=has_inf, has_nan=has_nan, saturation=saturation)
    return convert(select("minifloat", rounding_mode), x, arguments, out=out)


def convert(
    key: Key, x: Any, parameters: Mapping[str, Any], *, names: Mapping[str, str] | None = None, out: Any = None
) -> NDArray[np.float32]:
    """Return x rounded to a format.

    `parameters` has the form's parameters by their names, and may have more. `names` has the names by which messages call the
    parameters, if these names differ. Raise TypeError or ValueError if an argument is invalid."""
    form, named = FORMS[key.form], names or {name: name for name in FORMS[key.form].parameters}
    x_array = array(x, "x", FLOAT32)
    element_type_of(x_array.dtype, "x", (FLOAT32,))
    arrays = []
    for parameter in form.parameters:
        argument, name = parameters[parameter], named[parameter]
        value = array(float(argument) if isinstance(argument, (bool, np.bool_)) else argument, name, FLOAT32)
        element_type_of(value.dtype, name, _TYPES)
        check_single(key, parameter, value.shape, name)
        check_sizes(value, name, range(value.ndim))
        if first_place(x_array.shape, value.shape) < 0:
            raise ValueError(f"{name} has shape {value.shape}; expected one that broadcasts to the shape of x, {x_array.shape}")
        arrays.append(value)
    if is_lazy(x_array, *arrays):
        check_no_output(out)
        return _convert_chunks(key, x_array, arrays, named)
    return _convert(key, x_array, arrays, named, out)


def check_single(key: Key, parameter: str, shape: tuple[int, ...], name: str) -> None:
    """Raise ValueError if a parameter has several elements, and may not."""
    if parameter in FORMS[key.form].single and math.prod(shape) != 1:
        raise ValueError(f"{name} has shape {shape}; expected one element")


def _convert(
    key: Key, x: NDArray[Any], parameters: list[NDArray[Any]], named: Mapping[str, str], out: Any = None
) -> NDArray[np.float32]:
    aligned = [parameter.reshape(_aligned(parameter.shape, x.ndim)) for parameter in parameters]
    if x.flags.fnc:
        aligned = [parameter.T for parameter in aligned]
    lengths = x.T.shape if x.flags.fnc else x.shape
    first = min((first_place(lengths, parameter.shape) for parameter in aligned), default=x.ndim)
    last = max((last_place(lengths, parameter.shape) for parameter in aligned), default=-1)
    shape, inner = lengths[first : last + 1], int(np.prod(lengths[last + 1 :]))
    rows = int(np.prod(shape))
    numbers = prepare(key, [parameter.reshape(parameter.shape[first : last + 1]) for parameter in aligned], shape, named)

    def run(x: NDArray[Any], y: NDArray[Any]) -> None:
        if x.size:
            TABLE[key].run(x.size, flat(x, FLOAT32), numbers, flat(y, FLOAT32), inner, rows)

    return convert_in_order(run, x, FLOAT32, out, tuple(parameters))


def _aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the shape of an array that broadcasts to x, with as many dimensions as x has."""
    missing = rank - len(shape)
    return (*[1] * missing, *shape)[max(-missing, 0) :]


@created_cache
def _preparer(key: Key) -> Any:
    return get_or_compile(f"prepare_{key.form.replace(' ', '_')}", lambda: TABLE.kernels.prepare_kernel(key))


def prepare(
    key: Key, parameters: Sequence[NDArray[Any]], shape: tuple[int, ...], named: Mapping[str, str]
) -> NDArray[np.floating[Any]]:
    """Return the numbers of a format, for parameters that broadcast to a shape: the first number of each of its elements, then
    the second one of each, and so on. Raise ValueError if the parameters, whose names `named` has, are not valid."""
    rows = int(np.prod(shape))
    numbers = np.empty(rows * count_numbers(key), dtype_of(key))
    if not rows or not parameters:
        return numbers
    with np.errstate(all="ignore"):
        in_rows = np.stack([np.broadcast_to(parameter, shape) for parameter in parameters]).astype(np.float64).reshape(-1)
        are_valid = _preparer(key)(in_rows, numbers, rows)
    if not are_valid:
        form, columns = FORMS[key.form], in_rows.reshape(-1, rows)
        values = ", ".join(
            f"{named[name]} {columns[k][0]:g}" + (", ..." if np.any(columns[k] != columns[k][0]) else "")
            for k, name in enumerate(form.parameters)
        )
        raise ValueError(f"the format has {values}; expected {form.expected}")
    return numbers


def _convert_chunks(key: Key, x: Any, parameters: list[Any], named: Mapping[str, str]) -> Any:
    cuts, shapes = [], []
    for parameter in parameters:
        # Only the axes along which a parameter has several elements are cut as x is.
        lengths = _aligned(parameter.shape, x.ndim)
        axes = tuple(axis for axis, length in enumerate(lengths) if length != 1)
        cuts.append(Cut(parameter.reshape([lengths[axis] for axis in axes]), axes or None))
        shapes.append(axes)
    check_sizes(x, "x", sorted({axis for axes in shapes for axis in axes}))
    function = functools.partial(_convert_chunk, key, shapes, dict(named))
    (y,) = map_chunks(function, x, [Result(np.dtype(np.float32))], cuts)
    return y


def _convert_chunk(key: Key, shapes: list[tuple[int, ...]], named: Mapping[str, str], x: Any, *parameters: Any) -> Any:
    others = (tuple(axis for axis in range(x.ndim) if axis not in axes) for axes in shapes)
    return _convert(key, x, list(map(np.expand_dims, parameters, others)), named)
