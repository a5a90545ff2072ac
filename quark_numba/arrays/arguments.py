"""Checks and conversions of the arguments of calls on arrays, with the texts of their errors: numbers, element types and their
other names, arrays in the memory of a device, and `out`."""

from __future__ import annotations

import copyreg
import difflib
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..element_types import ELEMENT_TYPES, FLOAT32, ElementType, names
from ..element_types.operands import INT64, check_has_no_mask, find_any
from ..errors import reraise_of_signal_handler
from .chunks import check_is_of_numpy, is_lazy
from .labels import unlabelled

# Other names of element types: those of the OCP Microscaling specification, which Quark uses for block formats.
MX_NAMES = {
    "fp8_e5m2": "float8e5m2",
    "fp8_e4m3": "float8e4m3fn",
    "fp6_e3m2": "float6e3m2",
    "fp6_e2m3": "float6e2m3",
    "fp4_e2m1": "float4e2m1",
}


# Element types are compared by identity, so one is unpickled as that of the process's own table.
copyreg.pickle(ElementType, lambda element_type: (find_any, (element_type.name,)))  # type: ignore[return-value,arg-type]


def index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None


def real(value: Any, name: str) -> float:
    """Return the float32 nearest to a number."""
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; expected a number")
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except OverflowError:
        raise ValueError(f"{name} is beyond float64; expected a float32") from None


def float32_arrays(**values: Any) -> list[NDArray[np.float32]]:
    """Return the named arguments as float32 arrays. Raise TypeError for arrays of other types and for dask arrays."""
    arrays = []
    for name, value in values.items():
        arrays.append(array(value, name, FLOAT32))
        if is_lazy(arrays[-1]):
            raise TypeError(f"{name} is a dask array; expected a numpy array: write {name}.compute()")
        element_type_of(arrays[-1].dtype, name, (FLOAT32,))
    return arrays


def element_type_of(specification: Any, name: str, allowed: Collection[ElementType]) -> ElementType:
    """Return the element type that an argument specifies, by any of its names. Raise TypeError if it is not in `allowed`."""
    element_type = find_any(MX_NAMES.get(specification, specification) if isinstance(specification, str) else specification)
    if element_type is None or element_type not in allowed:
        in_order = [known for known in (*ELEMENT_TYPES, INT64) if known in allowed]
        hint = "" if element_type else did_you_mean(specification, [known.name for known in in_order])
        if specification == np.dtype(np.float64) and isinstance(specification, np.dtype) and FLOAT32 in allowed:
            hint = f": write {name}.astype(np.float32)"
        given = getattr(specification, "__name__", specification)
        raise TypeError(f"{name} has element type {given}; expected {names(in_order)}{hint}")
    return element_type


def did_you_mean(given: Any, allowed: Iterable[str]) -> str:
    """Return the end of a message: the allowed name that is spelled most like `given`, or "" if no name is similar."""
    close = difflib.get_close_matches(given, allowed, 1, 0.7) if isinstance(given, str) else []
    return f"; did you mean {close[0]}?" if close else ""


