"""Parameters of tests of kernels for GPUs, from the package's tables."""

import pytest
from granularities import key_id

from quark_numba.block.dispatch import TABLE as BLOCK_TABLE
from quark_numba.block.formats import HALF_TO_EVEN, NVIDIA_FORMATS, ROUNDING_MODES, bfp_format, mx_format
from quark_numba.block.key import FLOAT8E4M3FN
from quark_numba.linear.dispatch import TABLE as LINEAR_TABLE
from quark_numba.linear.versions import types


def precisions(scale):
    """Return the precisions of the division that a scale of this type may have: see ``key.select``."""
    return {"int32": ["float64"], "float8e8m0": ["float32"]}.get(scale.name, [scale.name, "float32"])


LINEAR_KEYS = [
    pytest.param(key, scale, id=f"{key_id(key)}-{scale.name}")
    for key in LINEAR_TABLE
    for scale in types(key.operation, "scale")
    if key.operation == "dequantize" or key.precision.name in precisions(scale)
]


def format_of(key, block, mode):
    """Return the block format that has a key."""
    if key.rule in ("floor", "microexponent") and not key.has_codes and not key.element:
        method = "to_bfp_prime" if key.is_microexponent else "to_bfp"
        attributes = {
            "bit_width": 13,
            "block_size": block,
            "sub_block_size": 2 if block % 2 == 0 else 1,
            "sub_block_shift_bits": 1,
        }
        return bfp_format(key.x, bfp_method=method, rounding_mode=mode, convert_to_bfloat_before_bfp=0, **attributes)[1]
    for nvidia in NVIDIA_FORMATS:
        if key.rule == nvidia.rule and key.element is nvidia.codes:
            return nvidia.format(key.x, block, has_codes=key.has_codes)[1]
    names = {"float8e4m3fn": "fp8_e4m3", "float8e5m2": "fp8_e5m2", "float6e2m3": "fp6_e2m3", "float6e3m2": "fp6_e3m2"}
    dtype = names.get(key.codes.name, "fp4_e2m1" if key.element else "int8")
    return mx_format(key.x, element_dtype=dtype, block_size=block, rounding_mode=mode)[1]


def modes(key):
    return ROUNDING_MODES if key.element is None else [HALF_TO_EVEN]


def blocks_of(key):
    """Return block sizes: one that is held in registers, with vectors, and one that is not."""
    return (16, 32, 40) if key.codes.is_packed and key.has_codes else (16, 7, 32, 40)


BLOCK_KEYS = [
    pytest.param(key, mode, block, id=f"{key.name}-{mode}-{block}")
    # First the format that most tests use, whose kernels are compiled anyway.
    for key in sorted(BLOCK_TABLE, key=lambda key: key.element is not FLOAT8E4M3FN)
    for mode in modes(key)
    for block in blocks_of(key)
]
