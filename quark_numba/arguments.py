"""What calls on arrays do with their arguments before a kernel sees them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .element_types import ElementType


def index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None


def flat(array: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    """The array as the kernels take it: flat, contiguous, aligned, native byte order, storage dtype; copied if it must."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
        array = np.require(array, element_type.dtype, ["C", "A"])
    return array.reshape(-1).view(element_type.storage)


def array(value: Any, name: str, default: ElementType | None) -> NDArray[Any]:
    """`value` as an array. What has no dtype of its own, a Python number or list, becomes one of `default`."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from None
    if default is None or isinstance(value, np.generic) or not isinstance(value, (int, float, list, tuple)):
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


def _check_out(out: Any, shape: tuple[int, ...], element_type: ElementType) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; expected a numpy array")
    if out.dtype != element_type.dtype:
        raise TypeError(f"out has dtype {out.dtype}; expected {element_type.name}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected the shape of x, {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; expected a writeable array")


def output(
    out: Any, x: NDArray[Any], element_type: ElementType, others: tuple[NDArray[Any], ...] = ()
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The result, of x's shape: `out`, or a new array in x's memory order. Then the same with its dimensions in the order that
    kernels see, and what they are to write instead where `out` is laid out otherwise, or shares memory with x or the others.

    A Fortran-ordered x is the C-ordered one of reversed shape, and so is its result.
    """
    if out is not None:
        _check_out(out, x.shape, element_type)
    is_fortran = x.flags.fnc
    result = np.empty(x.shape, element_type.dtype, "F" if is_fortran else "C") if out is None else np.asarray(out)
    rows = written = result.T if is_fortran else result
    if out is not None and (not rows.flags.carray or any(np.may_share_memory(rows, each) for each in (x, *others))):
        written = np.empty(rows.shape, element_type.dtype)
    return result, rows, written