def flat(array: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    """Return the array as kernels take it: flat, contiguous and aligned, in native byte order and storage dtype. It is copied
    only if necessary."""
    return contiguous(array, element_type).reshape(-1).view(element_type.storage)


def contiguous(array: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    """Return the array contiguous in C order, aligned, and in native byte order. It is copied only if necessary."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    return np.require(array, element_type.dtype, ["C", "A"])


def array(value: Any, name: str, default: ElementType | None) -> NDArray[Any]:
    """Return `value` as a numpy array. A dask array is returned unchanged.

    A Python number, an np.int64, a list or a range is converted to `default`. An array on a device or in pieces is refused.

    Raise TypeError or ValueError if the value cannot be converted.
    """
    if type(value) is np.ndarray:
        return value
    check_has_no_mask(value, name)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    value = unlabelled(value)
    if is_lazy(value):
        check_is_of_numpy(value, name)
        return value
    _check_is_here(value, name)
    try:
        has_dlpack_only = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        view: NDArray[Any] = np.from_dlpack(value) if has_dlpack_only else np.asanyarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from None
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{name} is a {_kind(value)}, which numpy cannot convert to an array: {error}") from None
    check_has_no_mask(view, name)  # as a netCDF4.Variable gives it
    array = np.asarray(view)
    if default is None or not isinstance(value, (int, float, list, tuple, range, np.int64)):
        return array
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected numbers of {default.name}")
    with np.errstate(all="ignore"):
        cast = array.astype(default.dtype)
        back = cast.astype(np.float64)
        wrong = back != array if default.is_integer else np.isfinite(array) & ~np.isfinite(back)
        if not default.is_integer and default.nan_substitute is not None:
            wrong = ~(np.abs(array) <= default.highest)
    if np.any(wrong):
        raise ValueError(f"{name} is {value}; expected {default.name}, {default.lowest}..{default.highest}")
    return cast


# The numbers of DLPack for memory of the CPU: not pinned, pinned by CUDA, pinned by ROCm.
_CPU_MEMORY = (1, 3, 11)


def _check_is_here(value: Any, name: str) -> None:
    """Raise TypeError for an array that numpy would have to copy from a device, compute, or read as a whole."""
    if hasattr(value, "__dlpack_device__") and _memory(value) not in _CPU_MEMORY:
        given = f"a {_kind(value)} on the device {getattr(value, 'device', _memory(value))}"
        how = f"{name}.cpu() of torch, {name}.get() of cupy, jax.device_get({name})"
        raise TypeError(f"{name} is {given}; expected an array in the CPU's memory: write {how}")
    if hasattr(type(value), "__dask_graph__"):
        raise TypeError(f"{name} is a {_kind(value)}; expected an array: write {name}.compute(), or make a dask array of it")
    if hasattr(value, "chunks"):
        how = f"{name}[...] to read all of it, or dask.array.from_array({name})"
        raise TypeError(f"{name} is a {_kind(value)}, which is kept in pieces; expected an array: write {how}")


def _memory(value: Any) -> Any:
    """Return the number of DLPack for the kind of memory that an object is in, or None if the object does not know it."""
    try:
        return value.__dlpack_device__()[0]
    except Exception as error:  # a library may raise anything
        reraise_of_signal_handler(error)
        return None


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def check_no_output(out: Any) -> None:
    if out is not None:
        raise TypeError("out is for numpy arrays; expected None, because the result for a dask array is lazy")


def _check_out(out: Any, shape: tuple[int, ...], element_type: ElementType) -> None:
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"out is a {type(out).__name__}; expected a numpy array")
    if out.dtype != element_type.dtype:
        raise TypeError(f"out has dtype {out.dtype}; expected {element_type.name}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected the shape of x, {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; expected a writeable array")


def convert_in_order(
    convert: Callable[[NDArray[Any], NDArray[Any]], None],
    x: NDArray[Any],
    element_type: ElementType,
    out: Any,
    others: tuple[NDArray[Any], ...] = (),
) -> NDArray[Any]:
    """Return the result of ``convert(x, y)``, which writes a C-contiguous y: `out`, or a new array in the memory order of x.

    A Fortran-ordered x, and the result, are passed as the C-ordered arrays of the reversed shape. If `out` has another memory
    layout, or shares memory with x or one of `others`, `convert` writes a new array, which is copied to `out`."""
    if out is not None:
        _check_out(out, x.shape, element_type)
    is_fortran = x.flags.fnc
    result = np.empty(x.shape, element_type.dtype, "F" if is_fortran else "C") if out is None else np.asarray(out)
    rows = written = result.T if is_fortran else result
    if out is not None and (not rows.flags.carray or any(np.may_share_memory(rows, read) for read in (x, *others))):
        written = np.empty(rows.shape, element_type.dtype)
    convert(x.T if is_fortran else x, written)
    if written is not rows:
        rows[...] = written
    return result if out is None else out
