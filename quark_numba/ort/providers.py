"""Execution providers of sessions, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from . import cuda

_SUFFIX = "ExecutionProvider"

# The provider that every build of ONNX Runtime has, and that runs what the others leave.
CPU = f"CPU{_SUFFIX}"

# That of NVIDIA's cards, for which this package has kernels.
CUDA = f"CUDA{_SUFFIX}"

# Providers that leave all tensors where they are. Azure's, which the plain build has as well, runs only operators that call
# services.
_WITHOUT_DEVICE = {CPU, f"Azure{_SUFFIX}"}


def others_than_cpus(names: Iterable[str]) -> list[str]:
    """Return the names of the providers that run a model's nodes elsewhere than the CPU's provider does."""
    return [name for name in names if name not in _WITHOUT_DEVICE]


def operators_for(names: Iterable[str]) -> Literal["custom", "cuda", "standard"]:
    """Return in which operators nodes are right, and fastest, in a session with these providers: in this package's ("custom"),
    which the CPU's provider runs, in those of them that CUDA's provider runs, and else in ONNX's ("cuda"), or in ONNX's
    ("standard").

    OpenVINO's provider (1.24) does not compute ONNX's operators one by one, as they are written, whatever its options are: it
    multiplies with inverses in place of dividing, makes one product of two, and computes float16 and float64 in float32."""
    others = others_than_cpus(names)
    if others == [CUDA] and cuda.driver():
        return "cuda"
    return "standard" if others and f"OpenVINO{_SUFFIX}" not in others else "custom"


def better_in_standard(names: Iterable[str]) -> list[str]:
    """Return those of the providers that run a model of ONNX's operators faster, or alone."""
    return [name for name in names if operators_for([name]) != "custom"]


def available() -> list[str]:
    """Return the names of the providers that this build of ONNX Runtime has."""
    import onnxruntime

    return [*onnxruntime.get_available_providers()]


def providers_of(names: Sequence[str] | None) -> list[str]:
    """Return ONNX Runtime's names of providers, of which names may leave out the end, and the case of letters: "cuda" is
    "CUDAExecutionProvider". None: the CPU's. Raise ValueError for one that this build of ONNX Runtime lacks, of which ONNX
    Runtime itself only warns."""
    if names is None:
        return [CPU]
    known = {form.lower(): each for each in available() for form in (each, each.removesuffix(_SUFFIX))}
    missing = [name for name in names if name.lower() not in known]
    if missing or not names:
        has = f"this build of ONNX Runtime has {', '.join(available())}"
        raise ValueError(f"providers: {', '.join(missing) or 'there is none'}; {has}")
    return [*dict.fromkeys(known[name.lower()] for name in names)]
