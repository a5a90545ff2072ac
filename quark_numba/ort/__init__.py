"""Registration of the operators with ONNX Runtime."""

from __future__ import annotations

from .native import get_library_path

__all__ = ["get_library_path"]
