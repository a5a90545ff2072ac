"""What nodes of regions get from the shapes of their inputs, in plain Python: y's shape, how y is cut, and the loops."""

from types import SimpleNamespace

import numpy as np
import pytest

from quark_numba.region import gpu_loops, granularity
from quark_numba.region.granularity import (
    NO_FAULT,
    NOT_ALIKE,
    NOT_BLOCKED,
    NOT_ONE,
    OPERAND,
    TOO_MANY_LOOPS,
    WRONG_AXIS,
    WRONG_CHANNELS,
)
from quark_numba.region.key import parse

SHAPE_STRIDE = 8


def operands_of(shapes, axes, scalars=None):
    """Return Operands. Inputs with the axis 0 have to have one element. As in nodes, `axes` and `scalars` are longer than the
    inputs are many."""
    rows = np.concatenate([[0] * (SHAPE_STRIDE - len(shape)) + list(shape) for shape in shapes])
    scalars = [axis == 0 for axis in axes] if scalars is None else [*scalars]
    longer = np.array([*axes, 0, 0]), np.array([*scalars, 0, 0])
    return granularity.Operands(rows, np.array([len(shape) for shape in shapes]), *longer, SHAPE_STRIDE)


def y_of(operands, lanes=0):
    """Return (fault, number of the faulty input, y's shape as an array)."""
    y_shape = np.zeros(SHAPE_STRIDE, np.int64)
    fault, faulty_input, rank = granularity.write_y_shape(operands, lanes, y_shape)
    return fault, faulty_input, y_shape[SHAPE_STRIDE - rank :]


def layout_of(shape, axis, block, is_blocked, channels):
    """Return (fault, the record of how y lies in memory)."""
    work = SimpleNamespace()
    return granularity.set_layout(work, np.array(shape, np.int64), int(np.prod(shape)), block, axis, is_blocked, channels), work


def arrays(count=3):
    return [np.zeros(SHAPE_STRIDE, np.int64) for _ in range(count)]


@pytest.mark.parametrize(
    ("shapes", "axes", "loop"),
    [
        ([(2, 3, 4), (2, 3, 4)], [OPERAND, OPERAND], ([24], [0b11])),
        ([(2, 3, 4), (3, 1)], [OPERAND, OPERAND], ([2, 3, 4], [0b01, 0b11, 0b01])),
        ([(2, 3, 4), (3,)], [OPERAND, -2], ([2, 3, 4], [0b01, 0b11, 0b01])),
        ([(2, 3, 4), ()], [OPERAND, 0], ([24], [0b01])),
        ([(2, 1, 5), (1, 1)], [OPERAND, OPERAND], ([10], [0b01])),
        ([(1, 1), ()], [OPERAND, OPERAND], ([1], [-1])),
        ([(3, 1), (1, 4)], [OPERAND, OPERAND], ([3, 4], [0b01, 0b10])),
    ],
    ids=str,
)
def test_loops(shapes, axes, loop):
    """Neighbouring dimensions are merged if the same inputs have both."""
    operands = operands_of(shapes, axes)
    fault, _, y_shape = y_of(operands)
    assert fault == NO_FAULT
    assert tuple(y_shape) == np.broadcast_shapes(*(s for s, axis in zip(shapes, axes, strict=True) if axis == OPERAND))
    lengths, masks = arrays(2)
    count = granularity.merge_dimensions(operands, 0, y_shape, lengths, masks)
    assert (list(lengths[:count]), list(masks[:count])) == loop


def test_the_axis_of_blocks_is_a_loop_of_its_own():
    operands = operands_of([(2, 3, 4, 5), (3, 1, 1)], [OPERAND, OPERAND])
    lengths, masks = arrays(2)
    count = granularity.merge_dimensions(operands, -2, np.array([2, 3, 4, 5]), lengths, masks)
    assert (list(lengths[:count]), list(masks[:count])) == ([2, 3, 4, 5], [0b001, 0b011, 0b101, 0b001])


@pytest.mark.parametrize(
    ("shapes", "axes", "layout", "expected"),
    [
        ([(2, 3), (7,)], [OPERAND, OPERAND], 0, (NOT_ALIKE, 1)),
        ([(2, 3), (7,)], [OPERAND, -1], 0, (NOT_ALIKE, 1)),
        ([(2, 3), (3,)], [OPERAND, -3], 0, (NOT_ALIKE, 1)),
        ([(2, 3), (2, 3)], [OPERAND, -1], 0, (NOT_ALIKE, 1)),
        ([(2, 3), (2, 2)], [OPERAND, 0], 0, (NOT_ONE, 1)),
        ([(2, 8, 3, 3), (2, 12, 3, 3)], [OPERAND, OPERAND], 8, (NOT_BLOCKED, 1)),
        ([(2, 16, 3, 3), (2, 8, 3, 3)], [OPERAND, OPERAND], 8, (NO_FAULT, 0)),
        ([(2, 16, 3, 3), (2, 24, 3, 3)], [OPERAND, OPERAND], 8, (NOT_ALIKE, 1)),
    ],
    ids=str,
)
def test_wrong_shapes(shapes, axes, layout, expected):
    assert y_of(operands_of(shapes, axes), layout)[:2] == expected


