"""Execution providers of sessions, by name, which of them run on the CPU, and which operators `operators="auto"` means for
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from . import cuda

_SUFFIX = "ExecutionProvider"

# The provider that every build of ONNX Runtime has. It runs the nodes that no other provider takes.
CPU = f"CPU{_SUFFIX}"

# The provider of NVIDIA GPUs, for which this package has kernels.
CUDA = f"CUDA{_SUFFIX}"

# Providers that leave all tensors where they are. The Azure provider, which the plain build has as well, runs only operators
# that call services.
_WITHOUT_DEVICE = {CPU, f"Azure{_SUFFIX}"}


def beside_cpu(names: Iterable[str]) -> list[str]:
    """Return the names of the providers that do not run nodes on the CPU."""
    return [name for name in names if name not in _WITHOUT_DEVICE]


def operators_for(names: Iterable[str]) -> Literal["custom", "cuda", "standard"]:
    """Return which operators are right, and fastest, in a session with these providers. "custom": this package's operators,
    which the CPU provider runs; "cuda": this package's operators if the CUDA provider runs them, and otherwise ONNX's
    operators; "standard": ONNX's operators.

    Whatever its options are, the OpenVINO provider (1.24) does not compute the operators of ONNX one by one, as they are
    written: it multiplies by inverses in place of dividing, makes one product of two, and computes float16 and float64 in
    float32."""
    others = beside_cpu(names)
    if others == [CUDA] and cuda.driver():
        return "cuda"
    return "standard" if others and f"OpenVINO{_SUFFIX}" not in others else "custom"


def better_in_standard(names: Iterable[str]) -> list[str]:
    """Return the providers that run a model faster in ONNX's operators, or that cannot run it in other operators."""
    return [name for name in names if operators_for([name]) != "custom"]


def available() -> list[str]:
    """Return the names of the providers that this build of ONNX Runtime has."""
    import onnxruntime

    return [*onnxruntime.get_available_providers()]


def providers_of(names: Sequence[str] | None) -> list[str]:
    """Return the full names of providers. A name may be short, and in any case: "cuda" is "CUDAExecutionProvider". None stands
    for the CPU provider only. Raise ValueError if this build of ONNX Runtime lacks a provider; ONNX Runtime itself only
    warns."""
    if names is None:
        return [CPU]
    known = {form.lower(): each for each in available() for form in (each, each.removesuffix(_SUFFIX))}
    missing = [name for name in names if name.lower() not in known]
    if missing or not names:
        has = f"this build of ONNX Runtime has {', '.join(available())}"
        raise ValueError(f"providers: {', '.join(missing) or 'the list is empty'}; {has}")
    return [*dict.fromkeys(known[name.lower()] for name in names)]
