"""Kernels of fake quantization for GPUs, emulated, against those for processors: the same bits for every form and mode."""

import gpu_records
import numpy as np
import ptx
import pytest
import samples
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch
from gpu_keys import FAKE_PARAMETERS

from quark_numba.element_types import FLOAT32
from quark_numba.fake_quantization import device, kernels
from quark_numba.fake_quantization.dispatch import TABLE
from quark_numba.fake_quantization.key import FORMS, count_numbers, dtype_of

pytestmark = pytest.mark.compiled

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
        parameters = np.resize(np.array(FAKE_PARAMETERS[key.form], np.float64), (rows, len(FORMS[key.form].parameters)))
        numbers = np.empty(rows * count_numbers(key), dtype_of(key))
        assert kernels.prepare_kernel(key)(np.ascontiguousarray(parameters.T).reshape(-1), numbers, rows)
        x = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3, size)
        with np.errstate(over="ignore"):
            x = np.where(rng.random(size) < 0.2, rng.choice(samples.SPECIAL, size), x).astype(np.float32)
        y = np.empty_like(x)
        TABLE[key].serial(x, numbers, y, inner, rows)
        given, made = (Buffer(each, displaced) for each in (x, y.nbytes))
        fields = gpu_records.of_rows(rows, inner) | {"scale": Buffer(numbers), "is_aligned": are_aligned(given, made)}
        launch(kernel, units=size, x=given, y=made, **fields)
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