@pytest.mark.parametrize("shapes", [[(2, 16, 3, 5), (1, 1, 3, 1)], [(2, 16, 3, 5), (2, 16, 1, 1)], [(2, 1, 3, 5)], [(3, 5)]])
def test_blocked_shapes(shapes):
    """They broadcast as the tensors' elements lie, and become ONNX's shapes again."""
    fault, _, y_shape = y_of(operands_of(shapes, [OPERAND] * len(shapes)), 8)
    assert fault == NO_FAULT
    y = np.zeros(np.broadcast_shapes(*shapes))
    if y.ndim != 4:
        assert tuple(y_shape) == y.shape
        return
    n, channels, h, w = y.shape
    assert tuple(y_shape) == ((n, channels // 8, h, w, 8) if channels > 1 else (n, 1, h, w, 1))
    joined = np.zeros(4, np.int64)
    granularity.join_channels(y_shape, joined)
    assert tuple(joined) == y.shape


@pytest.mark.parametrize(("groups", "lanes"), [(1, 1), (1, 8), (3, 4)])
@pytest.mark.parametrize("block", [0, 2])
def test_channels_of_padding(groups, lanes, block):
    """Every element of a blocked tensor is one of y's own channels, or of padding."""
    shape = np.array([2, groups, 3, 5, lanes])
    channel = np.arange(groups)[:, None, None, None] * lanes + np.arange(lanes)
    channels = np.broadcast_to(channel, shape).ravel()
    for own in range(groups * lanes + 3):
        fault, work = layout_of(shape, -3, block, True, own)
        if own and not (groups - 1) * lanes < own <= groups * lanes:
            assert fault == WRONG_CHANNELS
            continue
        assert fault == NO_FAULT
        assert work.lanes == lanes
        at = np.arange(channels.size)
        is_padding = (at % work.batch_size >= work.last_block) & (at % lanes >= work.own_lanes) & (work.own_lanes > 0)
        np.testing.assert_array_equal(is_padding, (channels >= own) & (own > 0))
        assert (work.outer, work.length, work.inner) == (2, own or groups * lanes, 15)
        assert work.outer * work.length * work.inner == np.count_nonzero(~is_padding)
        assert work.size == channels.size


@pytest.mark.parametrize("axis", [-1, -2, -3])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 7, 1), (4, 1, 6), (1, 1, 8), (12,), (3, 0, 4), ()])
def test_blocks_in_memory(shape, axis):
    """The elements of a block are `inner` apart, or, as the channels of one place of the blocked layout, side by side."""
    size = int(np.prod(shape))
    fault, work = layout_of(shape, axis, 2, False, 0)
    if len(shape) > 1 and -axis > len(shape):
        assert fault == WRONG_AXIS
        return
    assert fault == NO_FAULT
    assert (work.size, work.outer * work.length * work.inner, work.own_lanes) == (size, size, 0)
    at = np.arange(size).reshape(shape if len(shape) > 1 else (size,))
    along = np.moveaxis(at, axis if len(shape) > 1 else 0, -1)
    blocks = (
        {tuple(row[i : i + 2]) for row in along.reshape(-1, along.shape[-1]) for i in range(0, len(row), 2)} if size else set()
    )
    if work.lanes:
        rows = np.arange(size).reshape(-1, work.lanes)
        assert work.lanes == work.length
        assert work.inner == len(rows)
    else:
        rows = np.moveaxis(np.arange(size).reshape(-1, max(work.length, 1), max(work.inner, 1)), 1, 2).reshape(
            -1, max(work.length, 1)
        )
    assert {tuple(row[i : i + 2]) for row in rows for i in range(0, len(row), 2)} == blocks


def test_other_ranks_in_the_blocked_layout():
    """A tensor that does not have four dimensions is in ONNX's layout."""
    fault, work = layout_of((5, 1, 1), -3, 2, True, 3)
    assert (fault, work.outer, work.length, work.inner, work.lanes, work.own_lanes) == (NO_FAULT, 1, 5, 1, 5, 0)


