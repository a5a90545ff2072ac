"""Block formats on 16 M elements: calls on arrays, sessions, and a copy of as many bytes."""

from collections.abc import Callable
from functools import lru_cache, partial

import numba
import numpy as np
import pytest
from cases import BLOCK_CASES, TURNS, BlockCase
from contenders import bound_session, copy_call
from labels import COPY, DIRECT_CALL, DROP_IN
from measuring import measure
from onnx import helper
from onnx_models import model

import quark_numba


def _model(case: BlockCase):
    node = helper.make_node(case.operator.name, ["x"], ["y"], domain=case.operator.domain, **case.attributes)
    return model([node], ["x"], ["y"], domains=[case.operator.domain])


@lru_cache(maxsize=1)
def _x(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _native(case: BlockCase) -> Callable[[], object]:
    return bound_session(_model(case), {"x": _x(case.shape)}, 2, quark_numba.register)


def _direct(case: BlockCase) -> Callable[[], object]:
    numba.set_num_threads(2)
    x = _x(case.shape)
    return partial(case.operator.call, x, **case.attributes, out=np.empty_like(x))


def _copy(case: BlockCase) -> Callable[[], object]:
    return copy_call(_x(case.shape).nbytes, 2)


CONTENDERS = {DROP_IN: _native, DIRECT_CALL: _direct, COPY: _copy}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("case", BLOCK_CASES, ids=lambda case: case.group)
@pytest.mark.benchmark(max_time=0.2, min_rounds=3, warmup=False)
def test_block_format(benchmark, case, turn, contender):
    measure(benchmark, case.group, contender, partial(CONTENDERS[contender], case))
