"""`quantize`, `dequantize` and `quantize_dequantize` on arrays: check the arguments, select a kernel, run it."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, check_no_output, contiguous, element_type_of, index, output
from ..arrays.chunks import Cut, Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..compiling.threads import run_on_threads
from ..element_types import FLOAT32, INT32, UINT8, ElementType, find
from .dispatch import TABLE
from .granularity import BLOCK_SIZE, FAULTS, NO_FAULT, ZERO_POINT_SHAPE, Loop, inferred_block_size, loop_shape
from .key import PRECISIONS, Key, select
from .versions import DEFAULTS, LATEST_OPSET, VERSIONS, Operand, Operation, Version, types, version_of_opset

# Below this many elements one thread finishes before a second one wakes up.
_PARALLEL_SIZE = 1 << 17

# The plans of earlier calls, by signature, and the most that are kept.
_plans: dict[Any, _Plan] = {}
_MOST_PLANS = 4096

# Zero points of one element, as kernels take them, by their bytes, for each kind of conversion; and the most of a kind that are
# kept. Plans share them: their number does not grow with that of plans.
_zero_points: dict[Any, dict[bytes, NDArray[Any]]] = {}
_MOST_ZERO_POINTS = 256

# The types of names of element types that are equal only if they mean the same.
_NAMES = (str, type)

# Bits of the flags of numpy arrays.
_OWNS_DATA = 0x4
_FLAT = 0x101  # C-contiguous and aligned
_WRITTEN = _FLAT | _OWNS_DATA | 0x400  # and writeable

# Python numbers between these are float32 numbers, too.
_LEAST, _MOST = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)


def quantize(
    x: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeLike | str | int | None = None,
    quantized_dtype: DTypeLike | str | int | None = None,
    saturate: bool = True,
    precision: DTypeLike | str | int | None = None,
    opset: int | None = None,
    out: NDArray[Any] | None = None,
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return y = saturate(x / y_scale + y_zero_point), as QuantizeLinear of ONNX, opset 10 to 28, and ExtendedQuantizeLinear-1
    of com.amd.quark compute it.

    For integer types x / y_scale is rounded, half to even, before the zero point is added; NaN becomes the lowest value. For
    float types the result is rounded to nearest, ties to even; NaN stays NaN, except in the types that have none: it becomes 6
    in float4e2m1 and -0 in float6. Values beyond the finite range of the type, infinities included, saturate.

    Parameters
    ----------
    x : array_like of float32, float16, bfloat16 or int32, any shape, strides and memory order
    y_scale : array_like of float32, float16, bfloat16, float8e8m0 or int32
        Per tensor: one element. Per axis: one dimension, as long as x is along `axis`. Blocked: x's shape, except that the
        length along `axis` is the number of blocks.
    y_zero_point : array_like, optional
        Same shape as `y_scale`. Its dtype is the output's. Default: 0.
    axis : int
        The axis of a per-axis or blocked `y_scale`, -r..r-1. Ignored per tensor.
    block_size : int
        The number of elements along `axis` that share a scale; the last block may be shorter. 0, the default: not blocked, or
        the only size that fits a blocked `y_scale`, if there is only one.
    output_dtype : numpy dtype, name such as "bfloat16", or TensorProto number, optional
        The output's type if there is no zero point, or if the zero point has no dtype, such as a Python int. Default: uint8.
        One of uint8, int8, uint16, int16, uint32, int32, float16, bfloat16, uint4, int4, uint2, int2, float8e4m3fn,
        float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float6e2m3, float6e3m2, float4e2m1.
    quantized_dtype : optional
        Another name of `output_dtype`: the one it has in `quantize_dequantize`.
    saturate : bool
        False: values beyond the range of a float8 type become Inf, or NaN if the type has no Inf.
    precision : like `output_dtype`; float32, float16, bfloat16 or float64, optional
        The type to which x and `y_scale` are converted before the division, and to which the quotient is rounded. Default: the
        type of `y_scale`; float32 if that is float8e8m0, float64 if it is int32.
    opset : int, optional
        Accept only arguments that QuantizeLinear of this opset of ONNX accepts, 10..28. Default: accept those of every
        version, and of ExtendedQuantizeLinear.
    out : ndarray, optional
        Where to write the result: x's shape, the output's dtype.
    rechunk : bool
        True: where a chunk of a dask array ends within a block, move its end to the end of the block. False: raise
        ValueError.

    Returns
    -------
    ndarray of x's shape: `out`, or a new array in the memory order of x. 2-, 4- and 6-bit types have one element a byte, as
    in ml_dtypes. If an argument is a dask array, a lazy dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    signature = plan = None
    if type(axis) is int and type(block_size) is int and saturate is True and precision is None and opset is None:
        signature = _signature("quantize", x, y_scale, y_zero_point, axis, block_size, output_dtype, quantized_dtype)
        plan = _plans.get(signature)
    if plan:
        return plan.run(x, y_scale, y_zero_point, out)
    return _quantize(
        x,
        y_scale,
        y_zero_point,
        signature,
        axis=axis,
        block_size=block_size,
        output_dtype=output_dtype,
        quantized_dtype=quantized_dtype,
        saturate=saturate,
        precision=precision,
        opset=opset,
        out=out,
        rechunk=rechunk,
    )


@keeps_labels
def _quantize(
    x: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike | None,
    signature: Any,
    *,
    axis: Any,
    block_size: Any,
    output_dtype: Any,
    quantized_dtype: Any,
    saturate: Any,
    precision: Any,
    opset: Any,
    out: Any,
    rechunk: Any,
) -> NDArray[Any]:
    version = _version("quantize", opset)
    x_array = array(x, "x", FLOAT32)
    scale = array(y_scale, "y_scale", FLOAT32, is_scale=True)
    allowed = _types(version, "quantize", "quantized")
    quantized, zero_point = _quantized(allowed, "y_zero_point", y_zero_point, output_dtype, quantized_dtype)
    x_type = element_type_of(x_array.dtype, "x", _types(version, "quantize", "x"))
    scale_types = (x_type,) if version and version.scale_as_x else _types(version, "quantize", "scale")
    scale_type = element_type_of(scale.dtype, "y_scale", scale_types)
    saturated = _saturated(saturate)
    precision_type = None if precision is None else element_type_of(precision, "precision", PRECISIONS)
    if version:
        _check_attributes(
            version,
            axis=axis,
            block_size=block_size,
            output_dtype=quantized_dtype if output_dtype is None else output_dtype,
            saturate=saturate,
            precision=precision,
        )
    key = select("quantize", x_type, scale_type, quantized, quantized, saturate=saturated, precision=precision_type)
    parameters = _Parameters("y_scale", scale, "y_zero_point", zero_point, index(axis, "axis"), index(block_size, "block_size"))
    return _convert(version, key, x_array, parameters, out, rechunk, signature)


def dequantize(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeLike | str | int | None = None,
    opset: int | None = None,
    out: NDArray[Any] | None = None,
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return y = (x - x_zero_point) * x_scale, as DequantizeLinear of ONNX, opset 10 to 28, and ExtendedDequantizeLinear-1 of
    com.amd.quark compute it.

    The difference is exact for integers, then rounded to float32; the product is rounded to float32, and then to the
    output's type.

    Parameters
    ----------
    x : array_like of any type that `quantize` returns; any shape, strides and memory order
    x_scale : array_like of float32, float16, bfloat16 or float8e8m0
        Per tensor: one element. Per axis: one dimension, as long as x is along `axis`. Blocked: x's shape, except that the
        length along `axis` is the number of blocks.
    x_zero_point : array_like of x's dtype, optional
        Same shape as `x_scale`. Default: 0.
    axis : int
        The axis of a per-axis or blocked `x_scale`, -r..r-1. Ignored per tensor.
    block_size : int
        The number of elements along `axis` that share a scale; the last block may be shorter. 0, the default: not blocked, or
        the only size that fits a blocked `x_scale`, if there is only one.
    output_dtype : numpy dtype, name such as "bfloat16", or TensorProto number; float32, float16 or bfloat16, optional
        The output's type. Default: the type of `x_scale`, which then has to be float32, float16 or bfloat16.
    opset : int, optional
        Accept only arguments that DequantizeLinear of this opset of ONNX accepts, 10..28. Default: accept those of every
        version, and of ExtendedDequantizeLinear.
    out : ndarray, optional
        Where to write the result: x's shape, the output's dtype.
    rechunk : bool
        True: where a chunk of a dask array ends within a block, move its end to the end of the block. False: raise
        ValueError.

    Returns
    -------
    ndarray of x's shape: `out`, or a new array in the memory order of x. If an argument is a dask array, a lazy dask array; if
    x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    signature = plan = None
    if type(axis) is int and type(block_size) is int and opset is None:
        signature = _signature("dequantize", x, x_scale, x_zero_point, axis, block_size, output_dtype)
        plan = _plans.get(signature)
    if plan:
        return plan.run(x, x_scale, x_zero_point, out)
    return _dequantize(
        x,
        x_scale,
        x_zero_point,
        signature,
        axis=axis,
        block_size=block_size,
        output_dtype=output_dtype,
        opset=opset,
        out=out,
        rechunk=rechunk,
    )


@keeps_labels
def _dequantize(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None,
    signature: Any,
    *,
    axis: Any,
    block_size: Any,
    output_dtype: Any,
    opset: Any,
    out: Any,
    rechunk: Any,
) -> NDArray[Any]:
    version = _version("dequantize", opset)
    # Python integers become the type of the zero point; without one, int32.
    x_array = array(x, "x", find(getattr(x_zero_point, "dtype", None)) or INT32)
    quantized = element_type_of(x_array.dtype, "x", _types(version, "dequantize", "x"))
    scale = array(x_scale, "x_scale", FLOAT32, is_scale=True)
    scale_type = element_type_of(scale.dtype, "x_scale", _types(version, "dequantize", "scale"))
    zero_point = None
    if x_zero_point is not None:
        zero_point = array(x_zero_point, "x_zero_point", quantized)
        element_type_of(zero_point.dtype, "x_zero_point", (quantized,))
    y = element_type_of(
        scale_type.name if output_dtype is None else output_dtype, "output_dtype", _types(version, "dequantize", "y")
    )
    if version:
        _check_attributes(version, axis=axis, block_size=block_size, output_dtype=output_dtype)
    key = select("dequantize", quantized, scale_type, quantized, y)
    parameters = _Parameters("x_scale", scale, "x_zero_point", zero_point, index(axis, "axis"), index(block_size, "block_size"))
    return _convert(version, key, x_array, parameters, out, rechunk, signature)


def quantize_dequantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    quantized_dtype: DTypeLike | str | int | None = None,
    output_dtype: DTypeLike | str | int | None = None,
    saturate: bool = True,
    out: NDArray[Any] | None = None,
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return ``dequantize(quantize(x, scale, zero_point), scale, zero_point)``, computed in one step with the same bits. It is
    the operator QuantizeDequantizeLinear-1 of quark_numba.

    Parameters
    ----------
    x : array_like of float32, any shape, strides and memory order
    scale : array_like of float32
        Per tensor: one element. Per axis: one dimension, as long as x is along `axis`. Blocked: x's shape, except that the
        length along `axis` is the number of blocks.
    zero_point : array_like, optional
        Same shape as `scale`. Its dtype is the quantized type. Default: 0.
    axis : int
        The axis of a per-axis or blocked `scale`, -r..r-1. Ignored per tensor.
    block_size : int
        The number of elements along `axis` that share a scale; the last block may be shorter. 0, the default: not blocked, or
        the only size that fits a blocked `scale`, if there is only one.
    quantized_dtype : numpy dtype, name such as "bfloat16", or TensorProto number, optional
        The quantized type if there is no zero point, or if the zero point has no dtype, such as a Python int. Default: uint8.
        One of the output types of `quantize`.
    output_dtype : optional
        Another name of `quantized_dtype`: the one it has in `quantize`.
    saturate : bool
        False: values beyond the range of a float8 type become Inf, or NaN if the type has no Inf.
    out : ndarray of float32, optional
        Where to write the result: x's shape.
    rechunk : bool
        True: where a chunk of a dask array ends within a block, move its end to the end of the block. False: raise
        ValueError.

    Returns
    -------
    ndarray of float32, of x's shape: `out`, or a new array in the memory order of x. If an argument is a dask array, a lazy
    dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    signature = plan = None
    if type(axis) is int and type(block_size) is int and saturate is True:
        signature = _signature("quantize_dequantize", x, scale, zero_point, axis, block_size, output_dtype, quantized_dtype)
        plan = _plans.get(signature)
    if plan:
        return plan.run(x, scale, zero_point, out)
    return _quantize_dequantize(
        x,
        scale,
        zero_point,
        signature,
        axis=axis,
        block_size=block_size,
        quantized_dtype=quantized_dtype,
        output_dtype=output_dtype,
        saturate=saturate,
        out=out,
        rechunk=rechunk,
    )


@keeps_labels
def _quantize_dequantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None,
    signature: Any,
    *,
    axis: Any,
    block_size: Any,
    quantized_dtype: Any,
    output_dtype: Any,
    saturate: Any,
    out: Any,
    rechunk: Any,
) -> NDArray[Any]:
    x_array, scale_array = array(x, "x", FLOAT32), array(scale, "scale", FLOAT32, is_scale=True)
    for name, each in (("x", x_array), ("scale", scale_array)):
        element_type_of(each.dtype, name, (FLOAT32,))
    allowed = types("quantize_dequantize", "quantized")
    quantized, zeros = _quantized(allowed, "zero_point", zero_point, output_dtype, quantized_dtype)
    key = select("quantize_dequantize", FLOAT32, FLOAT32, quantized, FLOAT32, saturate=_saturated(saturate))
    parameters = _Parameters("scale", scale_array, "zero_point", zeros, index(axis, "axis"), index(block_size, "block_size"))
    return _convert(None, key, x_array, parameters, out, rechunk, signature)


class _Parameters(NamedTuple):
    """The scale, zero point, axis and block size of a call, and the names of its arguments for messages."""

    scale_name: str
    scale: Any
    zero_point_name: str
    zero_point: Any
    axis: int
    block_size: int


def _quantized(
    allowed: tuple[ElementType, ...], zero_point_name: str, zero_point: Any, output_dtype: Any, quantized_dtype: Any
) -> tuple[ElementType, NDArray[Any] | None]:
    """Return the quantized type, and the zero point as an array of that type."""
    quantized = UINT8
    for name, given in (("output_dtype", output_dtype), ("quantized_dtype", quantized_dtype)):
        if given is not None:
            quantized = element_type_of(given, name, allowed)
            allowed = (quantized,)
    if zero_point is None:
        return quantized, None
    zeros = array(zero_point, zero_point_name, quantized)
    return element_type_of(zeros.dtype, zero_point_name, allowed), zeros


def _saturated(saturate: Any) -> bool:
    if not isinstance(saturate, (bool, np.bool_, int)) or saturate not in (0, 1):
        raise ValueError(f"saturate is {saturate!r}; expected True or False")
    return bool(saturate)


def _version(operation: Operation, opset: Any) -> Version | None:
    if opset is None:
        return None
    version = version_of_opset(operation, index(opset, "opset"))
    if version is None:
        raise ValueError(f"opset is {opset}; expected {VERSIONS[0].since_version}..{LATEST_OPSET}")
    return version


def _types(version: Version | None, operation: Operation, operand: Operand) -> tuple[ElementType, ...]:
    return getattr(version, operand) if version else types(operation, operand)


def _check_attributes(version: Version, **attributes: Any) -> None:
    """Raise ValueError if an attribute that the version lacks is given and is not the default."""
    for name, value in attributes.items():
        if name not in version.attributes and value is not None and value != DEFAULTS[name]:
            raise ValueError(f"{name} is {value!r}; {version.name}-{version.since_version} has no such attribute")


def _signature(
    operation: Operation, x: Any, scale: Any, zero_point: Any, axis: int, block_size: int, output_dtype: Any, other: Any = None
) -> Any:
    """Return what a call's plan depends on: the operation, the options, and the dtypes and shapes of the arrays. None: the call
    has no plan, as an argument is something else than a numpy array, x has another memory order than C's, or an option is given
    in an unusual way. Scales may be numbers."""
    if (
        type(x) is not np.ndarray
        or x.flags.num & _FLAT != _FLAT
        or not (output_dtype is None or type(output_dtype) in _NAMES)
        or not (other is None or type(other) in _NAMES)
    ):
        return None
    of_scale: Any = None
    if type(scale) is np.ndarray:
        of_scale = scale.dtype, scale.shape
    elif type(scale) is not np.float32 and not (type(scale) is float and _LEAST <= scale <= _MOST):
        return None
    if zero_point is None:
        return operation, axis, block_size, output_dtype, other, x.dtype, x.shape, of_scale
    if type(zero_point) is not np.ndarray:
        return None
    of_zero_point = zero_point.dtype, zero_point.shape
    return operation, axis, block_size, output_dtype, other, x.dtype, x.shape, of_scale, of_zero_point


class _Plan:
    """How arrays of certain dtypes and shapes are converted. It is decided by the first call, and kept for others like it.

    Parameters
    ----------
    key : Key
        That of the kernel.
    loop : Loop
    scale_dtype : numpy dtype
    zero_point_dtype : numpy dtype, optional
        None: the call has no zero point.
    """

    def __init__(self, key: Key, loop: Loop, scale_dtype: Any, zero_point_dtype: Any) -> None:
        self.key, self.kernel, self.loop = key, TABLE[key], np.array(loop, np.int64)
        self.row = loop.inner if loop.vary else 0  # parameters that vary within a loop are repeated up to this length
        self.rounds_scale = scale_dtype == INT32.dtype and key.precision.bits < 32
        self.is_packed = zero_point_dtype is not None and key.quantized.bits < 8
        self.zeros = np.zeros(1, key.zero_point_dtype)
        self.zero_points = _zero_points.setdefault((key.quantized, zero_point_dtype, key.zero_point_dtype), {})
        # None: an array has the dtype that the kernel takes.
        self.scale_dtype = None if scale_dtype == key.scale_dtype else np.dtype(key.scale_dtype)
        self.zero_point_dtype = None if zero_point_dtype == key.zero_point_dtype else np.dtype(key.zero_point_dtype)
        self.x_storage, self.y_storage = (None if each.storage == each.dtype else each.storage for each in (key.x, key.y))
        self.y_dtype = key.y.dtype

    def run(self, x: Any, scale: Any, zero_point: Any, out: Any) -> NDArray[Any]:
        """Return y for a C-contiguous x: `out`, or a new array."""
        if type(scale) is not np.ndarray:
            number, scale = scale, np.empty(1, np.float32)
            scale[0] = number
        if out is None:
            y = np.empty(x.shape, self.y_dtype)
            self.convert(x, scale, zero_point, y)
            return y
        if (
            type(out) is np.ndarray
            and out.flags.num & _WRITTEN == _WRITTEN
            and out.dtype == self.y_dtype
            and out.shape == x.shape
            and out is not x
            and x.flags.num & _OWNS_DATA  # then arrays that are not the same share no memory
            and scale.flags.num & _OWNS_DATA
            and out is not scale
            and (zero_point is None or (zero_point.flags.num & _OWNS_DATA and out is not zero_point))
        ):
            self.convert(x, scale, zero_point, out)
            return out
        _, rows, written = output(out, x, self.key.y, (scale,) if zero_point is None else (scale, zero_point))
        self.convert(x, scale, zero_point, written)
        if written is not rows:
            rows[...] = written
        return out

    def convert(self, x: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any] | None, y: NDArray[Any]) -> None:
        """Write y for a C-contiguous x to a C-contiguous array."""
        if zero_point is None:
            zero_point = self.zeros
        elif zero_point.size == 1:
            known = self.zero_points.get(zero_point.tobytes())
            zero_point = self._kept(zero_point) if known is None else known
        else:
            zero_point = self._converted(zero_point) if zero_point.view(f"u{zero_point.itemsize}").any() else self.zeros
        if self.rounds_scale:
            scale = _to_odd_float32(scale.astype(np.float64))  # because the kernel rounds again
        if self.scale_dtype or scale.size > 1:
            scale = _flat(scale, self.scale_dtype)
        elif scale.ndim != 1:
            scale = scale.ravel()  # a view, and in less time than by `reshape`
        if self.row and 0 < scale.size < self.row:
            scale = np.resize(scale, self.row)
            if zero_point.size > 1:
                zero_point = np.resize(zero_point, self.row)
        if x.ndim != 1:
            x, y = x.ravel(), y.ravel()
        if self.x_storage:
            x = x.view(self.x_storage)
        if self.y_storage:
            y = y.view(self.y_storage)
        if x.size < _PARALLEL_SIZE or not run_on_threads(
            functools.partial(self.kernel.parallel, x, scale, zero_point, y, self.loop)
        ):
            self.kernel.serial(x, scale, zero_point, y, self.loop, 0)

    def _kept(self, zero_point: NDArray[Any]) -> NDArray[Any]:
        """Return a zero point of one element as the kernel takes it, and keep it."""
        if len(self.zero_points) >= _MOST_ZERO_POINTS:
            self.zero_points.clear()
        return self.zero_points.setdefault(zero_point.tobytes(), self._converted(zero_point))

    def _converted(self, zero_point: NDArray[Any]) -> NDArray[Any]:
        if self.is_packed:
            # Ignore the bits above a code. ml_dtypes takes some of them for the sign of float4 and float6.
            zero_point = self.key.quantized.byte_values[zero_point.view(np.uint8)]
        converted = _flat(zero_point, self.zero_point_dtype)
        return converted.copy() if np.may_share_memory(converted, zero_point) else converted


def _convert(
    version: Version | None,
    key: Key,
    x: NDArray[Any],
    parameters: _Parameters,
    out: NDArray[Any] | None,
    rechunk: bool = False,
    signature: Any = None,
) -> NDArray[Any]:
    """Allocate the result unless `out` is given, run the kernel, and return the result. For dask arrays the result is lazy.
    Keep the plan for calls with the same signature."""
    scale, zero_point = parameters.scale, parameters.zero_point
    if is_lazy(x, scale, zero_point):
        check_no_output(out)
        return _convert_chunks(version, key, x, parameters, rechunk)
    if version and key.quantized is INT32 and zero_point is not None and np.any(zero_point):
        name = f"{version.name}-{version.since_version}"
        raise ValueError(f"{parameters.zero_point_name} is not zero; expected zeros for int32 in {name}")
    loop = _loop(version, x.shape, parameters)
    result, y_rows, y = output(out, x, key.y, (scale,) if zero_point is None else (scale, zero_point))
    x_rows = x
    if x.flags.fnc:  # work on the transposed array, which is C-contiguous
        x_rows, scale = x.T, scale.T
        zero_point = None if zero_point is None else zero_point.T
        transposed = parameters._replace(scale=scale, zero_point=zero_point, axis=~parameters.axis)
        loop = _loop(None, x_rows.shape, transposed)
    plan = _Plan(key, loop, scale.dtype, None if zero_point is None else zero_point.dtype)
    if signature and version is None and x.dtype.isnative:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[signature] = plan
    plan.convert(contiguous(x_rows, key.x), scale, zero_point, y)
    if y is not y_rows:
        y_rows[...] = y
    return result if out is None else out


def _convert_chunks(version: Version | None, key: Key, x: Any, parameters: _Parameters, rechunk: bool) -> Any:
    """Return the result of `_convert` as a lazy dask array, computed chunk by chunk."""
    scale_name, scale, zero_point_name, zero_point, axis, block_size = parameters
    axes, block = None, 1
    zero_points = 1 if zero_point is None else zero_point.size
    is_per_tensor = scale.size == zero_points == 1 and not (block_size > 0 and scale.ndim == x.ndim)
    if not is_per_tensor:
        for name, each in ((scale_name, scale), (zero_point_name, zero_point)):
            check_sizes(each, name, () if each is None else range(each.ndim))
        if -x.ndim <= axis < x.ndim:
            axis %= x.ndim
            axes = (axis,) if scale.ndim == 1 else tuple(range(x.ndim))
            check_sizes(x, "x", axes)
    loop = _loop(version, x.shape, parameters)  # for the whole array: this finds every fault of the shapes
    if not is_per_tensor:
        block = block_size or loop.block
        block_size = block if block > 1 or scale.ndim > 1 else 0
    of_chunk = parameters._replace(scale=None, zero_point=None, axis=axis, block_size=block_size)
    (y,) = map_chunks(
        functools.partial(_convert_chunk, version, key, of_chunk),
        x,
        [Result(key.y.dtype)],
        [Cut(scale, axes, block), Cut(zero_point, axes, block)],
        axis=axis if axes else 0,
        block=block,
        rechunk=rechunk,
    )
    return y


def _convert_chunk(version: Version | None, key: Key, parameters: _Parameters, x: Any, scale: Any, zero_point: Any) -> Any:
    return _convert(version, key, x, parameters._replace(scale=scale, zero_point=zero_point), None)


def _loop(version: Version | None, x_shape: tuple[int, ...], parameters: _Parameters) -> Loop:
    """Return the loop for these shapes. Raises ValueError if they do not fit."""
    scale_name, scale, zero_point_name, zero_point, axis, block_size = parameters
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; expected a positive integer, or 0")
    if version is None and block_size == 0 and scale.size == 1 and (zero_point is None or zero_point.size == 1):
        return Loop(1, 1, math.prod(x_shape), 1, False)  # per tensor: a short cut to the result of the code below
    zero_point_shape = scale.shape if zero_point is None else zero_point.shape
    unclear, inferred = NO_FAULT, block_size
    if version is None and block_size == 0:
        unclear, inferred = inferred_block_size(x_shape, scale.shape, axis)
    fault, loop = loop_shape(x_shape, scale.shape, zero_point_shape, axis, inferred)
    if fault in (NO_FAULT, BLOCK_SIZE):
        fault = unclear or fault
    if version and not fault:
        # A version accepts less than `loop_shape`. Runtimes treat a one-dimensional array of one element as a scalar.
        scalar = scale.shape in ((), (1,))
        dimensions = 0 if scalar else scale.ndim
        if dimensions > (block_size > 0 and len(x_shape)) and dimensions > ("axis" in version.attributes):
            expected = "a scalar, or one dimension, or a block_size" if "axis" in version.attributes else "a scalar"
            name = f"{version.name}-{version.since_version}"
            raise ValueError(f"{scale_name} has shape {scale.shape}; {name} expects {expected}")
        if zero_point_shape != scale.shape and not (scalar and zero_point_shape in ((), (1,))):
            fault = ZERO_POINT_SHAPE
    if fault:
        raise ValueError(
            FAULTS[fault].format(
                x="x",
                x_shape=x_shape,
                scale=scale_name,
                scale_shape=scale.shape,
                zero_point=zero_point_name,
                zero_point_shape=zero_point_shape,
                axis=axis,
                block_size=block_size,
            )
        )
    return loop


def _flat(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return an array in one dimension, contiguous, and of a dtype; None: it has that dtype."""
    if dtype is not None:
        array = array.astype(dtype, "C")
    elif array.size > 1 and not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array if array.ndim == 1 else array.reshape(-1)


def _to_odd_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the values rounded to odd: an inexact value becomes the one of its two float32 neighbours whose last bit is set.
    Rounding that to fewer bits has the same result as rounding the value itself."""
    nearest = values.astype(np.float32)
    even = (nearest != values) & (nearest.view(np.uint32) % 2 == 0)
    towards = np.where(values > nearest, np.inf, -np.inf).astype(np.float32)
    return np.where(even, np.nextafter(nearest, towards), nearest)