PLAIN = parse("region (float x0, float x1, float[1] x2) => (float y) { v0 = Add (x0, x1)  y = Mul (v0, x2) }")
BLOCKS = parse(
    """region (float x0, float x1, float[1] x2) => (float y) {
    v0 = Add (x0, x1)  v1 = Mul (v0, x2)
    y = com.amd.quark.BFPQuantizeDequantize <axis: int = -2, block_size: int = 4> (v1)
}"""
)
SHAPES = [(), (7,), (3, 5), (2, 3, 5), (2, 1, 5), (1, 6, 1), (2, 4, 3, 5), (2, 1, 3, 1, 4)]


@pytest.mark.parametrize("axis", [0, -1, -2, -3])
@pytest.mark.parametrize("other", [(), (1,), (5,), (3, 1), (2, 1, 1), (2, 3, 5), (1, 3, 1, 5)])
def test_loops_of_gpus(axis, other):
    """The record tells which element of each input goes with an element of y, as numpy broadcasts."""
    made = 0
    for shape in SHAPES:
        try:
            y_shape = np.broadcast_shapes(shape, other)
        except ValueError:
            continue
        operands = operands_of([shape, other, ()], [OPERAND] * 3, [False, False, True])
        fault, loops = gpu_loops.loops_of(operands, axis, np.array(y_shape, np.int64), *arrays())
        if len(y_shape) > 1 and -axis > len(y_shape):
            assert fault == WRONG_AXIS
            continue
        if fault == TOO_MANY_LOOPS:
            assert len(y_shape) > 3
            continue
        made += 1
        size, block = int(np.prod(y_shape)), 4 if axis else 0
        dtype = gpu_loops.work_of(BLOCKS if axis else PLAIN)
        words = np.full(dtype.itemsize // 8, -1, np.int64)
        words[:4] = 32, 64, 96, 8  # the addresses of y and of the inputs
        units = gpu_loops.set_work(words, operands, size, block, loops)
        work = {name: int(value) for name, value in zip(dtype.names, words.view(dtype)[0].item(), strict=True)}
        assert (work["y"], work["x0"], work["x2"], work["units"]) == (32, 32 + 32, 8, units)
        loop = [work[f"length{d}"] for d in range(granularity.GPU_LOOPS)]
        assert units == np.prod(loop)
        if axis:
            assert work["rows"] == (y_shape[max(axis, -len(y_shape))] if y_shape else 1)
            assert loop[gpu_loops.BLOCK_LOOP] == -(-work["rows"] // block)
            if axis == -1 and work["rows"] > 1:  # neighbouring threads have neighbouring blocks
                assert loop[3] == 1 or 1 not in loop[:2]
            loop[gpu_loops.BLOCK_LOOP] = work["rows"]
        places = np.indices(loop).reshape(len(loop), -1)

        def index_of(k, places=places, work=work):
            return sum(place * work[f"stride{k}_{d}"] for d, place in enumerate(places))

        of_y = index_of("_y") if axis else np.arange(size)
        np.testing.assert_array_equal(np.sort(of_y), np.arange(size))
        for k, x_shape in enumerate((shape, other)):
            x = np.arange(int(np.prod(x_shape))).reshape(x_shape)
            np.testing.assert_array_equal(index_of(k), np.broadcast_to(x, y_shape).ravel()[of_y])
            assert work["full"] >> k & 1 == (x.size == size)
        assert work["is_aligned"] == 1
    assert made


def test_alignment():
    """Only inputs that lie as y does count."""
    program = gpu_loops.work_of(PLAIN)
    for y, x0, x1, is_aligned in [(32, 64, 4, 1), (32, 4, 64, 0), (4, 32, 64, 0)]:
        operands = operands_of([(3, 5), (5,), ()], [OPERAND] * 3, [False, False, True])
        _, loops = gpu_loops.loops_of(operands, 0, np.array([3, 5]), *arrays())
        words = np.zeros(program.itemsize // 8, np.int64)
        words[:4] = y, x0, x1, 4
        gpu_loops.set_work(words, operands, 15, 0, loops)
        assert words.view(program)[0]["is_aligned"] == is_aligned


def test_many_loops():
    shape = np.array([2, 3, 2, 3, 2])
    operands = operands_of([tuple(shape), (1, 3, 1, 3, 1)], [OPERAND, OPERAND])
    for axis in (0, -1, -5):
        assert gpu_loops.loops_of(operands, axis, shape, *arrays())[0] == TOO_MANY_LOOPS
    operands = operands_of([(2, 3, 2, 3), (3, 1, 3)], [OPERAND, OPERAND])
    assert gpu_loops.loops_of(operands, 0, shape[:4], *arrays())[0] == NO_FAULT
