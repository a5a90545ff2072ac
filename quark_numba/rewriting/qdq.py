"""What becomes of ONNX's own QuantizeLinear and DequantizeLinear: the argument `qdq` of `optimize` and `InferenceSession`."""

from __future__ import annotations

from typing import Literal, get_args

from ..checks import check_choices

Qdq = Literal["auto", "float", "onnxruntime"]
CHOICES: tuple[Qdq, ...] = get_args(Qdq)


def check(qdq: object) -> None:
    """Raise ValueError unless the argument is one of the choices."""
    check_choices(CHOICES, qdq=qdq)
