"""`quantize`, `dequantize` and `quantize_dequantize` on arrays: their arguments and defaults, the version of an operator that
`opset` means, and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, element_type_of, index
from ..checks import check_flags
from ..element_types import FLOAT32, INT32, UINT8, ElementType, find
from .conversions import Conversion, planned
from .granularity import Names
from .key import PRECISIONS, select
from .versions import DEFAULTS, LATEST_OPSET, VERSIONS, Operation, Role, Version, types, version_of_opset


@planned
def quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | str | int | None = None,
    saturate: bool = True,
    precision: DTypeLike | str | int | None = None,
    opset: int | None = None,
    out: NDArray[Any] | None = None,
) -> Conversion:
    """Return y = saturate(x / scale + zero_point), as QuantizeLinear of ONNX, opset 10 to 28, and ExtendedQuantizeLinear-1
    of com.amd.quark compute it.

    For integer types x / scale is rounded, half to even, before the zero point is added; NaN becomes the lowest value. For
    float types the result is rounded to nearest, ties to even; NaN stays NaN, except in the types that have none: it becomes 6
    in float4e2m1 and -0 in float6. Values beyond the finite range of the type, infinities included, saturate.

    Parameters
    ----------
    x : array_like of float32, float16, bfloat16 or int32, any shape, strides and memory order
    scale : array_like of float32, float16, bfloat16, float8e8m0 or int32
        Per tensor: one element. Per axis: one dimension, as long as x is along `axis`. Blocked: x's shape, except that the
        length along `axis` is the number of blocks.
        Any number of its type is valid, as in a model, and divides as IEEE 754 says. Divided by 0, numbers become infinite and
        saturate, and 0 becomes NaN. A number of Python is first rounded to float32, which may give 0.
    zero_point : array_like, optional
        Same shape as `scale`. Its dtype is that of the codes. Default: 0.
    axis : int
        The axis of a per-axis or blocked `scale`, -r..r-1. Ignored per tensor.
    block_size : int
        The number of elements along `axis` that share a scale; the last block may be shorter. 0, the default, is for a scale
        that is not blocked, and for a blocked one that only one size fits.
    dtype : numpy dtype, name such as "bfloat16", or TensorProto number, optional
        The type of the codes if there is no zero point, or if that has no dtype, such as a Python int. Default: uint8. One of
        uint8, int8, uint16, int16, uint32, int32, float16, bfloat16, uint4, int4, uint2, int2, float8e4m3fn,
        float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float6e2m3, float6e3m2, float4e2m1.
    saturate : bool
        If it is False, values beyond the range of a float8 type become Inf, or NaN if the type has no Inf.
    precision : like `dtype`; float32, float16, bfloat16 or float64, optional
        The type to which x and `scale` are converted before the division, and to which the quotient is rounded. Default: the
        type of `scale`; float32 if that is float8e8m0, float64 if it is int32.
    opset : int, optional
        Accept only arguments that QuantizeLinear of this opset of ONNX accepts, 10..28. Default: accept those of every
        version, and of ExtendedQuantizeLinear.
    out : ndarray, optional
        Where to write the result: x's shape, the dtype of the codes.

    Returns
    -------
    ndarray of x's shape: `out`, or a new array in the memory order of x. 2-, 4- and 6-bit types have one element a byte, as
    in ml_dtypes. If an argument is a dask array, a lazy dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message names it, and says what was given and what is expected. Then nothing has been
        written.
    """
    options = {"axis": axis, "block_size": block_size, "dtype": dtype, "saturate": saturate, "precision": precision, "out": out}
    return make_conversion(Names(), "quantize", _version("quantize", opset), x, scale, zero_point, **options)


@planned
def dequantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DTypeLike | str | int | None = None,
    opset: int | None = None,
    out: NDArray[Any] | None = None,
) -> Conversion:
    """Return y = (x - zero_point) * scale, as DequantizeLinear of ONNX, opset 10 to 28, and ExtendedDequantizeLinear-1 of
    com.amd.quark compute it.

    The difference is exact for integers, then rounded to float32; the product is rounded to float32, and then to the
    output's type.

    Parameters
    ----------
    x : array_like of any type that `quantize` returns; any shape, strides and memory order
    scale : array_like of float32, float16, bfloat16 or float8e8m0
        In the shapes that `quantize` takes. Any number of its type is valid, as in a model, and multiplies as IEEE 754 says. A
        number of Python is first rounded to float32, which may give 0.
    zero_point : array_like of x's dtype, optional
        Same shape as `scale`. Default: 0.
    output_dtype : numpy dtype, name such as "bfloat16", or TensorProto number; float32, float16 or bfloat16, optional
        The output's type. Default: the type of `scale`, which then has to be float32, float16 or bfloat16.
    opset : int, optional
        Accept only arguments that DequantizeLinear of this opset of ONNX accepts, 10..28. Default: accept those of every
        version, and of ExtendedDequantizeLinear.
    out : ndarray, optional
        Where to write the result: x's shape, the output's dtype.
    axis, block_size
        As in `quantize`.

    Returns
    -------
    ndarray of x's shape: `out`, or a new array in the memory order of x. If an argument is a dask array, a lazy dask array; if
    x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message names it, and says what was given and what is expected. Then nothing has been
        written.
    """
    names, options = Names(dtype="output_dtype"), {"axis": axis, "block_size": block_size, "dtype": output_dtype, "out": out}
    return make_conversion(names, "dequantize", _version("dequantize", opset), x, scale, zero_point, **options)


@planned
def quantize_dequantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | str | int | None = None,
    saturate: bool = True,
    out: NDArray[Any] | None = None,
) -> Conversion:
    """Return ``dequantize(quantize(x, scale, zero_point), scale, zero_point)``, computed in one step with the same bits. It is
    the operator QuantizeDequantizeLinear-1 of quark_numba.

    Parameters
    ----------
    x : array_like of float32, any shape, strides and memory order
    scale : array_like of float32
        In the shapes that `quantize` takes. Any number is valid, as there. A scale of 0 gives 0 or -0 for all integer types.
    out : ndarray of float32, optional
        Where to write the result: x's shape.
    zero_point, axis, block_size, dtype, saturate
        As in `quantize`.

    Returns
    -------
    ndarray of float32, of x's shape: `out`, or a new array in the memory order of x. If an argument is a dask array, a lazy
    dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message names it, and says what was given and what is expected. Then nothing has been
        written.
    """
    options = {"axis": axis, "block_size": block_size, "dtype": dtype, "saturate": saturate, "out": out}
    return make_conversion(Names(), "quantize_dequantize", None, x, scale, zero_point, **options)


def make_conversion(
    names: Names,
    operation: Operation,
    version: Version | None,
    x: Any,
    scale: Any,
    zero_point: Any,
    *,
    axis: Any = DEFAULTS["axis"],
    block_size: Any = DEFAULTS["block_size"],
    dtype: Any = None,
    saturate: Any = True,
    precision: Any = None,
    out: Any = None,
) -> Conversion:
    """Return the conversion of a call with these arguments, which have these names in messages. `dtype` specifies the type of
    the codes, or of y for "dequantize". Raise TypeError or ValueError if an argument is invalid."""

    def allowed(role: Role) -> tuple[ElementType, ...]:
        return getattr(version, role) if version else types(operation, role)

    is_dequantize = operation == "dequantize"
    # Python integers become codes of the type of the zero point; without one, int32.
    default = (find(getattr(zero_point, "dtype", None)) or INT32) if is_dequantize else FLOAT32
    x, scale = array(x, names.x, default), array(scale, names.scale, FLOAT32)
    x_type = element_type_of(x.dtype, names.x, allowed("x"))
    scale_types = (x_type,) if version and version.scale_as_x else allowed("scale")
    scale_type = element_type_of(scale.dtype, names.scale, scale_types)
    codes, code_types = (x_type, (x_type,)) if is_dequantize else (UINT8, allowed("quantized"))
    if dtype is not None and not is_dequantize:
        codes = element_type_of(dtype, names.dtype, code_types)
        code_types = (codes,)
    if zero_point is not None:
        zero_point = array(zero_point, names.zero_point, codes)
        codes = element_type_of(zero_point.dtype, names.zero_point, code_types)
    y = codes if operation == "quantize" else FLOAT32
    if is_dequantize:
        y = element_type_of(scale_type.name if dtype is None else dtype, names.dtype, allowed("y"))
    check_flags(saturate=saturate)
    precision_type = None if precision is None else element_type_of(precision, "precision", PRECISIONS)
    if version:
        given = {"axis": axis, "block_size": block_size, "output_dtype": dtype, "saturate": saturate, "precision": precision}
        _check_attributes(version, given, names)
    key = select(operation, x_type, scale_type, codes, y, saturate=bool(saturate), precision=precision_type)
    axis, block_size = index(axis, "axis"), index(block_size, "block_size")
    return Conversion(names, version, key, x, scale, zero_point, axis, block_size, out)


def _version(operation: Operation, opset: Any) -> Version | None:
    if opset is None:
        return None
    version = version_of_opset(operation, index(opset, "opset"))
    if version is None:
        raise ValueError(f"opset is {opset}; expected {VERSIONS[0].since_version}..{LATEST_OPSET}")
    return version


def _check_attributes(version: Version, attributes: Mapping[str, Any], names: Names) -> None:
    """Raise ValueError if an attribute that the version lacks is given and is not the default."""
    for name, value in attributes.items():
        if name not in version.attributes and value is not None and value != DEFAULTS[name]:
            argument = names.dtype if name == "output_dtype" else name
            raise ValueError(f"{argument} is {value!r}; {version.name}-{version.since_version} has no attribute {name}")
