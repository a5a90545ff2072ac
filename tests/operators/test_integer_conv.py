"""The convolution of codes in the blocked layout. The oracle adds integers of 64 bits, in ONNX's layout."""

import functools

import numpy as np
import onnx
import pytest
from conv_oracle import convolve, in_blocks
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import session

import quark_numba

pytestmark = pytest.mark.compiled

LANES = (8, 16)

# Kernel, strides, dilations, pads: with rows and columns that differ in all of them.
WINDOWS = {
    "pointwise": ((1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    "pointwise with strides": ((1, 1), (2, 3), (1, 1), (0, 0, 0, 0)),
    "pointwise with pads": ((1, 1), (1, 1), (1, 1), (1, 0, 2, 3)),
    "3 x 3": ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "strides": ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    "strides and dilations": ((3, 2), (1, 3), (2, 2), (0, 2, 1, 0)),
    "dilations beside pads": ((2, 3), (2, 1), (3, 4), (2, 4, 3, 4)),
    "large pads": ((2, 2), (1, 1), (1, 1), (3, 4, 5, 6)),
    "a row": ((1, 5), (1, 2), (1, 1), (0, 2, 0, 2)),
}

# Channels of x in a group, channels of y in a group, groups (of whole blocks), height, width: lengths beside those of tiles.
SHAPES = {
    "few": (4, 3, 1, 9, 13),
    "one block": (16, 16, 1, 9, 27),
    "parts of blocks": (21, 35, 1, 10, 14),
    "more blocks": (52, 80, 1, 9, 41),
    "groups": ("lanes", "lanes", 3, 9, 11),
    "groups of several blocks": ("2 lanes", "3 lanes", 2, 9, 10),
}


def cases():
    """Return each window with two shapes, and each shape with two windows."""
    names = [*WINDOWS], [*SHAPES]
    pairs = {(names[0][k], names[1][(k + shift) % len(SHAPES)]) for k in range(len(WINDOWS)) for shift in (0, 3)}
    return sorted(pairs | {(names[0][(3 * k) % len(WINDOWS)], shape) for k, shape in enumerate(SHAPES)})


def model(x, *constants, are_inputs=False, **attributes):
    """Return the model of a node with these weights, scales and biases, and a table if there is one."""
    names = ("w", "scale", "bias", "table")[: len(constants)]
    name, y_type = ("IntegerConv", "FLOAT") if len(names) == 3 else ("IntegerConvToCodes", "UINT8")
    node = helper.make_node(name, ["x", *names], ["y"], domain="quark_numba", **attributes)
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), None)]
    tensors = [numpy_helper.from_array(array, name) for array, name in zip(constants, names, strict=True)]
    if are_inputs:
        inputs += [helper.make_tensor_value_info(tensor.name, tensor.data_type, None) for tensor in tensors]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.DataType.Value(y_type), None)
    graph = helper.make_graph([node], "graph", inputs, [y], [] if are_inputs else tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("quark_numba", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def result(x, *constants, threads=1, are_inputs=False, **attributes):
    feeds = {"x": x} | (dict(zip(("w", "scale", "bias", "table"), constants, strict=False)) if are_inputs else {})
    made = session(model(x, *constants, are_inputs=are_inputs, **attributes), threads=threads)
    return made.run(None, feeds)[0]


class Case:
    """Codes and weights, attributes, and the expected y in blocks."""

    def __init__(self, window, shape, lanes, seed=0, batch=2):
        random = np.random.default_rng(seed)
        kernel, strides, dilations, pads = WINDOWS[window]
        times = {"lanes": lanes, "2 lanes": 2 * lanes, "3 lanes": 3 * lanes}
        inner, outer, group, h, w = (times.get(number, number) for number in SHAPES[shape])
        self.zero_point = int(random.integers(0, 256))
        self.codes = random.integers(0, 256, (batch, inner * group, h, w)).astype(np.uint8)
        self.w = random.integers(-128, 128, (outer * group, inner, *kernel)).astype(np.int8)
        self.scale = np.exp2(random.integers(-6, 6, len(self.w))).astype(np.float32)
        self.bias = random.integers(-1000, 1000, len(self.w)).astype(np.float32)
        self.attributes = {"lanes": lanes, "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
        self.attributes |= {"group": group, "x_scale": 0.25, "x_zero_point": self.zero_point}
        sums = convolve(self.codes, self.w, strides, dilations, pads, group, self.zero_point)
        exact = sums * self.scale.astype(np.float64).reshape(-1, 1, 1) + self.bias.reshape(-1, 1, 1)
        # Products of integers below 2^24 by powers of two are exact in float32, and so the only rounding is that of the sum.
        assert np.abs(sums).max() < 1 << 24
        self.exact = exact.astype(np.float32)
        self.lanes = lanes

    @property
    def constants(self):
        return self.w, self.scale, self.bias

    @property
    def y(self):
        return in_blocks(self.exact, self.lanes)

    @property
    def blocked_codes(self):
        """The codes in blocks. The added channels hold other codes than the zero point."""
        return in_blocks(self.codes, self.lanes, 77)

    @property
    def blocked_numbers(self):
        """The numbers of the codes in blocks. The added channels hold NaN."""
        return in_blocks((self.codes.astype(np.float32) - np.float32(self.zero_point)) / 4, self.lanes, np.nan)


@functools.cache
def case_of(window, shape, lanes):
    return Case(window, shape, lanes)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("window", "shape"), cases())
@pytest.mark.covering
def test_sums_are_those_of_integers(window, shape, lanes, threads):
    case = case_of(window, shape, lanes)
    for x in (case.blocked_codes, case.blocked_numbers):
        np.testing.assert_array_equal(result(x, *case.constants, threads=threads, **case.attributes), case.y)


@pytest.mark.parametrize("lanes", LANES)
def test_weights_that_are_not_constants(lanes):
    for name in ("groups", "parts of blocks"):
        case = case_of("3 x 3", name, lanes)
        y = result(case.blocked_codes, *case.constants, are_inputs=True, **case.attributes)
        np.testing.assert_array_equal(y, case.y)


@pytest.mark.parametrize("lanes", LANES)
def test_every_width(lanes):
    """Tiles cover rows of all lengths, and images of all numbers of pixels."""
    random = np.random.default_rng(lanes)
    w, scale, bias = (
        random.integers(-128, 128, (40, 8, 1, 3)).astype(np.int8),
        np.ones(40, np.float32),
        np.zeros(40, np.float32),
    )
    attributes = {"lanes": lanes, "x_zero_point": 3}
    made = session(model(np.empty(0, np.uint8), w, scale, bias, kernel_shape=[1, 3], **attributes))
    pointwise = session(model(np.empty(0, np.uint8), w[..., :1], scale, bias, kernel_shape=[1, 1], **attributes))
    for width in range(1, 45):
        codes = random.integers(0, 256, (1, 8, 2, width + 2)).astype(np.uint8)
        (y,) = made.run(None, {"x": in_blocks(codes, lanes)})
        np.testing.assert_array_equal(y, in_blocks(convolve(codes, w, zero=3).astype(np.float32), lanes))
        (y,) = pointwise.run(None, {"x": in_blocks(codes[..., :width], lanes)})
        np.testing.assert_array_equal(y, in_blocks(convolve(codes[..., :width], w[..., :1], zero=3).astype(np.float32), lanes))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("code", "weight"), [(255, 127), (255, -128), (0, -128), (255, 0)])
@pytest.mark.parametrize("zero_point", [0, 128, 255])
def test_largest_sums(lanes, code, weight, zero_point):
    """Sums of two products do not saturate at 16 bits."""
    codes, w = np.full((1, 64, 3, 5), code, np.uint8), np.full((17, 64, 2, 2), weight, np.int8)
    y = result(
        in_blocks(codes, lanes),
        *(w, np.ones(17, np.float32), np.zeros(17, np.float32)),
        lanes=lanes,
        kernel_shape=[2, 2],
        x_zero_point=zero_point,
        pads=[1, 1, 1, 1],
    )
    expected = convolve(codes, w, pads=(1, 1, 1, 1), zero=zero_point)
    np.testing.assert_array_equal(y, in_blocks(expected.astype(np.float32), lanes))


@pytest.mark.parametrize("lanes", LANES)
def test_codes_of_any_number(lanes):
    """Numbers are rounded half to even and saturate. NaN has the code 0."""
    numbers = np.array(
        [0.25, 0.75, 1.25, -0.25, -0.75, -1.25, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, -0.0, 60, -60.25]
    )
    numbers = numbers.astype(np.float32)
    codes = np.array([10, 12, 12, 10, 8, 8, 10, 10, 255, 0, 255, 0, 0, 10, 130, 0])
    # -60.25 is -120.5 steps, below the lowest code.
    x = np.zeros((1, 4, 1, 16), np.float32)
    x[0, 1] = numbers
    w = np.zeros((1, 4, 1, 1), np.int8)
    w[0, 1] = 1
    attributes = {"lanes": lanes, "kernel_shape": [1, 1], "x_scale": 0.5, "x_zero_point": 10}
    y = result(in_blocks(x, lanes), w, np.ones(1, np.float32), np.zeros(1, np.float32), **attributes)
    assert y[0].reshape(-1, 16, lanes)[0, :, 0].tolist() == (codes - 10).tolist()


@pytest.mark.parametrize("lanes", LANES)
def test_relu(lanes):
    case = case_of("3 x 3", "one block", lanes)
    y = result(case.blocked_codes, *case.constants, **case.attributes, relu=1)
    np.testing.assert_array_equal(y, np.maximum(case.y, 0))
    assert (y == 0).any()
    assert (y > 0).any()


def test_a_sum_of_zero_has_no_sign():
    """As ONNX Runtime's convolution, whose sums begin with 0."""
    codes, w = np.full((1, 16, 1, 1), 5, np.uint8), np.full((16, 16, 1, 1), -3, np.int8)
    bias = np.array([0.0, -0.0] * 8, np.float32)
    y = result(codes, w, np.ones(16, np.float32), bias, lanes=16, kernel_shape=[1, 1], x_zero_point=5)
    assert not np.signbit(y).any()
    assert not y.any()


TABLE = np.random.default_rng(4).integers(0, 256, 256).astype(np.uint8)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("window", "shape"), cases())
@pytest.mark.covering
def test_codes_of_y_are_looked_up(window, shape, lanes):
    """Also the added channels have the code of 0, in the table."""
    case = case_of(window, shape, lanes)
    scale = 2.0 ** round(np.log2(np.abs(case.exact).max() / 150))
    expected = TABLE[np.clip(np.rint(case.y / np.float32(scale)) + 100, 0, 255).astype(np.uint8)]
    attributes = case.attributes | {"y_scale": scale, "y_zero_point": 100}
    for x in (case.blocked_codes, case.blocked_numbers):
        y = result(x, *case.constants, TABLE, **attributes)
        assert y.dtype == np.uint8
        np.testing.assert_array_equal(y, expected)
    node = model(x, *case.constants, TABLE, **attributes)
    made = ReferenceEvaluator(node, new_ops=quark_numba.reference_ops())
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("lanes", LANES)
def test_every_code_of_y(lanes):
    """Ties, numbers beyond all codes, and every entry of the table, with more and fewer pixels than a vector of codes has."""
    for count in (1, 3, 5, 7, 22, 55):
        codes, w = np.zeros((1, 4, 1, count), np.uint8), np.zeros((40, 4, 1, 1), np.int8)
        codes[0, 0] = np.arange(count)
        w[:, 0, 0, 0] = np.arange(40) % 5 + 1
        bias = np.arange(40).astype(np.float32) * 8 - 150
        numbers = codes[0, 0, 0] * w[:, :, 0, 0][:, :1].astype(np.float32) / 2 + bias[:, None]
        expected = TABLE[np.clip(np.rint(numbers) + 120, 0, 255).astype(np.uint8)][None, :, None]
        scale = np.full(40, 0.5, np.float32)
        attributes = {"lanes": lanes, "kernel_shape": [1, 1], "y_scale": 1.0, "y_zero_point": 120}
        y = result(in_blocks(codes, lanes), w, scale, bias, TABLE, **attributes)
        np.testing.assert_array_equal(y, in_blocks(expected, lanes, TABLE[120]))


