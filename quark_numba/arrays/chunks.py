"""Calls on dask arrays, chunk by chunk, with lazy results: how operands are cut, and which chunks are refused, with the
messages. dask is imported only for such calls."""

from __future__ import annotations

import functools
import math
import operator
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..compiling.threads import on_one_thread


class Cut(NamedTuple):
    """A second or later operand of a call: a numpy or dask array, or None. `axes` are the axes of x to which the dimensions of
    the operand correspond. Along the axis of blocks, the operand has one element for `per` elements of x. With `axes` = None,
    the whole operand is passed with each chunk."""

    array: Any
    axes: tuple[int, ...] | None = None
    per: int = 1


class Result(NamedTuple):
    """A result of a call: an array of x's shape, with one element for `per` elements of x along the axis of blocks."""

    dtype: np.dtype[Any]
    per: int | Fraction = 1


def is_lazy(*values: Any) -> bool:
    """Return whether any of the values is a dask array."""
    module = sys.modules.get("dask.array")
    return module is not None and any(isinstance(value, module.Array) for value in values)


def check_is_of_numpy(array: Any, name: str) -> None:
    """Raise TypeError for a dask array whose chunks are not numpy arrays."""
    if type(array._meta) is not np.ndarray:
        kind = type(array._meta)
        expected = f"numpy chunks: write {name}.map_blocks(...) with a function that converts a chunk to a numpy array"
        raise TypeError(f"{name} is a dask array of {kind.__module__}.{kind.__qualname__}; expected {expected}")


def check_sizes(array: Any, name: str, axes: Iterable[int]) -> None:
    """Raise ValueError if a dask array has chunks of unknown size along one of the axes."""
    for axis in axes:
        if is_lazy(array) and math.isnan(array.shape[axis]):
            expected = f"known sizes: write {name}.compute_chunk_sizes()"
            raise ValueError(f"{name} has chunks of unknown size along axis {axis}; expected {expected}")


def map_chunks(
    function: Callable[..., Any],
    x: Any,
    results: Sequence[Result],
    operands: Sequence[Cut] = (),
    *,
    axis: int = 0,
    block: int = 1,
    name: str = "x",
) -> tuple[Any, ...]:
    """Return one lazy array for each of `results`: the results of ``function(chunk of x, chunks of the operands...)``. The
    function returns an array for one result, and a tuple of arrays for several. If no array is lazy, return the function's
    results.

    The operands are cut where x is cut. A block has `block` elements of x along `axis`.

    Raises
    ------
    ValueError
        If a chunk of x ends within a block, or if the size of a chunk is needed and unknown.
    """
    if not is_lazy(x, *(array for array, _, _ in operands)):
        made = function(x, *(array for array, _, _ in operands))
        return (made,) if len(results) == 1 else made
    import dask.array as da
    from dask.utils import funcname

    if not is_lazy(x):
        x = da.from_array(x, chunks=-1)
    if x.ndim:
        _check_blocks_are_whole(x, axis, block, name)
    dimensions = tuple(range(x.ndim))
    arguments: list[Any] = [x, dimensions]
    for array, axes, per in operands:
        if array is not None and axes is not None:
            array = _cut(array, [_numbers(x.chunks[number], per if number == axis else 1) for number in axes])
        arguments += [array, None if array is None else axes]  # without axes, dask gives each chunk the whole array
    common: dict[str, Any] = {"align_arrays": False, "concatenate": True, "token": funcname(function).strip("_")}
    on_chunk = functools.partial(on_one_thread, function)  # dask has its own threads
    if len(results) == 1:
        return (da.blockwise(on_chunk, dimensions, *arguments, **_kind(x, axis, results[0]), **common),)
    made = da.blockwise(on_chunk, dimensions, *arguments, **_kind(x, axis, Result(np.dtype(object))), **common)
    return tuple(
        da.blockwise(operator.itemgetter(part), dimensions, made, dimensions, **_kind(x, axis, result), **common)
        for part, result in enumerate(results)
    )


def _check_blocks_are_whole(x: Any, axis: int, block: int, name: str) -> None:
    """Raise ValueError if a chunk of a dask array ends within a block, unless that is the end of the array."""
    chunks = x.chunks[axis]
    if block == 1 or len(chunks) == 1:
        return
    check_sizes(x, name, [axis])
    ends = np.cumsum(chunks).tolist()
    for number, end in enumerate(ends):
        if end % block and end != ends[-1]:
            chunk = f"chunk {number} of {name} along axis {axis} ends at {end}, within a block of {block}"
            call = f"{name}.rechunk({{{axis}: {-(-max(chunks) // block) * block}}})"
            raise ValueError(f"{chunk}; expected ends at multiples of the block size: write {call}")


def _numbers(chunks: Sequence[int], block: int | Fraction) -> tuple[int, ...]:
    """Return the number of blocks in each chunk."""
    return tuple(-(-size // block) for size in chunks)


def _cut(array: Any, chunks: list[tuple[int, ...]]) -> Any:
    import dask.array as da

    if not math.prod(array.shape):  # dask does not rechunk empty arrays
        return da.empty(array.shape, chunks=chunks, dtype=array.dtype)
    return array.rechunk(chunks) if is_lazy(array) else da.from_array(array, chunks=chunks)


def _kind(x: Any, axis: int, result: Result) -> dict[str, Any]:
    adjusted = {axis: _numbers(x.chunks[axis], result.per)} if x.ndim and result.per != 1 else None
    return {"dtype": result.dtype, "meta": np.empty((0,) * x.ndim, result.dtype), "adjust_chunks": adjusted}


# distributed sends the string of an array's dtype. The string of this dtype is "<f1", which numpy does not know.
_WITHOUT_STRING = np.dtype(ml_dtypes.float8_e5m2)


def _serialize(serialize: Callable[..., Any], x: Any, context: Any = None) -> Any:
    """Return the header and the frames of an array. An array of that dtype is sent as uint8, and its dtype as a `_Dtype`."""
    if x.dtype != _WITHOUT_STRING:
        return serialize(x, context)
    header, frames = serialize(x.view(np.uint8), context)
    return {**header, "dtype": (1, pickle.dumps(_Dtype()))}, frames


class _Dtype:
    """An object that is unpickled as that dtype. Unpickling imports this module, so that the process can send the dtype on."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _dtype, ()


def _dtype() -> np.dtype[Any]:
    return _WITHOUT_STRING


def _teach_distributed() -> None:
    from distributed.protocol import dask_serialize
    from distributed.protocol.numpy import serialize_numpy_ndarray

    dask_serialize.register(np.ndarray, functools.partial(_serialize, serialize_numpy_ndarray))


if "distributed" in sys.modules:  # for instance in its workers
    _teach_distributed()
