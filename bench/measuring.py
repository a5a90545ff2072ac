"""What benchmarks share: runs that are prepared once for all turns of a contender, options of sessions, inputs of models."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

MODELS = Path(__file__).parent.parent / "tests" / "models"

# A call that only computes; None if the contender is not available.
Run = Callable[[], object] | None


def measure(benchmark, group: str, contender: str, prepare: Callable[[], Run]) -> None:
    """Measure the run that `prepare` returns for a contender. In a benchmark's list of parameters contenders should vary first:
    then they take turns, so that a drift of the machine affects all, and each is prepared once for a group."""
    runs = _runs_of_group(group)
    if contender not in runs:
        runs[contender] = run = prepare()
        if run:
            run()
    if runs[contender] is None:
        pytest.skip(f"{contender} is not available")
    benchmark.group = group
    benchmark.extra_info |= {"contender": contender}
    benchmark(runs[contender])


@lru_cache(maxsize=1)  # runs may hold large arrays
def _runs_of_group(group: str) -> dict[str, Run]:
    return {}


def session_options(threads: int, *entries: str) -> onnxruntime.SessionOptions:
    """Return options for a number of threads, which do not spin between two runs. Config entries of these names are 1."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for entry in ("session.force_spinning_stop", *entries):
        options.add_session_config_entry(entry, "1")
    return options


def classifier_inputs() -> dict[str, np.ndarray]:
    """Return a batch of 6 text lines."""
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return {"x": arrays["x"]}


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
