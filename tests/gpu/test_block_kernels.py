"""Kernels of block formats for GPUs, emulated, against those for processors: the same bits for every key and rounding mode."""

import numpy as np
import oracle
import ptx
import pytest
from block_samples import values
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch
from gpu_keys import BLOCK_KEYS, format_of

from quark_numba.block import device
from quark_numba.block.dispatch import TABLE
from quark_numba.block.formats import NVIDIA_FORMATS, mx_format
from quark_numba.block.granularity import NO_FAULT, BlockLoop, block_shape
from quark_numba.element_types import FLOAT32, packing

pytestmark = pytest.mark.compiled

# The shape of x, the axis, and whether it is displaced.
CASES = [
    ((0, 4), 0, False),
    ((1,), 0, False),
    ((7,), 0, False),
    ((64,), 0, True),
    ((3, 96), -1, False),
    ((3, 96), 0, False),
    ((3, 40), 1, False),
    ((5, 37), 1, False),
    ((33, 2), 0, False),
    ((2, 64, 9), 1, False),
    ((2, 33, 5), 1, True),
    ((40, 4, 17), 0, False),
    ((700, 32), 1, False),
]


# Bytes that are stored and loaded.
MOST_SPILLS = 128


def expected_of(key, x, numbers, loop, tensor_scale):
    y, scales = np.empty(x.size, key.y.storage), np.zeros(x.size * key.has_codes, np.uint8)
    TABLE[key].serial(x.reshape(-1).view(key.x.storage), y, scales, np.float32(tensor_scale), numbers, loop)
    return y, scales


def converted(kernel, key, x, axis, numbers, is_displaced, y_bytes, tensor_scale=1):
    """Return a buffer with the bytes of y, and the scales, of each block of x."""
    fault, length, inner = block_shape(x.shape, axis, numbers.block)
    assert fault == NO_FAULT
    per_byte = 8 // key.y.bits if key.y.is_packed else 1
    given, made = (Buffer(each, 4 * is_displaced) for each in (x, y_bytes))
    scales = Buffer(x.size // max(1, length * inner) * -(-length // numbers.block) * inner)
    launch(
        kernel,
        units=device.count_units(x.size, length, inner, numbers.block, per_byte),
        x=given,
        y=made,
        scales=scales,
        tensor_scale=Buffer(np.float32([tensor_scale])) if tensor_scale != 1 else 0,
        size=x.size,
        is_aligned=are_aligned(given, made),
        length=length,
        inner=inner,
        **numbers._asdict(),
    )
    return made, scales.bytes


def test_bits_are_those_of_numpy():
    attributes = {"element_dtype": "fp8_e4m3", "block_size": 4, "rounding_mode": 0}
    key, numbers = mx_format(FLOAT32, **attributes)
    kernel = kernel_of(device, key, numbers)
    for shape, axis, is_displaced in CASES:
        x = values(shape, "float32")
        made, _ = converted(kernel, key, x, axis, numbers, is_displaced, x.nbytes)
        assert_same_values(made, oracle.mx(x, axis=axis, **attributes), FLOAT32, (shape, axis))


@pytest.mark.parametrize(("key", "mode", "block"), BLOCK_KEYS)
@pytest.mark.covering("exhaustive")
@pytest.mark.slow
def test_bits_are_those_of_processors(key, mode, block):
    form = format_of(key, block, mode)
    kernel = kernel_of(device, key, form)
    for shape, axis, is_displaced in CASES:
        x = values(shape, key.x.name)
        if key.has_codes and x.size and x.shape[axis] % block:
            continue  # codes are of whole blocks
        _, length, inner = block_shape(shape, axis, block)
        tensor_scale = 0.37 if key.rule == "nvfp4" else 1
        y, scales = expected_of(key, x, form, BlockLoop(length, inner), tensor_scale)
        y = packing.pack(y.view(key.y.dtype)) if key.y.is_packed else y
        made, made_scales = converted(kernel, key, x, axis, form, is_displaced, y.nbytes, tensor_scale)
        assert_same_values(made, y, key.y, (shape, axis))
        if key.has_codes:
            np.testing.assert_array_equal(made_scales, scales[: made_scales.size], str((shape, axis)))


def test_packed_codes_of_two_blocks_share_no_byte():
    (nvfp4, _) = NVIDIA_FORMATS
    with pytest.raises(ValueError, match="block_size is 7; expected a multiple of 2 on a GPU"):
        device.kernel(*nvfp4.format(FLOAT32, 7, has_codes=True))


@pytest.mark.parametrize(("key", "mode", "block"), BLOCK_KEYS)
@pytest.mark.covering("exhaustive")
@pytest.mark.slow
def test_ptx_is_ieee_arithmetic(key, mode, block):
    ptx.check_text(device.kernel(key, format_of(key, block, mode)).ptx, divides=True)


@pytest.mark.parametrize(("key", "mode", "block"), BLOCK_KEYS)
@pytest.mark.covering("exhaustive")
@pytest.mark.slow
def test_ptx_is_assembled_with_few_spills(key, mode, block, tmp_path):
    for architecture, registers, _, spills in ptx.assembled(device.kernel(key, format_of(key, block, mode)).ptx, tmp_path):
        assert spills <= MOST_SPILLS, (architecture, registers)
