"""The operators that ONNX Runtime has, from its own list."""

from __future__ import annotations

import functools

from onnxruntime.capi import onnxruntime_pybind11_state


def has_operator(domain: str, name: str) -> bool:
    """Whether ONNX Runtime has any version of an operator."""
    return ("" if domain == "ai.onnx" else domain, name) in _operators()


@functools.cache
def _operators() -> frozenset[tuple[str, str]]:
    return frozenset((each.domain, each.name) for each in onnxruntime_pybind11_state.get_all_operator_schema())