def test_a_table_that_is_no_constant():
    case = case_of("3 x 3", "one block", 16)
    attributes = case.attributes | {"y_scale": 1024.0, "y_zero_point": 100}
    y, other = (result(case.blocked_codes, *case.constants, TABLE, are_inputs=each, **attributes) for each in (False, True))
    np.testing.assert_array_equal(other, y)
    for are_inputs in (False, True):
        with pytest.raises(Exception, match=r"table has shape .255.*expected 256 elements"):
            result(case.blocked_codes, *case.constants, TABLE[:255], are_inputs=are_inputs, **attributes)


def test_no_batch():
    case = case_of("3 x 3", "one block", 16)
    assert result(case.blocked_codes[:0], *case.constants, **case.attributes).shape == (0, *case.y.shape[1:])


@pytest.mark.parametrize("window", WINDOWS)
def test_reference_evaluator(window):
    for shape in ("parts of blocks", "groups"):
        case = case_of(window, shape, 16)
        for x in (case.blocked_codes, case.blocked_numbers):
            made = ReferenceEvaluator(model(x, *case.constants, **case.attributes), new_ops=quark_numba.reference_ops())
            np.testing.assert_array_equal(made.run(None, {"x": x})[0], case.y)


def wrong(case, **changed):
    arrays = {"x": case.blocked_codes, "w": case.w, "scale": case.scale, "bias": case.bias}
    arrays |= {name: value for name, value in changed.items() if name in arrays}
    attributes = case.attributes | {name: value for name, value in changed.items() if name not in arrays}
    return arrays, attributes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((1, 16, 5), np.uint8)}, r"x has shape [\(\[]1, 16, 5[\)\]]; expected four dimensions"),
        ({"x": np.zeros((1, 15, 5, 5), np.uint8)}, "channels that are a multiple of 16"),
        ({"x": np.zeros((1, 32, 5, 5), np.uint8)}, "whole blocks of channels"),
        ({"x": np.zeros((1, 16, 5, 0), np.uint8), "pads": (1, 0, 1, 0)}, "it is smaller than the kernel"),
        ({"kernel_shape": (3, 2)}, r"expected \(channels of y, channels of x, 3, 2\)"),
        ({"group": 2}, "whole blocks of channels"),
        ({"scale": np.ones(17, np.float32)}, "expected one element for each channel of y"),
        ({"bias": np.ones(1, np.float32)}, "expected one element for each channel of y"),
    ],
)
def test_wrong_shapes(changed, message):
    case = case_of("3 x 3", "one block", 16)
    arrays, attributes = wrong(case, **changed)
    for are_inputs in (False, True):
        with pytest.raises(Exception, match=message):
            result(*arrays.values(), are_inputs=are_inputs, **attributes)
    made = ReferenceEvaluator(model(*arrays.values(), **attributes), new_ops=quark_numba.reference_ops())
    with pytest.raises(ValueError, match=message):
        made.run(None, {"x": arrays["x"]})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_scale": 0.3}, "x_scale is 0.3.*; expected a power of two"),
        ({"x_scale": 0.0}, "x_scale is 0.0; expected a power of two"),
        ({"x_zero_point": 256}, r"x_zero_point is 256; expected 0\.\.255"),
        ({"y_scale": 1.5}, "y_scale is 1.5; expected a power of two"),
        ({"y_zero_point": -1}, r"y_zero_point is -1; expected 0\.\.255"),
        ({"group": 0}, "group is 0; expected 1 or more"),
        ({"pads": (0, 0, 0, -1)}, "pads is .*; expected 4 numbers, 0 or more"),
        ({"strides": (0, 1)}, "strides is .*; expected 2 numbers, 1 or more"),
        ({"dilations": (1, 1, 1)}, "dilations is .*; expected 2 numbers, 1 or more"),
        ({"lanes": 4}, "lanes"),
    ],
)
def test_wrong_attributes(changed, message):
    arrays, attributes = wrong(case_of("3 x 3", "one block", 16), **changed)
    if "y_scale" in changed or "y_zero_point" in changed:
        arrays["table"] = TABLE
    with pytest.raises(Exception, match=message):
        session(model(*arrays.values(), **attributes))
