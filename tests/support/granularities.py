"""Parameters of tests, from the package's tables: keys of kernels, and shapes, scales and zero points of every granularity."""

import numpy as np
import oracle
import pytest
import samples

from quark_numba.linear.dispatch import TABLE
from quark_numba.linear.versions import types


def key_id(key):
    types = dict.fromkeys([key.x.name, key.precision.name, key.quantized.name, key.y.name])
    return "-".join([key.operation, *types] + ["unsaturated"] * (not key.saturate))


def keys(operation):
    return pytest.mark.parametrize("key", [key for key in TABLE if key.operation == operation], ids=key_id)


# The shape of x, the shape of scale and zero point, the axis, and the block size.
GRANULARITIES = {
    "per_tensor": ((3, 5, 7), (), 1, 0),
    "per_axis": ((3, 5, 7), (5,), 1, 0),
    "per_last_axis": ((3, 5, 7), (7,), -1, 0),
    "blocks_along_last_axis": ((3, 5, 8), (3, 5, 2), 2, 4),
    "blocks_along_another_axis": ((3, 6, 7), (3, 2, 7), -2, 3),
    "blocks_along_first_axis": ((6, 35), (2, 35), 0, 3),
    "short_last_block_along_last_axis": ((3, 5, 7), (3, 5, 3), 2, 3),
    "short_last_block_along_another_axis": ((3, 5, 7), (3, 3, 7), 1, 2),
}
granularities = pytest.mark.parametrize("granularity", GRANULARITIES)
with_or_without_zero_point = pytest.mark.parametrize("with_zero_point", [True, False], ids=["zero_point", "no_zero_point"])


def scale_types(operation):
    return pytest.mark.parametrize("scale_name", [row.name for row in types(operation, "scale")])


def quantized_types(operation):
    return pytest.mark.parametrize("name", [row.name for row in types(operation, "quantized")])


def scales(scale_name, shape):
    uniform = np.random.default_rng(5).uniform(0.02, 4, shape)
    return np.array(np.ceil(uniform) if scale_name == "int32" else uniform).astype(oracle.dtype(scale_name))


def zero_points(name, shape):
    return np.resize(np.array(samples.zero_points(name)), shape)


def cell(granularity, scale_name, name, with_zero_point):
    """Return the shape of x, scale and zero point, the same broadcast to the elements of x, and the attributes."""
    x_shape, scale_shape, axis, block_size = GRANULARITIES[granularity]
    parameters = [scales(scale_name, scale_shape), zero_points(name, scale_shape) if with_zero_point else None]
    spread = [each if each is None else oracle.spread(each, axis, block_size, x_shape) for each in parameters]
    return x_shape, parameters, spread, {"axis": axis, "block_size": block_size}
