"""ONNX Runtime's release, and the operators that it has, from its own list."""

from __future__ import annotations

import functools

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def has_operator(domain: str, name: str) -> bool:
    """Whether ONNX Runtime has any version of an operator."""
    return ("" if domain == "ai.onnx" else domain, name) in _operators()


@functools.cache
def _operators() -> frozenset[tuple[str, str]]:
    return frozenset((each.domain, each.name) for each in onnxruntime_pybind11_state.get_all_operator_schema())
