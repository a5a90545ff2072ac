"""The activation functions that the installed ONNX Runtime computes with the bits of a region's step, found by samples, and the
reasons why others do not become steps."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..compiling.cache import find_record, keep_record
from ..errors import errors_ignored
from ..region.activations import LIMITS, on_arrays
from .onnx_runtime import run_on_cpu

OTHERWISE = f"ONNX Runtime {onnxruntime.__version__} computes it otherwise on this processor than a region does"
ON_CUDA = "the CUDA provider computes it otherwise than a region does"


@functools.cache
def is_computed_alike(operator: str) -> bool:
    """Return whether ONNX Runtime gives the bits of ``region.activations`` for an operator on this processor. If one bit of the
    samples differs, the answer is False. It is kept on disk, by the release, the package and the processor."""
    name = f"activation_{operator}_{onnxruntime.__version__}"
    kept = find_record(name)
    if not isinstance(kept, bool):
        kept = all(_gives_same_bits(operator, x) for x in _samples(operator))
        with errors_ignored():  # without a folder for files
            keep_record(name, kept)
    return kept


def _gives_same_bits(operator: str, x: NDArray[np.float32]) -> bool:
    expected, found = on_arrays(operator, x), run_on_cpu(operator, x)
    are_numbers = ~(np.isnan(expected) & np.isnan(found))
    return bool(np.array_equal(expected.view(np.uint32)[are_numbers], found.view(np.uint32)[are_numbers]))


def _samples(operator: str) -> Iterator[NDArray[np.float32]]:
    """Yield arrays of each length from 1 to 67, whose last elements a kernel may compute apart; numbers of each exponent, with
    Inf, NaN and zeros among them; and numbers below those where the function changes, where a Sigmoid may exceed 1."""
    rng = np.random.default_rng(0)
    common = rng.normal(0, 2, 67).astype(np.float32)
    yield from (common[:length] for length in range(1, 68))
    exponents, mantissas = np.arange(512, dtype=np.uint32) << 23, rng.integers(0, 1 << 23, 62, dtype=np.uint32)
    yield (exponents[:, None] | np.array([0, *mantissas, (1 << 23) - 1], np.uint32)).reshape(-1).view(np.float32)
    for limit in LIMITS[operator]:
        middle = int(np.float32(limit).view(np.uint32))
        yield np.arange(middle - (1 << 18), middle + (1 << 10), dtype=np.uint32).view(np.float32)
        below = np.linspace(0, limit * 1.01, (1 << 16) + 5, dtype=np.float32)
        yield np.concatenate([below, -below])
