"""Kernels of fake quantization for GPUs, emulated, against those for processors: the same bits for every form and mode."""

import numpy as np
import ptx
import pytest
import samples
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch

from quark_numba.element_types import FLOAT32
from quark_numba.fake_quantization import device, kernels
from quark_numba.fake_quantization.dispatch import TABLE
from quark_numba.fake_quantization.key import FORMS, count_numbers, dtype_of

pytestmark = pytest.mark.compiled

# Parameters of two rows, for each form.
PARAMETERS = {
    "integer": [(0.1, 3, 8, 1, 0), (0.3, 0, 1, 1, 0)],
    "codes": [(0.1, -128, 127), (3.0, 0, 255)],
    "bipolar": [(0.5,), (2.0,)],
    "truncation": [(0.1, 2, 8, 0.4, 4, 1, 0), (0.5, 0, 8, np.nan, 5, 0, 0)],
    "minifloat": [(0.5, 4, 3, 7, 448, 0, 1, 1), (1.0, 5, 2, 15, 57344, 1, 1, 0)],
    "threshold": [(4.0, 8, 1), (1.0, 4, 0)],
    "range": [(-1.0, 3.0, 8), (0.0, 2.0, 4)],
    "levels": [(-1.0, 1.0, -2.0, 2.0, 255), (0.0, 4.0, 0.0, 4.0, 16)],
    "offset range": [(-1.0, 3.0, 8), (0.5, 2.0, 4)],
    "float16": [()],
    "bfloat16": [()],
}

# The elements of x, those of a row that lie side by side, the rows, and by how many bytes x and y are displaced.
CASES = [
    (0, 1, 1, 0),
    (1, 1, 1, 0),
    (2050, 2050, 1, 0),
    (1031, 1031, 1, 4),
    (600, 7, 2, 0),
    (96, 8, 3, 0),
    (340, 1, 5, 0),
    (68, 1, 68, 4),
]


KEYS = [pytest.param(key, id=key.name) for key in TABLE]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.by_default(1)
def test_bits_are_those_of_processors(key):
    kernel, rng = kernel_of(device, key), np.random.default_rng(0)
    for size, inner, rows, displaced in CASES:
        parameters = np.resize(np.array(PARAMETERS[key.form], np.float64), (rows, len(FORMS[key.form].parameters)))
        numbers = np.empty(rows * count_numbers(key), dtype_of(key))
        assert kernels.prepare_kernel(key)(np.ascontiguousarray(parameters.T).reshape(-1), numbers, rows)
        x = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3, size)
        with np.errstate(over="ignore"):
            x = np.where(rng.random(size) < 0.2, rng.choice(samples.SPECIAL, size), x).astype(np.float32)
        y = np.empty_like(x)
        TABLE[key].serial(x, numbers, y, inner, rows)
        given, made = (Buffer(each, displaced) for each in (x, y.nbytes))
        loop = {"length": rows, "block": 1, "inner": inner, "rows": rows, "vary": False}
        aligned = are_aligned(given, made)
        launch(kernel, units=size, x=given, y=made, scale=Buffer(numbers), scales=rows, is_aligned=aligned, **loop)
        assert_same_values(made, y, FLOAT32, (size, inner, rows))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.by_default(1)
def test_ptx_is_ieee_arithmetic(key):
    text = device.kernel(key).ptx
    ptx.check_text(text, divides=key.form not in ("bipolar", "float16", "bfloat16"))
    assert ".local" not in text


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.by_default(1)
def test_ptx_is_assembled_without_local_memory(key, tmp_path):
    for architecture, _, stack, spills in ptx.assembled(device.kernel(key).ptx, tmp_path):
        assert (stack, spills) == (0, 0), architecture
