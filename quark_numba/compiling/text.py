"""Functions that are written as Python text, before Numba compiles them: what they do depends on more than names."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from .intrinsics import array_at, stack
from .jit import unsigned


def function_of(text: str, module: str, file: str, names: Mapping[str, Any]) -> FunctionType:
    """The one function that the text defines, as if it stood in that module, whose `file` it is. It has `names`, and those that
    all have: np, array_at, stack, unsigned."""
    common = {"__name__": module, "np": np, "array_at": array_at, "stack": stack, "unsigned": unsigned}
    scope: dict[str, Any] = {**common, **names}
    before = set(scope)
    exec(compile(text, file, "exec"), scope)
    (name,) = set(scope) - before - {"__builtins__"}
    function: FunctionType = scope[name]
    return function


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
