"""Execution providers of sessions, by name."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime

_SUFFIX = "ExecutionProvider"

# The provider that every build of ONNX Runtime has, and that runs what the others leave.
CPU = f"CPU{_SUFFIX}"


def providers_of(names: Sequence[str] | None) -> list[str]:
    """Return ONNX Runtime's names of providers, of which names may leave out the end, and the case of letters: "cuda" is
    "CUDAExecutionProvider". None: the CPU's. Raise ValueError for one that this build of ONNX Runtime lacks, as that would only
    warn."""
    if names is None:
        return [CPU]
    known = {form.lower(): each for each in _available() for form in (each, each.removesuffix(_SUFFIX))}
    missing = [name for name in names if name.lower() not in known]
    if missing or not names:
        has = f"this build of ONNX Runtime has {', '.join(_available())}"
        raise ValueError(f"providers: {', '.join(missing) or 'there is none'}; {has}")
    return [*dict.fromkeys(known[name.lower()] for name in names)]


def _available() -> list[str]:
    return [*onnxruntime.get_available_providers()]
