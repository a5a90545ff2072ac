"""Configurations, shapes and inputs for tests of the block formats, and models of one of their operators."""

import functools
from itertools import product

import numba
import numpy as np
import oracle
import pytest
import samples
from onnx import helper
from onnx_models import model

from quark_numba.block.formats import MX_ELEMENT_TYPES, ROUNDING_MODES
from quark_numba.block.key import X_TYPES

# BFP16, MX4, MX6 and MX9 with the attributes that Quark writes, then other bit widths and block sizes, some of them not powers
# of two.
BFP = {
    "BFP16": {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8},
    "MX4": {"bfp_method": "to_bfp_prime", "bit_width": 11, "block_size": 16},
    "MX6": {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 16},
    "MX9": {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16},
    "MX9 shared": {"bfp_method": "to_bfp_prime_shared", "bit_width": 16, "block_size": 16},
    "narrowest": {"bfp_method": "to_bfp", "bit_width": 10, "block_size": 5},
    "widest": {"bfp_method": "to_bfp", "bit_width": 24, "block_size": 1},
    "widest prime": {"bfp_method": "to_bfp_prime", "bit_width": 24, "block_size": 12, "sub_block_size": 3},
    "many shifts": {
        "bfp_method": "to_bfp_prime",
        "bit_width": 12,
        "block_size": 64,
        "sub_block_size": 4,
        "sub_block_shift_bits": 3,
    },
    "via bfloat16": {"bfp_method": "to_bfp", "bit_width": 17, "block_size": 8, "convert_to_bfloat_before_bfp": 1},
    "prime via bfloat16": {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16, "convert_to_bfloat_before_bfp": 1},
}
# First the format that most tests use, whose kernels are compiled anyway.
_ELEMENT_DTYPES = sorted(MX_ELEMENT_TYPES, key=lambda name: name != "fp8_e4m3")
MX = {f"{name}, {size}": {"element_dtype": name, "block_size": size} for name, size in product(_ELEMENT_DTYPES, (32, 7))}

SHAPES = [(1,), (7,), (64,), (100,), (1, 1, 1), (0, 4), (3, 40), (40, 3), (33, 1), (2, 33, 5), (2, 64, 9), (2, 3, 4, 70)]
SHAPES += [(2, 35, 4, 6)]
if numba.config.DISABLE_JIT:
    SHAPES = [shape for shape in SHAPES if np.prod(shape) <= 330]

x_types = pytest.mark.parametrize("x_type", [row.name for row in X_TYPES])
rounding_modes = pytest.mark.parametrize("rounding_mode", ROUNDING_MODES)


@functools.cache
def values(shape, x_type, seed=0):
    """Return values of all exponents, with ties. Neighbours have similar exponents. Some blocks are zeros or subnormals, and a
    few have special values."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    lengths = np.arange(size) // 37
    center = rng.integers(-150, 128, size)[lengths] if size else lengths
    exponents = np.clip(center + rng.integers(-9, 3, size), -149, 127)
    significands = np.where(rng.random(size) < 0.3, rng.integers(0, 2**9, size) * 2**14, rng.integers(0, 2**23, size))
    with np.errstate(all="ignore"):
        x = ((1 + significands * 2.0**-23) * np.exp2(exponents.astype(np.float64))).astype(np.float32)
        x *= rng.choice(np.array([-1, 1], np.float32), size)
        x[rng.integers(0, 5, size)[lengths] == 0] *= np.float32(0)
        at = (rng.integers(0, 4, size)[lengths] == 1) & (rng.random(size) < 0.1)
        x[at] = rng.choice(samples.SPECIAL, int(at.sum()))
        if x_type == "float16":
            x = np.where(np.abs(x) > 65504, np.ldexp(x, -100), x)
            x = np.where(np.isfinite(x) & (np.abs(x) < 1e-8), np.ldexp(x, 30), x)
        x = x.astype(oracle.dtype(x_type))
    return x.reshape(shape)


def axes(shape):
    return range(-len(shape), len(shape))


def one_node(operator, attributes, x_type="float32", shape=None):
    node = helper.make_node(operator.name, ["x"], ["y"], domain=operator.domain, **attributes)
    return model([node], [("x", x_type, shape)], [("y", x_type, None)], domains=[operator.domain])
