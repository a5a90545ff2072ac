"""Checks of single arguments, other than arrays (``arrays.arguments``): flags, choices, integers, texts, paths, functions,
names, with the texts of their errors; and the choices of `qdq`. Errors name the argument, the value received and the expected
value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, get_args

# Who runs ONNX's own QuantizeLinear and DequantizeLinear. "float": this package, in float, as they are written. "onnxruntime":
# ONNX Runtime, which may fuse them into integer operators. "auto": what is best, or what was chosen before.
Qdq = Literal["auto", "float", "onnxruntime"]
QDQ: tuple[Qdq, ...] = get_args(Qdq)


def refuse(name: str, value: object, expected: str, kind: type[Exception] = TypeError) -> NoReturn:
    raise kind(f"{name} is {value!r}; expected {expected}")


def check_flags(**flags: Any) -> None:
    """Raise ValueError unless a value is True or False, of Python or numpy, or 1 or 0."""
    for name, flag in flags.items():
        if flag is True or flag is False:  # the fast path: calls on small arrays take microseconds
            continue
        is_of_numpy = getattr(flag, "shape", None) == () and getattr(flag, "dtype", None) == "bool"
        if not (is_of_numpy or (isinstance(flag, int) and flag in (0, 1))):
            refuse(name, flag, "True or False", ValueError)


def check_choices(choices: Sequence[str], **values: Any) -> None:
    """Raise ValueError unless a value is one of the choices."""
    for name, value in values.items():
        if not (isinstance(value, str) and value in choices):
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_integers(least: float, most: float, expected: str, /, **numbers: Any) -> None:
    """Raise ValueError unless a value is an integer from `least` to `most`. True and False are refused."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            refuse(name, number, expected, ValueError)


def check_positive(**numbers: Any) -> None:
    """Raise ValueError unless a number is a positive integer, or None because it was left out."""
    check_integers(1, float("inf"), "a positive integer", **{name: each for name, each in numbers.items() if each is not None})


def check_texts(**texts: Any) -> None:
    """Raise TypeError or ValueError unless a value is a text that is not empty, or None because it was left out."""
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            refuse(name, text, "a str")
        if text == "":
            refuse(name, text, "a str that is not empty", ValueError)


def check_paths(**paths: Any) -> None:
    """Raise TypeError or ValueError unless a value is a path that is not empty, or None because it was left out."""
    for name, path in paths.items():
        if path is not None and not (isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)):
            refuse(name, path, "a path")
        if path is not None and not os.fspath(path):
            refuse(name, path, "a path that is not empty", ValueError)


def check_functions(**functions: Any) -> None:
    """Raise TypeError unless a value can be called, or is None because it was left out."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            refuse(name, function, "a function")


def check_names(**names: Any) -> None:
    """Raise TypeError unless a value is a sequence of names. A single name is also refused."""
    for name, value in names.items():
        if isinstance(value, str) or not hasattr(type(value), "__len__") or not all(isinstance(each, str) for each in value):
            refuse(name, value, "a sequence of names")
