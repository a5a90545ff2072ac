"""The labels of DataArrays of xarray, which calls on arrays keep: names of dimensions as `axis`, and those of results, such as
`_block`. xarray is not imported: a caller with a DataArray has done so."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

Call = TypeVar("Call", bound=Callable[..., Any])

# Suffixes for the name of the dimension along blocks: of values per element, per block, and per sub-block.
_SUFFIXES = ("", "_block", "_sub_block")


def unlabelled(value: Any) -> Any:
    """Return the numpy or dask array in a DataArray; return anything else unchanged."""
    return value.data if _is_labelled(value) else value


def _is_labelled(value: Any) -> bool:
    module = sys.modules.get("xarray")
    return module is not None and isinstance(value, module.DataArray)


def keeps_labels(call: Call) -> Call:
    """Return `call` with support for DataArrays. If its first argument is a DataArray or a tuple of them, its results are
    DataArrays with the same name, dimensions, coordinates and attributes, and `axis` may be the name of a dimension. A result
    with a value per block has a new dimension in place of that one."""
    parameters = inspect.signature(call).parameters
    first = next(iter(parameters))
    default = parameters["axis"].default if "axis" in parameters else 1

    @functools.wraps(call)
    def labelled(*arguments: Any, **named: Any) -> Any:
        if "xarray" not in sys.modules:
            return call(*arguments, **named)
        given: Any = arguments[0] if arguments else named.get(first)
        x: Any = given[0] if isinstance(given, tuple) and given else given
        if not _is_labelled(x):
            return call(*arguments, **named)
        axis = named.get("axis", default)
        if isinstance(axis, str):
            if axis not in x.dims:
                raise ValueError(f"axis is {axis!r}; expected an integer, or a dimension of {first}: {', '.join(x.dims)}")
            axis = named["axis"] = x.dims.index(axis)
        others = [*arguments[1:], *(value for name, value in named.items() if name != first)]
        _check_dimensions(x, axis, others)
        made = call(*arguments, **named)
        if not isinstance(made, tuple):
            return _like(x, made, 0, "")
        axis = axis % x.ndim if x.ndim > 1 else 0
        parts = [_like(x, array, axis, suffix) for array, suffix in zip(made, _SUFFIXES, strict=False)]
        return type(made)(parts) if type(made) is tuple else type(made)(*parts)

    return cast(Call, labelled)


def _check_dimensions(x: Any, axis: Any, others: list[Any]) -> None:
    """Raise ValueError if a DataArray of one dimension, a scale for instance, runs along an axis of x other than `axis`."""
    for other in others:
        if _is_labelled(other) and other.ndim == 1 and other.size != 1 and other.dims[0] in x.dims:
            expected = x.dims.index(other.dims[0])
            if axis not in (expected, expected - x.ndim):
                raise ValueError(f"axis is {axis!r}; expected {other.dims[0]!r}, the dimension of another argument")


def _like(x: Any, array: Any, axis: int, suffix: str) -> Any:
    """Return a DataArray with the labels of `x`. With a `suffix`, which renames the dimension of the axis, the labels along it
    are left out."""
    if not suffix or not x.ndim:
        return x.copy(data=array)
    dimension = x.dims[axis]
    labels = {name: along for name, along in x.coords.items() if dimension not in along.dims}
    dimensions = [f"{name}{suffix}" if name == dimension else name for name in x.dims]
    return type(x)(array, labels, dimensions, x.name, x.attrs)
