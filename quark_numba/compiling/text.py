"""Functions whose code varies in more than names: they are generated as Python text, which Numba then compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from .intrinsics import array_at, stack
from .jit import unsigned


def function_of(text: str, module: str, file: str, names: Mapping[str, Any]) -> FunctionType:
    """Return the one function that `text` defines, as if the text were in the module `module` with the path `file`. The
    function can use `names`, and np, array_at, stack and unsigned."""
    common = {"__name__": module, "np": np, "array_at": array_at, "stack": stack, "unsigned": unsigned}
    scope: dict[str, Any] = {**common, **names}
    before = set(scope)
    exec(compile(text, file, "exec"), scope)
    (name,) = set(scope) - before - {"__builtins__"}
    function: FunctionType = scope[name]
    return function


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def branch(condition: str, lines: list[str], others: list[str]) -> list[str]:
    """Return the lines of an if statement and its else."""
    return [f"if {condition}:", *indented(lines), "else:", *indented(others)]


def tuple_of(items: Sequence[str]) -> str:
    """Return the source of a tuple. Python would build one of more than 30 items from a list, which Numba refuses in a
    branch."""
    return " + ".join(f"({', '.join(items[i : i + 16])},)" for i in range(0, len(items), 16))
