"""The loop of a kernel, from the shapes of x, scale and zero point."""

import pytest

from quark_numba.linear.granularity import NO_FAULT, ROW, Loop, blocked, loop_shape, per_axis, per_tensor

# The shape of x, that of the scale, axis and block size, and the loop.
LOOPS = {
    "per tensor": ((4, 6), (), 1, 0, per_tensor(24)),
    "one element": ((4, 6), (1, 1), 0, 0, per_tensor(24)),
    "axis 0": ((4, 6), (4,), 0, 0, per_axis(24, 4, 6)),
    "last axis": ((4, 6), (6,), -1, 0, per_axis(24, 6, 1)),
    "blocks along axis 0": ((4, 6), (2, 6), -2, 2, blocked(4, 6, 2, 12)),
    "blocks along axis 1": ((4, 6), (4, 3), 1, 2, blocked(6, 1, 2, 12)),
    "a short block": ((4, 5), (4, 3), 1, 2, blocked(5, 1, 2, 12)),
    "blocks longer than the axis": ((4, 6), (4, 1), 1, 2**62, blocked(6, 1, 6, 4)),
    "no elements": ((0, 6), (6,), 1, 0, per_axis(0, 6, 1)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_granularity(name):
    x_shape, scale_shape, axis, block_size, loop = LOOPS[name]
    assert loop_shape(x_shape, scale_shape, scale_shape, axis, block_size) == (NO_FAULT, loop)


def test_constructors():
    assert per_tensor(24) == Loop(length=1, block=1, inner=24, rows=1, vary=False)
    assert per_axis(24, 4, 6) == Loop(length=4, block=1, inner=6, rows=4, vary=False)
    assert per_axis(24, 6, 1) == Loop(length=1, block=1, inner=12, rows=1, vary=True)  # two rows of x
    assert per_axis(1 << 20, 8, 1).inner == ROW
    assert per_axis(0, 0, 1) == Loop(length=1, block=1, inner=0, rows=1, vary=True)
    assert blocked(4, 6, 2, 12) == Loop(length=4, block=2, inner=6, rows=2, vary=True)
    assert blocked(6, 1, 2, 12) == Loop(length=6, block=2, inner=1, rows=12, vary=False)
    assert blocked(4, 0, 2, 0).rows == 0
