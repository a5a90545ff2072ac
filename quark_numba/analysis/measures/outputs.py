"""Outputs beside the reference's: how far they are off, and why some cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ...element_types import find
from ...errors import ModelError
from .sums import ErrorSums, error_sums

Errors = Mapping[str, ErrorSums]

K = TypeVar("K")


@dataclass
class Comparison:
    """The sums of the outputs that can be compared in all batches, and the reasons for the others, by name."""

    errors: dict[str, ErrorSums] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, other: Comparison) -> None:
        """Add what comes later in the data."""
        self.reasons = other.reasons | self.reasons
        self.errors = {name: errors for name, errors in self.errors.items() if name in other.errors}
        for name, errors in self.errors.items():
            errors.add(other.errors[name])


def compare(outputs: Mapping[str, Any], reference: Mapping[str, Any], chosen: Sequence[str] | None = None) -> Comparison:
    """Output by output, in order, as models that were rewritten may have renamed them: those of the chosen names, or all.
    Raises ModelError if they are not as many."""
    if len(outputs) != len(reference):
        raise ModelError(f"the model has {len(outputs)} outputs, the reference {len(reference)}")
    found = Comparison()
    for (name, y), expected in zip(outputs.items(), reference.values(), strict=True):
        if chosen is not None and name not in chosen:
            continue
        reason = _why_not(y, expected)
        if reason:
            found.reasons[name] = reason
        else:
            found.errors[name] = error_sums(y, expected)
    return found


def _why_not(y: Any, expected: Any) -> str:
    """The reason why an output cannot be compared; "" if it can."""
    for whose, value in (("it is", y), ("the reference's is", expected)):
        if not (isinstance(value, np.ndarray) and (value.dtype.kind in "fiub" or find(value.dtype))):
            return f"cannot be compared as {whose} {_kind(value)}, and no array of numbers"
    return "" if y.shape == expected.shape else f"has shape {y.shape}, the reference's {expected.shape}"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "text" if value.dtype.kind in "OSU" else f"an array of {value.dtype}"
    if hasattr(value, "data_type"):  # an OrtValue
        return str(value.data_type())
    return {list: "a sequence", dict: "a map", type(None): "empty"}.get(type(value), f"a {type(value).__name__}")


def common(comparisons: Mapping[K, Comparison]) -> dict[K, Errors]:
    """The sums of those outputs that can be compared in each of them."""
    names = set.intersection(*({*each.errors} for each in comparisons.values())) if comparisons else set()
    return {key: {name: each.errors[name] for name in each.errors if name in names} for key, each in comparisons.items()}


def least_sqnr_db(errors: Errors) -> float:
    """The least signal-to-quantization-noise ratio of all outputs; NaN counts as the least."""
    ratios = [each.sqnr_db for each in errors.values()]
    return min(ratios, key=lambda ratio: (ratio == ratio, ratio), default=float("nan"))


@dataclass
class OutputError:
    """How far an output is off the reference's, over all data.

    `same_top`: the share of places, along all but the last axis, whose largest element along the last axis is the reference's,
    or where the reference's is among the k largest. `accuracy`, `reference_accuracy`: the share where the label is."""

    name: str
    sqnr_db: float
    cosine: float
    max_abs_error: float
    mean_abs_error: float
    same_top: float | None = None
    accuracy: float | None = None
    reference_accuracy: float | None = None


def output_error(name: str, sums: ErrorSums) -> OutputError:
    return OutputError(name, sums.sqnr_db, sums.cosine, sums.largest, sums.mean)


def check_names(outputs: Sequence[str] | None) -> None:
    if outputs is None:
        return
    if isinstance(outputs, str) or not isinstance(outputs, Sequence) or not all(isinstance(each, str) for each in outputs):
        raise TypeError(f"outputs is {outputs!r}; expected a sequence of names")
    if not outputs:
        raise ValueError("outputs is empty; expected at least one name")


def check_chosen(outputs: Sequence[str] | None, names: Sequence[str]) -> None:
    """Raises ModelError for what is none of the model's outputs."""
    for name in outputs or ():
        if name not in names:
            raise ModelError(f"outputs: the model has none named {name!r}; it has {', '.join(names)}")
