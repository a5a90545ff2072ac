"""Outputs as classes: at each place, the class is the index of the largest element along the class axis; which labels fit an
output, which count, and what is among the `top_k` largest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from .sums import LARGEST, Sums

# The number of elements of an output that are copied at a time.
_CHUNK = 1 << 18


class Classes(NamedTuple):
    """How outputs are read as classes: their class axis, the number of largest elements that count, the key of the labels in
    the data, the label whose places do not count, and whether the label of a place is that of the next token."""

    axis: int = -1
    top_k: int = 1
    key: str | None = None
    ignored: int | None = None
    next_token: bool = False


class Labels(NamedTuple):
    """Labels, and which of them count: integers and booleans of the same shape."""

    values: NDArray[Any]
    counted: NDArray[np.bool_]


def labels_of(values: NDArray[Any], classes: Classes) -> Labels:
    """Return the labels that an array of the data means. If they are next tokens, a label moves by one along axis 1 (batch,
    sequence), and the last place has none that counts."""
    counted = np.ones(values.shape, np.bool_)
    if classes.ignored is not None:
        counted = values != classes.ignored
    if classes.next_token and values.ndim:
        axis = min(1, values.ndim - 1)
        values, counted = np.roll(values, -1, axis), np.roll(counted, -1, axis)
        np.moveaxis(counted, axis, 0)[-1:] = False
    return Labels(values, counted)


@dataclass
class Labelling:
    """Whether labels fit an output, and the shapes of both as text."""

    fits: bool
    shapes: str


@dataclass
class Places(Sums):
    """Counts of an output's places. A place is a position along all axes but the class axis. There are four counts: places that
    count, places with the reference's class, places with a label, and places with an ignored label or none. Those are in no
    other count."""

    places: int = 0
    same: int = 0
    labelled: int = 0
    right: int = 0
    reference_right: int = 0
    ignored: int = 0
    largest_classes: int = field(default=0, metadata=LARGEST)
    without_axis: int = 0  # batches in which the output lacks the class axis


def labelling_of(y: NDArray[Any], name: str, labels: Labels, classes: Classes) -> Labelling:
    """Return whether labels have an output's shape without its class axis, or with 1 in its place. An axis of one element has
    no classes."""
    fits = False
    if has_axis(y, classes):
        axis = classes.axis % y.ndim
        before, length, after = y.shape[:axis], y.shape[axis], y.shape[axis + 1 :]
        fits = length > 1 and labels.values.shape in ((*before, *after), (*before, 1, *after))
    return Labelling(fits, f"labels {classes.key} have shape {labels.values.shape}, output {name} has shape {y.shape}")


def count(y: NDArray[Any], expected: NDArray[Any], name: str, labels: Labels | None, classes: Classes) -> Places:
    """Return the counts of an output and the reference's, of the same shape. `labels` are given if they fit. Raise ModelError
    if a label is neither a class nor ignored."""
    if not has_axis(y, classes):
        return Places(without_axis=1)
    length = y.shape[classes.axis]
    sums = Places(largest_classes=length)
    if length < 2:  # there is nothing to choose from
        return sums
    for scores, reference, wanted in in_rows(y, expected, name, labels, classes):
        scores, reference = map(_with_largest_nan, (scores, reference))
        sums.places += len(scores)
        sums.same += _hits(scores, reference.argmax(axis=-1), classes.top_k)
        if wanted is not None:
            sums.labelled += len(scores)
            sums.right += _hits(scores, wanted, classes.top_k)
            sums.reference_right += _hits(reference, wanted, classes.top_k)
    sums.ignored = y.size // length - sums.places
    return sums


def in_rows(
    y: NDArray[Any], expected: NDArray[Any], name: str, labels: Labels | None, classes: Classes
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]]:
    """Yield copies of the places that count, some at a time: of an output and of the reference's, of shape (places, classes),
    and their labels. Raise ModelError if a label that counts is not a class."""
    # An array of classes alone is one place.
    scores, reference = (np.moveaxis(array, classes.axis, -1) if array.ndim > 1 else array[None] for array in (y, expected))
    shape, length = scores.shape[:-1], scores.shape[-1]
    places = np.arange(math.prod(shape)) if labels is None else np.flatnonzero(labels.counted)
    values = None if labels is None else labels.values.reshape(-1)
    if values is not None:
        _check_range(values[places], name, length, classes)
    rows = max(1, _CHUNK // length)
    for start in range(0, len(places), rows):
        chosen = places[start : start + rows]
        index = np.unravel_index(chosen, shape)
        yield scores[index], reference[index], None if values is None else values[chosen].astype(np.int64)


def _hits(scores: NDArray[Any], wanted: NDArray[Any], top_k: int) -> int:
    """Return the number of places where the wanted class is among the `top_k` largest elements."""
    if top_k == 1:
        return int(np.sum(scores.argmax(axis=-1) == wanted))
    most = np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")[..., :top_k]
    return int(np.sum((most == wanted[..., None]).any(axis=-1)))


def _with_largest_nan(scores: NDArray[Any]) -> NDArray[Any]:
    """Return scores with Inf for NaN, which is the largest for `argmax`, but not for `argsort` of the negative scores."""
    is_nan = np.isnan(scores)
    return np.where(is_nan, np.inf, scores) if is_nan.any() else scores


def has_axis(y: NDArray[Any], classes: Classes) -> bool:
    """Return whether an output has the class axis."""
    return -y.ndim <= classes.axis < y.ndim


def _check_range(labels: NDArray[Any], name: str, length: int, classes: Classes) -> None:
    if not labels.size:
        return
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= length:
        raise ModelError(
            f"labels {classes.key} have {least if least < 0 else most}; expected 0 to {length - 1}, the indices of output "
            f"{name} along axis {classes.axis}; ignore_label is for a label that does not count, outputs for the outputs to "
            "compare"
        )
