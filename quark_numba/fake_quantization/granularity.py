"""Which elements of x share a format's parameters, from the shapes: the parameters broadcast to x as in numpy.

The functions are also compiled into the nodes of sessions, where shapes are arrays instead of tuples. So they use only ``len``,
indexing and integers.
"""

from __future__ import annotations

from typing import Any


def first_place(x_shape: Any, shape: Any) -> int:
    """Return the first axis of x along which a parameter of this shape has several elements. Return the rank of x if there is
    no such axis, and -1 if the shape does not broadcast to that of x."""
    extra = len(shape) - len(x_shape)
    place = len(x_shape)
    for i in range(len(shape)):
        if shape[i] == 1:
            continue
        if i < extra or shape[i] != x_shape[i - extra]:
            return -1
        if place == len(x_shape):
            place = i - extra
    return place


def last_place(x_shape: Any, shape: Any) -> int:
    """Return the last axis of x along which a parameter of this shape has several elements, or -1 if there is no such axis."""
    for i in range(len(shape) - 1, -1, -1):
        if shape[i] != 1:
            return i - len(shape) + len(x_shape)
    return -1


def index_of(row: int, x_shape: Any, first: int, last: int, shape: Any) -> int:
    """Return the index of the element of a parameter that goes with a row: rows are numbered through the axes of x from `first`
    to `last`."""
    extra = len(shape) - len(x_shape)
    index, stride = 0, 1
    for axis in range(last, first - 1, -1):
        place = row % x_shape[axis]
        row //= x_shape[axis]
        if axis + extra >= 0 and shape[axis + extra] != 1:
            index += place * stride
            stride *= shape[axis + extra]
    return index
