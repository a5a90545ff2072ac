"""Arrays in blocks of channels, as ONNX Runtime's convolutions in the blocked layout (NCHWc) take them, and the number of
channels in a block on this processor."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ...element_types import FLOAT32
from ...region.calls import LANES
from ...rewriting.fusions import optimize_by_onnx_runtime

# The domain of ONNX Runtime's operators on blocks.
NCHWC = "com.microsoft.nchwc"


@functools.cache
def find_lanes() -> int:
    """Return the number of lanes on this processor: the number of channels in a block. Return 1 if ONNX Runtime has no blocked
    layout here, or arranges the weights of a convolution in a way other than `filter_in_blocks`. ONNX Runtime lays out two
    convolutions to find the number, and its exceptions are passed on."""
    filters = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in ((64, 1, 2, 3), (64, 64, 2, 3))]
    nodes = [helper.make_node("Conv", [x, w], [y]) for x, w, y in (("x", "w0", "v"), ("v", "w1", "y"))]
    shapes = {"x": [1, 1, 4, 6], "y": None}
    values = [helper.make_tensor_value_info(name, FLOAT32.number, shape) for name, shape in shapes.items()]
    weights = [numpy_helper.from_array(filter_, f"w{k}") for k, filter_ in enumerate(filters)]
    graph = helper.make_graph(nodes, "layout", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    laid_out = optimize_by_onnx_runtime(model, onnxruntime.SessionOptions()).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in laid_out.initializer}
    laid_out_weights = [arrays[node.input[1]] for node in laid_out.node if (node.domain, node.op_type) == (NCHWC, "Conv")]
    for lanes in LANES:
        in_blocks = [filter_in_blocks(filter_, lanes, filter_.shape[1] > 1) for filter_ in filters]
        if len(laid_out_weights) == 2 and all(np.array_equal(*pair) for pair in zip(in_blocks, laid_out_weights, strict=True)):
            return lanes
    return 1


def filter_in_blocks(weights: NDArray[Any], lanes: int, reads_blocks: bool) -> NDArray[Any]:
    """Return the weights of a convolution (outer, inner, kh, kw) in the order that convolutions on blocks of b = `lanes`
    channels use: (outer / b, inner / b, kh, kw, b inner channels, b outer channels). `reads_blocks` is False if the inputs are
    not in blocks, or if the convolution is depthwise. Then the order is (outer / b, inner, kh, kw, b). Channels are padded
    with zeros. The result has the shape (outer, inner, kh, kw) of the padded weights."""
    weights = padded(weights, 0, lanes)
    if reads_blocks:
        weights = padded(weights, 1, lanes)
    outer, inner, kh, kw = weights.shape
    split = weights.reshape(outer // lanes, lanes, inner, kh, kw)
    if reads_blocks:
        split = split.reshape(outer // lanes, lanes, inner // lanes, lanes, kh, kw).transpose(0, 2, 4, 5, 3, 1)
    else:
        split = split.transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(split).reshape(outer, inner, kh, kw)


def padded(array: NDArray[Any], axis: int, multiple: int) -> NDArray[Any]:
    """Return the array padded with zeros at the end of an axis, so that its length is a multiple of `multiple`."""
    widths = [(0, -array.shape[axis] % multiple if dimension == axis else 0) for dimension in range(array.ndim)]
    return np.pad(array, widths)


def constant_in_blocks(array: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
    """Return an array that broadcasts to (N, C, H, W) in the layout (N, C / lanes, H, W, lanes), or (N, 1, H, W, 1) if it has
    one channel."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    count = 1 if array.shape[1] == 1 else lanes
    array = padded(array, 1, count)
    n, c, h, w = array.shape
    return array.reshape(n, c // count, count, h, w).transpose(0, 1, 3, 4, 2)
