"""Outputs as classes: at each place, the class is the index of the largest element along the class axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from .sums import LARGEST, Sums


@dataclass(frozen=True)
class Classes:
    """How outputs are read as classes: their class axis, the number of largest elements that count, the key of the labels in
    the data, and the label whose places do not count."""

    axis: int = -1
    top_k: int = 1
    key: str | None = None
    ignored: int | None = None


@dataclass
class Labelling:
    """Whether labels fit an output, and the shapes of both as text."""

    fits: bool
    shapes: str


@dataclass
class Places(Sums):
    """Counts of an output's places. A place is a position along all axes but the class axis. There are four counts: places that
    count, places with the reference's class, places with a label, and places with an ignored label. A place with an ignored
    label is in no other count."""

    places: int = 0
    same: int = 0
    labelled: int = 0
    right: int = 0
    reference_right: int = 0
    ignored: int = 0
    largest_classes: int = field(default=0, metadata=LARGEST)
    without_axis: int = 0  # batches in which the output lacks the class axis


def labelling_of(y: NDArray[Any], name: str, labels: NDArray[Any], classes: Classes) -> Labelling:
    """Return whether labels have an output's shape without its class axis, or with 1 in its place. An axis of one element has
    no classes."""
    fits = False
    if has_axis(y, classes):
        axis = classes.axis % y.ndim
        before, length, after = y.shape[:axis], y.shape[axis], y.shape[axis + 1 :]
        fits = length > 1 and labels.shape in ((*before, *after), (*before, 1, *after))
    return Labelling(fits, f"labels {classes.key} have shape {labels.shape}, output {name} has shape {y.shape}")


def count(y: NDArray[Any], expected: NDArray[Any], name: str, labels: NDArray[Any] | None, classes: Classes) -> Places:
    """Return the counts of an output and the reference's, of the same shape. `labels` are given if they fit. Raise ModelError
    if a label is neither a class nor ignored."""
    if not has_axis(y, classes):
        return Places(without_axis=1)
    scores, reference = (np.moveaxis(array, classes.axis, -1) for array in (y, expected))
    shape, length = scores.shape[:-1], scores.shape[-1]
    if length < 2:  # there is nothing to choose from
        return Places(largest_classes=length)
    scores, reference = map(_with_largest_nan, (scores, reference))
    counted = np.ones(shape, np.bool_)
    if labels is not None:
        labels = labels.reshape(shape)
        if classes.ignored is not None:
            counted = labels != classes.ignored
        _check_range(labels[counted], name, length, classes)
        labels = labels.astype(np.int64)

    def hits(scores: NDArray[Any], wanted: NDArray[Any]) -> int:
        if classes.top_k == 1:
            found = scores.argmax(axis=-1) == wanted
        else:
            most = np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")[..., : classes.top_k]
            found = (most == wanted[..., None]).any(axis=-1)
        return int(np.sum(found & counted))

    places = int(np.sum(counted))
    sums = Places(places, hits(scores, reference.argmax(axis=-1)), ignored=counted.size - places, largest_classes=length)
    if labels is not None:
        sums.labelled, sums.right, sums.reference_right = places, hits(scores, labels), hits(reference, labels)
    return sums


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
