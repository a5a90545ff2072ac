"""Errors of outputs against the reference's: the figures that are reported, the reasons why some outputs cannot be compared,
and the check that the chosen outputs exist."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ...checks import check_names
from ...element_types import find
from ...errors import ModelError, counted
from .sums import ErrorSums, error_sums

Errors = Mapping[str, ErrorSums]

K = TypeVar("K")


@dataclass
class Comparison:
    """The error sums of the outputs that can be compared in all batches, and the reasons for the other outputs, by name."""

    errors: dict[str, ErrorSums] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, other: Comparison) -> None:
        """Add the sums of a comparison of later batches."""
        self.reasons = other.reasons | self.reasons
        self.errors = {name: errors for name, errors in self.errors.items() if name in other.errors}
        for name, errors in self.errors.items():
            errors.add(other.errors[name])


def compare(outputs: Mapping[str, Any], reference: Mapping[str, Any], chosen: Sequence[str] | None = None) -> Comparison:
    """Return the comparison of the outputs named in `chosen`, or of all. Outputs are paired by position, because a rewritten
    model may have renamed them. Raise ModelError if the numbers of outputs differ."""
    if len(outputs) != len(reference):
        raise ModelError(f"the model has {counted(len(outputs), 'output')}, the reference {len(reference)}")
    comparison = Comparison()
    for (name, y), expected in zip(outputs.items(), reference.values(), strict=True):
        if chosen is not None and name not in chosen:
            continue
        reason = _why_not(y, expected)
        if reason:
            comparison.reasons[name] = reason
        else:
            comparison.errors[name] = error_sums(y, expected)
    return comparison


def _why_not(y: Any, expected: Any) -> str:
    """Return the reason why an output cannot be compared, or "" if it can."""
    for whose, value in (("it is", y), ("the reference's is", expected)):
        if not (isinstance(value, np.ndarray) and (value.dtype.kind in "fiub" or find(value.dtype))):
            return f"cannot be compared because {whose} {_kind(value)}, not an array of numbers"
    return "" if y.shape == expected.shape else f"has shape {y.shape}, the reference's {expected.shape}"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "text" if value.dtype.kind in "OSU" else f"an array of {value.dtype}"
    if hasattr(value, "data_type"):  # an OrtValue
        return str(value.data_type())
    return {list: "a sequence", dict: "a map", type(None): "empty"}.get(type(value), f"a {type(value).__name__}")


def common(comparisons: Mapping[K, Comparison]) -> dict[K, Errors]:
    """Return the error sums of the outputs that can be compared in all of the comparisons."""
    names = set.intersection(*({*result.errors} for result in comparisons.values())) if comparisons else set()
    return {key: {name: result.errors[name] for name in result.errors if name in names} for key, result in comparisons.items()}


def least_sqnr_db(errors: Errors) -> float:
    """Return the least signal-to-quantization-noise ratio of all outputs. NaN counts as the least."""
    ratios = [error.sqnr_db for error in errors.values()]
    return min(ratios, key=lambda ratio: (ratio == ratio, ratio), default=float("nan"))


@dataclass
class OutputError:
    """The error of an output against the reference's, over all data. A figure of no element is NaN.

    Places are the positions along all axes but the class axis. `same_top` is the share of places where the index of the
    reference's largest element is among the indices of the output's `top_k` largest. `accuracy` is the share of places where
    the label is among them, and `reference_accuracy` is the same for the reference. `places` is the number of places that
    `same_top` is taken over, `labelled` that of the accuracies. `ignored` places do not count in any of these figures."""

    name: str
    sqnr_db: float
    cosine: float
    max_abs_error: float
    mean_abs_error: float
    same_top: float | None = None
    accuracy: float | None = None
    reference_accuracy: float | None = None
    places: int | None = None
    labelled: int | None = None
    ignored: int | None = None


def output_error(name: str, sums: ErrorSums) -> OutputError:
    return OutputError(name, sums.sqnr_db, sums.cosine, sums.largest if sums.count else math.nan, sums.mean)


def check_outputs(outputs: Sequence[str] | None) -> None:
    if outputs is not None:
        check_names(outputs=outputs)
        if not outputs:
            raise ValueError("outputs is empty; expected at least one name")


def check_chosen(outputs: Sequence[str] | None, logits: str | None, names: Sequence[str]) -> None:
    """Raise ModelError if the model, whose outputs are `names`, has not all of these outputs, or if the output of logits is
    given, and is none of those to compare."""
    for name in outputs or ():
        if name not in names:
            raise ModelError(f"outputs: the model has no output named {name!r}; it has {', '.join(names)}")
    compared = outputs or names
    if logits is not None and logits not in compared:
        raise ModelError(f"logits: no output to compare is named {logits!r}; they are {', '.join(compared)}")
