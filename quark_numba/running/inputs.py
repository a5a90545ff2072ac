"""The inputs of a model: which dtypes and shapes fit them, with the reasons, and random arrays that do: their values, and the
sizes of free dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from ..errors import ModelError
from .sessions import Arrays, dtype_of


class ModelInput(NamedTuple):
    """An input of a model. `shape` is None if it is not known. A free dimension is anything but a positive integer."""

    name: str
    type_name: str
    shape: tuple[int | str | None, ...] | None

    def fault(self, dtype: np.dtype[Any], shape: tuple[int, ...], *, dropped: int = 0) -> str:
        """Return the reason why an array of this dtype and shape does not fit this input, or "" if it fits. Its first `dropped`
        dimensions are ignored."""
        wanted_dtype = dtype_of(self.type_name)
        if wanted_dtype is None or (dtype.kind != "U" if wanted_dtype.kind == "U" else dtype.newbyteorder("=") != wanted_dtype):
            return f"is {dtype}; the model takes {self.type_name}"
        if self.shape is None:
            return ""
        expected = ", ".join("?" if wanted is None else str(wanted) for wanted in self.shape)
        return "" if fits(shape[dropped:], self.shape) else f"has shape {shape}; the model takes [{expected}]"

    @property
    def has_free_rows(self) -> bool:
        """Return whether the number of rows is free. False for an input of one dimension: its rows are single elements."""
        return self.shape is None or (len(self.shape) > 1 and not is_fixed(self.shape[0]))


def is_fixed(dimension: int | str | None) -> TypeGuard[int]:
    return isinstance(dimension, int) and dimension > 0


def fits(shape: Sequence[int], wanted: Sequence[int | str | None]) -> bool:
    """Return whether a shape has the same rank as a wanted one, and the same fixed dimensions."""
    return len(shape) == len(wanted) and all(
        not is_fixed(length) or length == size for size, length in zip(shape, wanted, strict=True)
    )


def inputs_of(session: Any) -> list[ModelInput]:
    # ONNX Runtime returns [] for a scalar and for an unknown shape.
    return [ModelInput(value.name, value.type, tuple(value.shape) if value.shape else None) for value in session.get_inputs()]


def random_inputs(
    inputs: Sequence[ModelInput], dimensions: Mapping[str, int], generator: np.random.Generator, *, quiet: bool = False
) -> Arrays:
    """Return random arrays of the inputs' shapes: floats from a normal distribution, integers 0 or 1.

    A free dimension is looked up in `dimensions` as "input[axis]", and then by its name. If it is not there, it is 1.
    """
    arrays = {}
    free: dict[str, list[str]] = {}  # names under which `dimensions` may have a free dimension, by the first of them
    for model_input in inputs:
        shape = []
        for axis, dimension in enumerate(model_input.shape or ()):
            names = [f"{model_input.name}[{axis}]"] + ([dimension] if isinstance(dimension, str) else [])
            if is_fixed(dimension):
                shape.append(dimension)
            else:
                free[names[0]] = names
                shape.append(next((dimensions[name] for name in names if name in dimensions), 1))
        dtype = dtype_of(model_input.type_name)
        if dtype is None or dtype.kind == "U":
            raise ModelError(f"input {model_input.name} is a {model_input.type_name}: there are no random values of this type")
        try:
            values = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        except (MemoryError, ValueError) as error:
            raise ModelError(f"input {model_input.name} of shape {shape}: {error}") from None
        arrays[model_input.name] = values.astype(dtype)
    unused = sorted(set(dimensions).difference(*free.values()))
    if unused:
        there = ", ".join(" or ".join(names) for names in free.values())
        raise ModelError(f"no free dimension is named {unused[0]}; the model has: {there or 'none'}")
    guessed = [first for first, names in free.items() if not any(name in dimensions for name in names)]
    if guessed and not quiet:
        warnings.warn(f"free dimensions are taken as 1: {', '.join(guessed)}", stacklevel=2)
    return arrays
