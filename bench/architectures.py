"""Float models of the kinds that people quantize, with random weights. Each also comes with the quantization nodes that AMD
Quark inserts: behind each activation, and between each weight and its user."""

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quark_numba import to_tensor_proto
from quark_numba.element_types import find

# The magnitude that values are taken to have at most: integer scales follow from it.
RANGE = 16.0


class _Builder:
    """Appends nodes, and names their values by numbers."""

    def __init__(self) -> None:
        self.nodes, self.initializers = [], []
        self.random, self.numbers = np.random.default_rng(0), itertools.count()

    def __call__(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"v{next(self.numbers)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, value: object) -> str:
        name = f"c{next(self.numbers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]  # of a convolution, or of a MatMul
        return self.constant(self.random.normal(0, fan_in**-0.5, shape).astype(np.float32))

    def model(self, x: tuple[int, ...], y: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info("x", 1, x)], [helper.make_tensor_value_info(y, 1, None)]
        graph = helper.make_graph(self.nodes, "graph", *values, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def transformer(layers: int = 4, length: int = 128, width: int = 256, heads: int = 4) -> onnx.ModelProto:
    """Return a transformer: attention, and two MatMuls with a Gelu between, each after a LayerNormalization. The Gelu is as
    torch exports it."""
    add = _Builder()

    def linear(x: str, inner: int, outer: int) -> str:
        return add("Add", add("MatMul", x, add.weight(inner, outer)), add.weight(outer))

    def norm(x: str) -> str:
        return add("LayerNormalization", x, add.constant(np.ones(width, np.float32)), add.weight(width), axis=-1)

    split, joined = add.constant(np.int64([0, 0, heads, -1])), add.constant(np.int64([0, 0, -1]))
    half, one, root = (add.constant(np.float32(value)) for value in (0.5, 1.0, 2**0.5))
    x = "x"
    for _ in range(layers):
        normal = norm(x)
        q, k, v = (
            add("Transpose", add("Reshape", linear(normal, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scaled = add("Mul", add("MatMul", q, k), add.constant(np.float32((width / heads) ** -0.5)))
        attended = add("Transpose", add("MatMul", add("Softmax", scaled, axis=-1), v), perm=[0, 2, 1, 3])
        x = add("Add", x, linear(add("Reshape", attended, joined), width, width))
        wide = linear(norm(x), width, 4 * width)
        gelu = add("Mul", add("Mul", wide, add("Add", add("Erf", add("Div", wide, root)), one)), half)
        x = add("Add", x, linear(gelu, 4 * width, width))
    return add.model((1, length, width), norm(x))


def residual_network(size: int = 160, widths: tuple[int, ...] = (32, 64, 128, 256), blocks: int = 2) -> onnx.ModelProto:
    """Return a residual network with HardSwish, as in detectors."""
    add = _Builder()
    three, six, zero = (add.constant(np.float32(value)) for value in (3, 6, 0))

    def conv(x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
        pads = [kernel // 2] * 4
        return add("Conv", x, add.weight(outer, inner, kernel, kernel), add.weight(outer), pads=pads, strides=[stride] * 2)

    def hard_swish(x: str) -> str:
        return add("Div", add("Mul", x, add("Clip", add("Add", x, three), zero, six)), six)

    x, inner = hard_swish(conv("x", 3, widths[0], 3, 2)), widths[0]
    for width in widths:
        x, inner = hard_swish(conv(x, inner, width, 3, 2)), width
        for _ in range(blocks):
            x = add("Add", x, conv(hard_swish(conv(x, width, width // 2, 1)), width // 2, width, 3))
    return add.model((1, 3, size, size), add("GlobalAveragePool", x))


def text_detector(size: int = 160, widths: tuple[int, ...] = (12, 20, 36, 60), pyramid: int = 24) -> onnx.ModelProto:
    """Return a text detector for phones: inverted residuals with depthwise convolutions and squeeze-and-excite gates, and a
    feature pyramid. Numbers of channels are small, and not multiples of a block."""
    add = _Builder()
    three, six, zero = (add.constant(np.float32(value)) for value in (3, 6, 0))
    twice = add.constant(np.float32([1, 1, 2, 2]))

    def conv(x: str, inner: int, outer: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        weights = add.weight(outer, inner // group, kernel, kernel), add.weight(outer)
        return add("Conv", x, *weights, pads=[kernel // 2] * 4, strides=[stride] * 2, group=group)

    def hard_swish(x: str) -> str:
        return add("Div", add("Mul", x, add("Clip", add("Add", x, three), zero, six)), six)

    def gate(x: str, width: int) -> str:
        inner = add("Relu", conv(add("GlobalAveragePool", x), width, width // 4, 1))
        return add("Mul", x, add("HardSigmoid", conv(inner, width // 4, width, 1)))

    def upsample(x: str) -> str:
        return add("Resize", x, "", twice, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")

    x, inner, stages = hard_swish(conv("x", 3, widths[0], 3, 2)), widths[0], []
    for width in widths:
        for stride in (2, 1):
            wide = hard_swish(conv(x, inner, 4 * inner, 1))
            wide = gate(hard_swish(conv(wide, 4 * inner, 4 * inner, 5, stride, 4 * inner)), 4 * inner)
            narrow = conv(wide, 4 * inner, width, 1)
            x, inner = (narrow if stride == 2 else add("Add", x, narrow)), width
        stages.append(conv(x, width, pyramid, 1))
    joined = stages.pop()
    while stages:
        joined = add("Add", upsample(joined), stages.pop())
        joined = conv(joined, pyramid, pyramid, 3)
    return add.model((1, 3, size, size), add("Sigmoid", conv(joined, pyramid, 1, 3)))


def byte_classifier(length: int = 256, width: int = 64, classes: int = 20) -> onnx.ModelProto:
    """Return a classifier of texts as bytes: convolutions in one dimension with Relu, and dense layers. Its input is the
    embeddings of the bytes."""
    add = _Builder()

    def conv(x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
        weights = add.weight(outer, inner, kernel), add.weight(outer)
        return add("Relu", add("Conv", x, *weights, pads=[kernel // 2] * 2, strides=[stride]))

    x = conv("x", 32, width, 7)
    for _ in range(3):
        x = add("MaxPool", conv(x, width, width, 3), kernel_shape=[3], strides=[2], pads=[1, 1])
        x = add("Add", x, conv(conv(x, width, width, 3), width, width, 3))
    x = add("Flatten", x)
    x = add("Relu", add("Gemm", x, add.weight(width * length // 8, 256), add.weight(256)))
    x = add("Relu", add("Gemm", x, add.weight(256, 256), add.weight(256)))
    return add.model((8, 32, length), add("Gemm", x, add.weight(256, classes), add.weight(classes)))


def voice_detector(steps: int = 64, width: int = 64) -> onnx.ModelProto:
    """Return a detector of voices: convolutions in one dimension over frames, a GRU, and a dense layer for each frame."""
    add = _Builder()

    def conv(x: str, inner: int, outer: int, stride: int = 1) -> str:
        return add("Relu", add("Conv", x, add.weight(outer, inner, 3), add.weight(outer), pads=[1, 1], strides=[stride]))

    x = conv(conv(conv("x", 40, 128), 128, width, 2), width, width)
    frames = add("Transpose", x, perm=[2, 0, 1])
    weights = (add.constant(add.random.normal(0, 0.1, (1, 3 * width, width)).astype(np.float32)) for _ in range(2))
    bias = add.constant(add.random.normal(0, 0.1, (1, 6 * width)).astype(np.float32))
    states = add("GRU", frames, *weights, bias, hidden_size=width, linear_before_reset=1)
    flat = add("Reshape", states, add.constant(np.int64([-1, width])))
    hidden = add("Relu", add("Gemm", flat, add.weight(width, width), add.weight(width)))
    return add.model((1, 40, 2 * steps), add("Sigmoid", add("Gemm", hidden, add.weight(width, 1), add.weight(1))))


def mobile_network(size: int = 160) -> onnx.ModelProto:
    """Return a network of inverted residuals with Relu6, which ONNX Runtime fuses into the convolutions."""
    add = _Builder()
    zero, six = (add.constant(np.float32(value)) for value in (0, 6))

    def conv(x: str, inner: int, outer: int, kernel: int, stride: int = 1, group: int = 1, *, is_linear: bool = False) -> str:
        weights = add.weight(outer, inner // group, kernel, kernel), add.weight(outer)
        y = add("Conv", x, *weights, pads=[kernel // 2] * 4, strides=[stride] * 2, group=group)
        return y if is_linear else add("Clip", y, zero, six)

    x, inner = conv("x", 3, 32, 3, 2), 32
    for width, count, first_stride in ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for number in range(count):
            stride = 1 if number else first_stride
            wide = conv(conv(x, inner, 6 * inner, 1), 6 * inner, 6 * inner, 3, stride, 6 * inner)
            narrow = conv(wide, 6 * inner, width, 1, is_linear=True)
            x, inner = (add("Add", x, narrow) if number else narrow), width
    flat = add("Flatten", add("GlobalAveragePool", conv(x, 320, 1280, 1)))
    return add.model((1, 3, size, size), add("Gemm", flat, add.weight(1280, 1000), add.weight(1000)))


def dense_layers(width: int = 512, layers: int = 4, batch: int = 32) -> onnx.ModelProto:
    """Return dense layers with Relu between."""
    add = _Builder()
    x = "x"
    for _ in range(layers):
        x = add("Relu", add("Gemm", x, add.weight(width, width), add.weight(width)))
    return add.model((batch, width), add("Gemm", x, add.weight(width, width), add.weight(width)))


# Those whose models Quark's operators quantize, and those of ONNX's own operators alone.
ARCHITECTURES = {
    "transformer": transformer,
    "residual_network": residual_network,
    "text_detector": text_detector,
    "byte_classifier": byte_classifier,
    "voice_detector": voice_detector,
}
OTHERS = {"mobile_network": mobile_network, "dense_layers": dense_layers}


@lru_cache
def architecture(name: str) -> onnx.ModelProto:
    return (ARCHITECTURES | OTHERS)[name]()


# The operator and the attributes of Quark's block formats.
BLOCK_FORMATS = {
    "bfp16": ("BFPQuantizeDequantize", {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8, "rounding_mode": 0}),
    "mx9": ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16, "rounding_mode": 2}),
    "mx6": ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 16, "rounding_mode": 2}),
    "mxfp8": ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3", "block_size": 32, "rounding_mode": 2}),
    "mxfp4": ("MXQuantizeDequantize", {"element_dtype": "fp4_e2m1", "block_size": 32, "rounding_mode": 2}),
}


def quantized(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with Quark's operators after every float value: a pair of linear operators, or one operator of a block
    format, which Quark lays along axis 1 and, in vectors, along axis 0."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    ranks = {each.name: len(each.dims) for each in graph.initializer}
    floats = {"x", *(each.name for each in graph.initializer if each.data_type == 1)}
    insert = _blocks(name, ranks) if name in BLOCK_FORMATS else _pair(name, graph)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in model.graph.node:
        for value in node.input:
            if value in floats and value not in renamed:
                renamed[value] = f"{value}_back"
                nodes += insert(value)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(value, value) for value in node.input]
        nodes.append(copy)
        floats.update(node.output)
    del graph.node[:]
    graph.node.extend(nodes)
    result.opset_import.append(helper.make_opsetid("com.amd.quark", 1))
    return result


def _pair(name: str, graph: onnx.GraphProto) -> Callable[[str], list[onnx.NodeProto]]:
    """Return a function that makes the linear operators of a value. Their parameters are added to the graph."""
    element_type = find(name)
    scale = 2 * RANGE / 2**element_type.bits if element_type.is_integer else 1.0
    middle = 2 ** (element_type.bits - 1) if element_type.is_integer and not element_type.is_signed else 0
    graph.initializer.append(to_tensor_proto(np.float32(scale), "scale"))
    graph.initializer.append(to_tensor_proto(np.array(middle, element_type.dtype), "zero_point"))

    def node(operator: str, x: str, y: str) -> onnx.NodeProto:
        return helper.make_node(f"Extended{operator}Linear", [x, "scale", "zero_point"], [y], y, domain="com.amd.quark")

    def pair(value: str) -> list[onnx.NodeProto]:
        codes = f"{value}_codes"
        return [node("Quantize", value, codes), node("Dequantize", codes, f"{value}_back")]

    return pair


def _blocks(name: str, ranks: Mapping[str, int]) -> Callable[[str], list[onnx.NodeProto]]:
    """Return a function that makes the node of a block format of a value. Activations have more than one dimension."""
    operator, attributes = BLOCK_FORMATS[name]

    def blocks(value: str) -> list[onnx.NodeProto]:
        axis = min(1, ranks.get(value, 2) - 1)
        output = f"{value}_back"
        return [helper.make_node(operator, [value], [output], output, domain="com.amd.quark", axis=axis, **attributes)]

    return blocks
