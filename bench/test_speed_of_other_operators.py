"""Instance normalization and LSTM layers, in sessions of ONNX Runtime's own float operators and of Quark's, in turns."""

from collections.abc import Callable
from functools import partial

import numpy as np
import onnxruntime
import pytest
from cases import OTHER_CASES, TURNS, OtherCase
from contenders import PEER_LIBRARY, bound_session
from labels import DROP_IN, ONNX_RUNTIMES_OPERATOR, QUARK
from measuring import measure
from onnx import helper, numpy_helper
from onnx_models import model

import quark_numba

THREADS = 2
SCALES = {"x": 1.3e-4, "w": 1.7e-5, "r": 1.7e-5, "b": 1.7e-5, "y": 3.1e-5}


def _inputs(case: OtherCase) -> list[np.ndarray]:
    """Return x, and the constants."""
    rng = np.random.default_rng(0)
    shapes = case.shapes
    return [
        rng.normal(0, deviation, shape).astype(np.float32) for shape, deviation in zip(shapes, [1, *[0.1] * 3], strict=False)
    ]


def _model(case: OtherCase, is_float: bool):
    names = [f"v{i}" for i in range(len(case.shapes))]
    attributes = dict(case.attributes)
    if is_float and "hidden_size" in attributes:
        attributes["direction"] = "bidirectional"
    elif "hidden_size" in attributes:
        attributes |= {f"{name}_scale": scale for name, scale in SCALES.items()}
        attributes |= {f"{name}_zero_point": 32768 + i for i, name in enumerate(SCALES)}
    domain = "" if is_float else "com.amd.quark"
    node = helper.make_node(
        case.float_operator if is_float else case.operator, ["x", *names[1:]], ["y"], domain=domain, **attributes
    )
    constants = [numpy_helper.from_array(array, name) for name, array in zip(names[1:], _inputs(case)[1:], strict=True)]
    return model([node], ["x"], ["y"], initializers=constants, domains=[domain])


def _session(case: OtherCase, is_float: bool, register: Callable[[onnxruntime.SessionOptions], object]) -> Callable[[], object]:
    return bound_session(_model(case, is_float), {"x": _inputs(case)[0]}, THREADS, register)


CONTENDERS = {
    ONNX_RUNTIMES_OPERATOR: lambda case: _session(case, True, lambda options: None),
    DROP_IN: lambda case: _session(case, False, quark_numba.register),
}
if PEER_LIBRARY:
    CONTENDERS[QUARK] = lambda case: _session(case, False, lambda options: options.register_custom_ops_library(PEER_LIBRARY))


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("case", OTHER_CASES, ids=lambda case: case.group)
@pytest.mark.benchmark(max_time=0.1, min_rounds=20, warmup=True, warmup_iterations=5)
def test_other_operator(benchmark, contender, turn, case):
    measure(benchmark, case.group, contender, partial(CONTENDERS[contender], case))
