"""xarray's DataArrays keep their labels in calls on arrays. xarray is there already where one comes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

Call = TypeVar("Call", bound=Callable[..., Any])

# Added to the name of the dimension that is cut into blocks, for what blocks have, and sub-blocks.
_SUFFIXES = ("", "_block", "_sub_block")


def unlabelled(value: Any) -> Any:
    """The array of numpy or dask in a DataArray; anything else as it is."""
    return value.data if _is_labelled(value) else value


def _is_labelled(*values: Any) -> bool:
    """Whether any of them is a DataArray."""
    module = sys.modules.get("xarray")
    return module is not None and any(isinstance(each, module.DataArray) for each in values)


def keeps_labels(call: Call) -> Call:
    """`call` gives DataArrays where its first argument is one, or a tuple of them: of the same name, dimensions, coordinates
    and attributes. Its `axis` may be the name of a dimension then. What it gives for each block has a dimension of its own in
    the place of that one."""
    first: str = call.__code__.co_varnames[0]

    @functools.wraps(call)
    def labelled(*arguments: Any, **named: Any) -> Any:
        if "xarray" not in sys.modules:
            return call(*arguments, **named)
        given: Any = arguments[0] if arguments else named.get(first)
        x: Any = given[0] if isinstance(given, tuple) and given else given
        if not _is_labelled(x):
            return call(*arguments, **named)
        axis = named.get("axis", 1)
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
        parts = [_like(x, each, axis, suffix) for each, suffix in zip(made, _SUFFIXES, strict=False)]
        return type(made)(parts) if type(made) is tuple else type(made)(*parts)

    return cast(Call, labelled)


def _check_dimensions(x: Any, axis: Any, others: list[Any]) -> None:
    """Raises ValueError for a DataArray of one dimension, a scale for instance, that goes along another axis."""
    for each in others:
        if _is_labelled(each) and each.ndim == 1 and each.size != 1 and each.dims[0] in x.dims:
            expected = x.dims.index(each.dims[0])
            if axis not in (expected, expected - x.ndim):
                raise ValueError(f"axis is {axis!r}; expected {each.dims[0]!r}, as an array of that dimension comes with it")


def _like(x: Any, array: Any, axis: int, suffix: str) -> Any:
    """A DataArray with the labels of `x`, but for those of the axis if it has another meaning."""
    if not suffix or not x.ndim:
        return x.copy(data=array)
    dimension = x.dims[axis]
    labels = {name: each for name, each in x.coords.items() if dimension not in each.dims}
    dimensions = [f"{each}{suffix}" if each == dimension else each for each in x.dims]
    return type(x)(array, labels, dimensions, x.name, x.attrs)
