"""Kernels of the linear family for GPUs, emulated, against those for processors: the same bits for every key and type of
scale."""

import re

import numpy as np
import ptx
import pytest
import samples
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch
from gpu_keys import LINEAR_KEYS
from granularities import scales, zero_points

from quark_numba.element_types import packing
from quark_numba.linear import device
from quark_numba.linear.granularity import NO_FAULT, loop_shape
from quark_numba.linear.plans import Plan

pytestmark = pytest.mark.compiled

# The shape of x, the shape of scale and zero point, the axis, and the block size; and by how many elements x and y are
# displaced. 1024 elements are those of a block of threads, or half of them.
CASES = [
    ((0,), (), 0, 0, 0),
    ((1,), (), 0, 0, 0),
    ((3,), (), 0, 0, 0),
    ((2050,), (), 0, 0, 0),
    ((1031,), (), 0, 0, 1),
    ((8, 64), (8,), 0, 0, 0),
    ((3, 5, 7), (5,), 1, 0, 0),
    ((3, 5, 7), (5,), 1, 0, 3),
    ((3, 1, 7), (1,), 1, 0, 0),
    ((40, 7), (7,), -1, 0, 0),
    ((33, 12), (12,), -1, 0, 0),
    ((5, 1), (1,), -1, 0, 0),
    ((3, 5, 8), (3, 5, 2), 2, 4, 0),
    ((4, 96), (4, 3), 1, 32, 0),
    ((3, 6, 7), (3, 2, 7), -2, 3, 0),
    ((6, 35), (2, 35), 0, 3, 0),
    ((3, 5, 7), (3, 5, 3), 2, 3, 1),
    ((3, 5, 7), (3, 3, 7), 1, 2, 0),
    ((3, 5, 7), (3, 1, 7), 1, 9, 0),
]


def tensor(values, element_type, is_packed):
    """Return the bytes of a tensor, or of an array."""
    return packing.pack(values) if is_packed and element_type.is_packed else values


def without_repeated_scales(loop, scales):
    return loop._replace(inner=min(loop.inner, scales)) if loop.vary else loop


def elements(key, shape, rng):
    """Return an x: any codes, or floats of which some are special and most are near the range of the codes."""
    count = int(np.prod(shape))
    if key.operation == "dequantize":
        return np.resize(rng.permutation(samples.codes(key.x.name)), count).reshape(shape)
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 6, count)
    x = np.where(rng.random(count) < 0.2, rng.choice(samples.SPECIAL, count), values)
    with np.errstate(all="ignore"):
        return (np.nan_to_num(x).clip(-(2.0**31), 2.0**31 - 1) if key.x.is_integer else x).astype(key.x.dtype).reshape(shape)


@pytest.mark.parametrize(("key", "scale_type", "is_packed"), LINEAR_KEYS)
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_bits_are_those_of_processors(key, scale_type, is_packed):
    kernel, rng = kernel_of(device, key, scale_type, is_packed=is_packed), np.random.default_rng(0)
    for shape, scale_shape, axis, block_size, displaced in CASES:
        for has_zero_point in (True, False):
            x = elements(key, shape, rng)
            scale, zero_point = scales(scale_type.name, scale_shape), zero_points(key.quantized.name, scale_shape)
            if scale_type.name == "int32":
                scale = scale * 1000  # codes other than the last ones
            zero_point = zero_point if has_zero_point else np.zeros_like(zero_point)
            fault, loop = loop_shape(shape, scale_shape, scale_shape, axis, block_size)
            assert fault == NO_FAULT
            y = np.empty(shape, key.y.dtype)
            Plan(key, loop, scale.dtype, zero_point.dtype).convert(scale, zero_point, x, y)
            expected = tensor(y, key.y, is_packed)
            offsets = [displaced * max(1, device.bits_in(each, is_packed) // 8) for each in (key.x, key.y)]
            given, made = Buffer(tensor(x, key.x, is_packed), offsets[0]), Buffer(expected.nbytes, offsets[1])
            launch(
                kernel,
                units=x.size,
                x=given,
                y=made,
                scale=Buffer(scale),
                scales=scale.size,
                zero_point=Buffer(tensor(zero_point, key.quantized, is_packed)) if has_zero_point else 0,
                is_aligned=are_aligned(given, made),
                **without_repeated_scales(loop, scale.size)._asdict(),
            )
            assert_same_values(made, expected, key.y, (shape, scale_shape, axis, block_size, displaced))


@pytest.mark.parametrize(("key", "scale_type", "is_packed"), LINEAR_KEYS)
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_ptx_is_ieee_arithmetic(key, scale_type, is_packed):
    text = device.kernel(key, scale_type, is_packed=is_packed).ptx
    ptx.check_text(text, divides=key.operation != "dequantize")
    assert ".local" not in text
    for name, side in (("ld", key.x), ("st", key.y)):
        if side.storage.itemsize == 4:
            assert re.search(rf"\b{name}\.(global\.)?v(2\.[bu]64|4\.[bfu]32)", text), f"{name}: no vectors"


@pytest.mark.parametrize(("key", "scale_type", "is_packed"), LINEAR_KEYS)
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_ptx_is_assembled_without_local_memory(key, scale_type, is_packed, tmp_path):
    for architecture, _, stack, spills in ptx.assembled(device.kernel(key, scale_type, is_packed=is_packed).ptx, tmp_path):
        assert (stack, spills) == (0, 0), architecture
