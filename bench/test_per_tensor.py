"""Every contender, element type and size, per tensor."""

import numpy as np
import pytest
from contenders import CONTENDERS, SCALE

from quark_numba import quantize
from quark_numba.operators import types


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("row", types("quantize", "y"), ids=lambda row: row.name)
@pytest.mark.parametrize("operation", ["quantize", "dequantize"])
def test_per_tensor(benchmark, operation, row, size, contender):
    if not contender.has(row):
        pytest.skip(f"{contender.name} has no {row.name}")
    x = np.random.default_rng(0).normal(0, 3, size).astype(np.float32)
    if operation == "dequantize":
        x = quantize(x, SCALE, output_dtype=row.name)
    action = contender.prepare(operation, row, x)
    action()
    benchmark.group = f"{operation} {row.name}, size {size}"
    benchmark.extra_info |= {"contender": contender.name, "elements": size}
    benchmark(action)
