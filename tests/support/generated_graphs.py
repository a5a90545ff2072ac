"""Random graphs like those of exporters, from a seed: convolutions, transformers and mixtures, with quantization nodes after
most values. Imports nothing of the package.

`case(seed)` returns a model as a quantizer writes it, the same model with its constant weights folded, and the feeds.

Most graphs are *exact*. Their inputs, weights and scales are small integers times powers of two, and every value is a multiple
of 2^-grid with a magnitude of at most `bound`, so that all sums and products have fewer than 24 bits. Then results do not
depend on the order of operations: all bits stay equal, whatever ONNX Runtime fuses, folds or lays out differently. The other
graphs have arbitrary weights, and functions such as Erf.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

CHANNELS = [3, 5, 7, 8, 12, 16, 16, 20, 20, 24, 32, 33]
LENGTHS = [1, 2, 4, 4, 5, 6, 8, 8]
OPSETS = [*range(11, 24), 14, 17, 17, 18, 21, 21]
MOST_ELEMENTS = 12_000
QUARK, QONNX = "com.amd.quark", "qonnx.custom_op.general"

# By element type of codes: the dtype, the exponents of scales of exact graphs and of other graphs, whose finer scales keep last
# bits, and the zero point. The exponents of float types are None.
TYPES = {
    "int8": (np.int8, -3, -3, 0),
    "uint8": (np.uint8, -3, -3, 128),
    "int16": (np.int16, -6, -9, 3),
    "uint16": (np.uint16, -6, -9, 32768),
    "int32": (np.int32, -8, -22, 0),
    "bfloat16": (ml_dtypes.bfloat16, None, None, 0),
    "float16": (np.float16, None, None, 0),
}
BLOCKS = [
    ("BFPQuantizeDequantize", {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8}),
    ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16}),
    ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 4}),
    ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3", "block_size": 32}),
    ("MXQuantizeDequantize", {"element_dtype": "int8", "block_size": 8}),
]


class Value(NamedTuple):
    """A value of a graph, and its known properties: the magnitude is at most `bound`, and values are multiples of 2**-grid."""

    name: str
    shape: tuple[int, ...]
    bound: float = 4.0
    grid: int = 2

    @property
    def bits(self):
        return math.log2(max(self.bound, 2.0**-20)) + self.grid

    @property
    def size(self):
        return math.prod(self.shape)


@dataclass
class Case:
    """A generated graph. `source` is the model as a quantizer writes it; in `folded`, constant weights have no quantization
    nodes."""

    seed: int
    exact: bool
    special: str
    source: onnx.ModelProto
    folded: onnx.ModelProto
    feeds: dict
    shapes: dict
    built: list = field(default_factory=list)  # the names of the builders


class Builder:
    """A graph under construction, to which nodes are added in order."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng([20, seed])
        self.special = self.one(["none"] * 7 + ["Inf", "Inf", "NaN"])
        # The quantization that keeps sums exact would stop most special values.
        self.exact = self.chance(0.75 if self.special == "none" else 0.25)
        if self.special != "none" and not self.exact and self.chance(0.2):
            self.special = "huge"
        self.opset = int(random.choice(OPSETS))
        if self.special == "Inf":
            self.opset = max(self.opset, 14)  # lower opsets have no regions, which the special values are to reach
        self.kind = self.one(["image"] * 8 + ["line", "volume", "tokens", "tokens", "table"])
        floats = ["bfloat16", "bfloat16", "float16"]
        fine = ["int32"] * (1 if self.exact else 5)
        self.type = self.one(floats * 3 if self.special == "Inf" else [*floats, "int8", "uint16", *fine, *TYPES])
        self.blocks = BLOCKS[random.integers(len(BLOCKS))]
        self.has_blocks = random.random() < 0.12
        self.nodes, self.initializers, self.folded, self.weights = [], [], [], set()
        self.inputs, self.feeds, self.live, self.shapes, self.built = [], {}, [], {}, []
        self.count, self.depth = 0, 0
        self.weight_grid = 2  # of the weight made last
        self.again = {}  # by names of values after a round trip: functions that put an equal one behind another value

    # Random draws.

    def one(self, choices):
        return choices[self.random.integers(len(choices))]

    def chance(self, probability):
        return bool(self.random.random() < probability)

    def numbers(self, shape):
        """Return small numbers, none of them 0."""
        if self.exact:
            return (self.random.integers(1, 9, shape) * self.random.choice([-0.25, 0.25], shape)).astype(np.float32)
        return (self.random.uniform(0.25, 2, shape) * self.random.choice([-1, 1], shape)).astype(np.float32)

    # Nodes and constants.

    def name(self, prefix="v"):
        self.count += 1
        return f"{prefix}{self.count}"

    def put(self, operator, *inputs, count=1, domain="", **attributes):
        """Add a node, and return the names of its outputs."""
        outputs = [self.name() for _ in range(count)]
        names = [each.name if isinstance(each, Value) else each for each in inputs]
        node_name = f"{operator}_{outputs[0]}"
        self.nodes.append(helper.make_node(operator, names, outputs, name=node_name, domain=domain, **attributes))
        return outputs[0] if count == 1 else outputs

    def new(self, like, name, shape=None, bound=None, grid=None):
        value = Value(
            name,
            tuple(like.shape if shape is None else map(int, shape)),
            float(like.bound if bound is None else bound),
            int(like.grid if grid is None else grid),
        )
        if not self.depth:
            self.shapes[name] = value.shape
        return value

    def constant(self, array, dtype=None):
        name = self.name("c")
        self.initializers.append(tensor(np.asarray(array, dtype), name))
        return name

    def integers(self, values):
        return self.constant(values, np.int64)

    def weight(self, shape, fan_in):
        """Return the name of a weight, and the largest sum of magnitudes over all axes but one, whichever axis the outputs are
        on. Mostly the weight has quantization nodes, which do not change its values."""
        if self.exact:  # mostly zeros, so that sums stay small; fewer zeros if there is Inf, because Inf times 0 is NaN
            is_dense = fan_in <= 300 and self.chance(0.35 if self.special == "none" else 0.85)
            few = 1 if is_dense else min(1, 8 / max(1, fan_in))
            w = self.random.choice([-0.5, -0.25, 0.25, 0.5], shape) * (self.random.random(shape) < few)
            w = w.astype(np.float32)
        else:
            w = self.random.normal(0, fan_in**-0.5, shape)
            w = (np.rint(w / 2**-6.3) * np.float32(2**-6.3)).astype(np.float32)
        sums = largest_sum(w, range(w.ndim))
        form = self.one(["plain", "pair", "pair", "codes"]) if not self.depth else "plain"
        if form == "plain":
            return self.constant(w), sums
        kind = self.one(["int8", "int16", "bfloat16"]) if form == "pair" else "int8"
        if kind == "bfloat16":
            w, scale = w.astype(ml_dtypes.bfloat16).astype(np.float32), np.float32(1)
        else:
            scale = np.float32(0.25 if self.exact else 2**-6.3)
            w = np.clip(np.rint(w / scale), -128, 127).astype(np.float32) * scale
        parameters = self.constant(scale), self.constant(0, TYPES[kind][0])
        if form == "pair":
            codes = self.put("ExtendedQuantizeLinear", self.constant(w), *parameters, domain=QUARK)
            self.weights.add(codes)
        else:
            codes = self.constant(np.rint(w / scale), np.int8)
        name = self.put("ExtendedDequantizeLinear", codes, *parameters, domain=QUARK)
        self.weights.add(name)
        self.folded.append(tensor(w, name))
        return name, sums

    # Quantization.

    def pair(self, x, kind=None):
        """Add a quantize node and a dequantize node, and return the value."""
        kind = kind or (self.type if self.chance(0.88) else self.one(list(TYPES)))
        dtype, exponent, fine, zero_point = TYPES[kind]
        exponent = exponent if self.exact else fine
        axis = int(self.random.integers(len(x.shape))) if len(x.shape) > 1 and self.chance(0.1) else None
        shape = () if axis is None else (x.shape[axis],)
        if exponent is None:
            scale = np.ones(shape, np.float32) if self.exact or kind == "bfloat16" else np.full(shape, 0.75, np.float32)
            bound, grid = x.bound * 1.01, x.grid
        else:
            scale = np.ldexp(np.float32(1), exponent + self.random.integers(0, 2, shape)).astype(np.float32)
            info = np.iinfo(dtype)
            most = 2.0 ** (exponent + 1) * (max(info.max - zero_point, zero_point - info.min) + 1)
            bound, grid = min(x.bound + 2.0 ** (exponent + 1), most), min(x.grid, -exponent)
            if not self.exact:
                scale = (scale * np.float32(0.37)).astype(np.float32)
        if exponent is not None and info.bits <= 16 and self.chance(0.25):
            others = [self.constant(value, np.float32) for value in (zero_point, info.bits)]
            signed = int(info.min < 0)

            def quant(x, axis):
                own = scale if axis is None else scale.reshape(-1, *[1] * (len(x.shape) - 1 - axis))
                return self.put("Quant", x, self.constant(own), *others, domain=QONNX, signed=signed, narrow=0)

            return self.repeatable(x, quant, axis, shape, bound, grid)
        parameters = [self.constant(scale), self.constant(np.full(shape, zero_point), dtype)]

        def both(x, axis):
            attributes = {"domain": QUARK} if axis is None else {"axis": axis, "domain": QUARK}
            codes = self.put("ExtendedQuantizeLinear", x, *parameters, **attributes)
            return self.put("ExtendedDequantizeLinear", codes, *parameters, **attributes)

        return self.repeatable(x, both, axis, shape, bound, grid)

    def repeatable(self, x, make, axis, size, bound, grid):
        """Add the round trip that ``make(x, axis)`` makes, and remember it. Behind another value, its scales lie along any axis
        of the right length."""

        def again(other):
            axes = [None] if axis is None else [k for k, n in enumerate(other.shape) if (n,) == size]
            return rounded(other, self.one(axes)) if axes else None

        def rounded(x, axis):
            y = self.new(x, make(x, axis), None, bound, grid)
            self.again[y.name] = again
            return y

        return rounded(x, axis)

    def block_node(self, x):
        operator, attributes = self.blocks

        def rounded(x, axis):
            name = self.put(operator, x, domain=QUARK, axis=axis, rounding_mode=2, **attributes)
            y = self.new(x, name, None, 2 * x.bound)
            self.again[name] = lambda x: rounded(x, self.block_axis(x, axis))
            return y

        return rounded(x, self.block_axis(x, 1))

    def block_axis(self, x, usual):
        rank = len(x.shape)
        return usual if self.chance(0.6) and -rank <= usual < rank else int(self.random.integers(-rank, rank))

    def quantized(self, x, probability=1.0):
        """Return x after quantization nodes, with this probability, or x itself."""
        if not self.chance(probability):
            return x
        if self.has_blocks and len(x.shape) > 1 and self.chance(0.6):
            return self.block_node(x)
        return self.pair(x)

    def small(self, x, bits):
        """Return x, quantized first if the graph is exact and x has more than `bits` bits."""
        return self.pair(x, "int8") if self.exact and x.bits > bits else x

    # Single operators.

    def unary(self, operator, x, *inputs, bound=None, grid=None, **attributes):
        return self.new(x, self.put(operator, x, *inputs, **attributes), None, bound, grid)

    def binary(self, operator, a, b):
        """Add a binary operator, and before it the quantization that an exact graph needs."""
        is_sum = operator in ("Add", "Sub", "Max", "Min")
        a, b = (self.small(each, 18 if is_sum else 11) for each in (a, b))
        shape = np.broadcast_shapes(a.shape, b.shape)
        bound = a.bound + b.bound if is_sum else a.bound * max(b.bound, 1)
        grid = max(a.grid, b.grid) if is_sum else a.grid + b.grid
        return self.new(a, self.put(operator, a, b), shape, bound, grid)

    def value_of(self, array):
        return Value(self.constant(array), array.shape, float(np.abs(array).max(initial=0.25)), 2)

    def activation(self, x):
        simple = ["Relu", "Relu", "Clip", "HardSigmoid", "LeakyRelu", "HardSwishParts", "Abs", "Neg", "Identity"]
        if not self.exact:
            simple += [
                "Sigmoid",
                "Tanh",
                "HardSwish",
                "Silu",
                "QuickGelu",
                "Gelu",
                "Sqrt",
                "Softplus",
                "Mish",
                "TanhGelu",
                "Erf",
            ]
        what = self.one(simple)
        x = self.small(x, 12)
        if what == "Clip":
            low, high = self.one([(0, 6), (0, 6), (-1, 1), (-0.5, 4)])
            bound = max(-low, high)
            return self.unary("Clip", x, self.constant(low, np.float32), self.constant(high, np.float32), bound=bound)
        if what == "HardSigmoid":
            alpha = 0.25 if self.exact else float(self.one([0.2, 1 / 6]))
            return self.unary("HardSigmoid", x, bound=1, grid=x.grid + 3, alpha=alpha, beta=0.5)
        if what == "LeakyRelu":
            return self.unary("LeakyRelu", x, alpha=0.25 if self.exact else 0.1, grid=x.grid + 2)
        if what == "HardSwishParts":
            return hard_swish_in_parts(self, x)
        if what == "HardSwish" and self.opset < 14:
            return hard_swish_in_parts(self, x)
        if what == "Sqrt":
            return self.unary("Sqrt", self.unary("Abs", x))
        if what in ("Silu", "QuickGelu"):
            return quick_gelu(self, x, what == "Silu")
        if what in COMPOSED:
            return COMPOSED[what](self, x)
        return self.unary(what, x)

    def transposed(self, x, order):
        return self.new(x, self.put("Transpose", x, perm=list(order)), [x.shape[k] for k in order])

    def reshaped(self, x, shape):
        given = list(shape)
        if self.chance(0.5):
            given[self.one([k for k, each in enumerate(given) if each] or [0])] = -1
        if len(given) > 1 and shape[0] == x.shape[0] and given[0] != -1 and self.chance(0.6):
            given[0] = 0
        return self.new(x, self.put("Reshape", x, self.integers(given)), shape)

    def reduced(self, operator, x, axes, keepdims=1):
        """Add a Reduce operator. Its axes are an attribute in older opsets."""
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            name = self.put(operator, x, self.integers(axes), keepdims=keepdims)
        else:
            name = self.put(operator, x, axes=list(axes), keepdims=keepdims)
        axes = {axis % len(x.shape) for axis in axes}
        shape = [1 if k in axes else n for k, n in enumerate(x.shape) if keepdims or k not in axes]
        return self.new(x, name, shape, x.bound * (math.prod(x.shape[k] for k in axes) if operator == "ReduceSum" else 1))

    def squeezed(self, operator, x, axes, shape):
        if self.opset >= 13:
            return self.new(x, self.put(operator, x, self.integers(axes)), shape)
        return self.new(x, self.put(operator, x, axes=list(axes)), shape)

    def convolution(self, x, channels, kernel, groups=1, bias=None, **attributes):
        """Add a convolution. `attributes` may have pads for both sides, strides, dilations, and auto_pad."""
        spatial = len(x.shape) - 2
        weight, sums = self.weight((channels, x.shape[1] // groups, *kernel), x.shape[1] // groups * math.prod(kernel))
        x = self.small(x, 22 - self.weight_grid - math.log2(sums))
        pads, strides = attributes.get("pads", [0] * 2 * spatial), attributes.get("strides", [1] * spatial)
        dilations = attributes.get("dilations", [1] * spatial)
        if "auto_pad" in attributes:
            lengths = [-(-n // s) for n, s in zip(x.shape[2:], strides, strict=True)]
        else:
            lengths = [
                (n + pads[k] + pads[k + spatial] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1
                for k, n in enumerate(x.shape[2:])
            ]
        inputs = [x, weight]
        if bias if bias is not None else self.chance(0.5):
            inputs.append(self.bias(channels, x))
        name = self.put("Conv", *inputs, group=groups, kernel_shape=list(kernel), **attributes)
        return self.new(x, name, (x.shape[0], channels, *lengths), x.bound * sums + 2, x.grid + self.weight_grid)

    def bias(self, channels, x):
        """Return the name of a bias for the weight made last and this input."""
        return self.constant(self.numbers(channels))

    # Graphs.

    def add_input(self, shape, declared, name=None):
        name = name or self.name("x")
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
        if self.exact:
            self.feeds[name] = np.asarray(self.random.integers(-16, 17, shape) / 4, np.float32)
        else:
            self.feeds[name] = np.asarray(self.random.normal(0, 1.5, shape), np.float32)
        return self.new(Value(name, tuple(shape)), name)

    def subgraph(self, make, inputs=(), others=()):
        """Return the value that `make` returns and a graph of its nodes. `others` are outputs before this value."""
        nodes, self.nodes = self.nodes, []
        self.depth += 1
        y = make()
        if y.name not in {name for node in self.nodes for name in node.output}:
            y = self.unary("Identity", y)
        before = [helper.make_tensor_value_info(each, TensorProto.BOOL, []) for each in others]
        outputs = [*before, helper.make_tensor_value_info(y.name, TensorProto.FLOAT, [None] * len(y.shape))]
        graph = helper.make_graph(self.nodes, self.name("graph"), list(inputs), outputs)
        self.depth -= 1
        self.nodes = nodes
        return y, graph

    def grow(self, builders, count, tries, most_elements):
        """Add what `count` builders make, which are chosen by their weights. Some do not suit the value that they get."""
        builders, weights = zip(*builders, strict=True)
        weights = np.array(weights) / sum(weights)
        for _ in range(tries):
            if len(self.built) == count:
                break
            x = self.live[-1] if self.chance(0.75) else self.one(self.live)
            build = builders[self.random.choice(len(builders), p=weights)]
            y = build(self, x)
            if y is not None and y.size <= most_elements:
                self.live.append(self.quantized(y, 0.72))
                self.built.append(build.__name__.strip("_"))


def largest_sum(weight, axes):
    """Return the largest sum of magnitudes over all axes of a weight but one of these, at least 1."""
    sums = [np.abs(weight).sum(axis=tuple(set(range(weight.ndim)) - {axis})) for axis in axes]
    return max(1.0, *(float(each.max(initial=0)) for each in sums))


def tensor(array, name):
    """Return the TensorProto of an array. onnx's helpers convert bfloat16 by value, so its bytes are stored as they are."""
    array = np.asarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
    return onnx.numpy_helper.from_array(np.array(array, order="C"), name)


# Builders. A builder adds nodes to a value and returns the new value, or None if the value does not suit it.


def conv(b, x):
    if not 3 <= len(x.shape) <= 5:
        return None
    spatial, channels = len(x.shape) - 2, x.shape[1]
    if min(x.shape) < 1 or channels > 66:
        return None
    form = b.one(["plain", "plain", "plain", "pointwise", "pointwise", "depthwise", "groups", "strided", "dilated", "same"])
    kernel = [min(k, 3) for k in b.random.choice([1, 2, 3, 3, 3], spatial)] if form != "pointwise" else [1] * spatial
    kernel = [int(k) for k in kernel]
    pads = [int(k > 1) for k in kernel] * 2
    outer = b.one([each for each in CHANNELS if spatial < 3 or each < 21])
    named = {}
    if form == "depthwise":
        return b.convolution(x, channels * b.one([1, 1, 2]), kernel, channels, pads=pads)
    if form == "groups":
        groups = b.one([each for each in (1, 2, 3, 4, 5, 7, 11) if channels % each == 0])
        return b.convolution(x, groups * b.one([1, 2, 4, 8]), kernel, groups, pads=pads)
    if form == "strided":
        named["strides"] = [2] * spatial
    if form == "dilated":
        kernel, pads, named["dilations"] = [3] * spatial, [2] * 2 * spatial, [2] * spatial
    if form == "same":
        return b.convolution(x, outer, kernel, auto_pad=b.one(["SAME_UPPER", "SAME_LOWER"]), strides=[b.one([1, 2])] * spatial)
    return b.convolution(x, outer, kernel, pads=pads, **named)


def conv_transpose(b, x):
    if not 3 <= len(x.shape) <= 4 or x.size > 1500 or x.shape[1] > 66:
        return None
    groups = b.one([1, 1, x.shape[1] if x.shape[1] < 9 else 1])
    outer, spatial, k = b.one([3, 5, 8, 16]), len(x.shape) - 2, b.one([2, 3])
    weight, sums = b.weight((x.shape[1], outer, *[k] * spatial), x.shape[1] * k)
    x = b.small(x, 22 - b.weight_grid - math.log2(sums))
    inputs = [x, weight, *([b.bias(outer * groups, x)] if b.chance(0.5) else [])]
    name = b.put("ConvTranspose", *inputs, group=groups, strides=[2] * spatial, kernel_shape=[k] * spatial)
    shape = (x.shape[0], outer * groups, *((n - 1) * 2 + k for n in x.shape[2:]))
    return b.new(x, name, shape, x.bound * sums + 2, x.grid + b.weight_grid)


def constant_operand(b, x):
    """Add, Mul or the like with a constant, in one of the shapes that exporters use."""
    operator = b.one(["Add", "Add", "Mul", "Mul", "Sub", "Div", "PRelu", "Max"])
    shapes = [(), (1,), x.shape[-1:], x.shape, x.shape[1:]]
    if len(x.shape) >= 3:
        channel = (x.shape[1], *[1] * (len(x.shape) - 2))
        shapes += [channel, channel, channel, (1, *channel), (x.shape[1], *[1] * (len(x.shape) - 3), x.shape[-1])]
    array = b.numbers(b.one(shapes))
    if operator == "Div" and b.exact:
        array = np.where(np.abs(array) < 1, np.float32(0.5), np.float32(2))
    x = b.small(x, 12)
    other = b.value_of(array)
    if operator == "Div":
        return b.unary("Div", x, other, bound=4 * x.bound, grid=x.grid + 2)
    if operator in ("Add", "Mul", "Max") and b.chance(0.2):
        return b.binary(operator, other, x)
    return b.binary(operator, x, other)


def activated(b, x):
    return b.activation(x)


def chain(b, x):
    """A few activations and operators with constants, as exporters write them after a convolution."""
    for _ in range(b.one([2, 2, 3])):
        x = b.one([constant_operand, activated])(b, x)
    return x


def residual(b, x):
    others = [each for each in b.live if each.shape == x.shape and each is not x]
    if others and b.chance(0.7):
        other = b.one(others)
    elif 3 <= len(x.shape) <= 5 and x.shape[1] <= 66:
        other = b.quantized(b.convolution(x, x.shape[1], [1] * (len(x.shape) - 2)), 0.8)
    else:
        other = b.activation(x)
    operator = b.one(["Add", "Add", "Add", "Sub", "Mul", "Max"])
    a, c = (x, other) if b.chance(0.6) else (other, x)
    if operator == "Max":  # the result of Max for 0 and -0 depends on their places in ONNX Runtime's loop
        c = b.binary("Add", c, b.value_of(np.float32(0.0078125 if not b.exact else 0.25)))
        operator = "Add"
    return b.binary(operator, a, c)


def two_branches(b, x):
    """Two regions on one value, whose results are both used."""
    one, other = (b.quantized(b.activation(x)) for _ in range(2))
    if b.chance(0.4):
        b.live.append(one)
        return other
    return b.binary("Add", one, other) if b.chance(0.5) else joined(b, [one, other], 1 if len(x.shape) > 1 else 0)


def gate(b, x):
    """Add a squeeze-and-excite gate, and return its output."""
    if not 3 <= len(x.shape) <= 4 or x.shape[1] > 66:
        return None
    spatial = len(x.shape) - 2
    pooled = global_pool(b, x)
    if pooled is None:
        return None
    if b.chance(0.7):
        pooled = b.quantized(b.convolution(pooled, x.shape[1], [1] * spatial), 0.8)
    if b.exact or b.chance(0.5):
        g = b.unary("HardSigmoid", b.small(pooled, 12), bound=1, grid=pooled.grid + 3, alpha=0.25, beta=0.5)
    else:
        g = b.unary("Sigmoid", pooled)
    g = b.quantized(g, 0.5)
    return b.binary("Mul", *((x, g) if b.chance(0.6) else (g, x)))


def global_pool(b, x):
    if not 3 <= len(x.shape) <= 5 or not x.size:
        return None
    count = math.prod(x.shape[2:])
    shape = (*x.shape[:2], *[1] * (len(x.shape) - 2))
    form = b.one(["GlobalAveragePool", "GlobalAveragePool", "ReduceMean", "GlobalMaxPool", "ReduceMax"])
    if b.exact and form in ("GlobalAveragePool", "ReduceMean"):
        if count & (count - 1):
            form = "GlobalMaxPool"
        else:
            x = b.small(x, 12)
    if form.startswith("Reduce"):
        axes = list(range(2, len(x.shape))) if b.chance(0.5) else list(range(2 - len(x.shape), 0))
        result = b.reduced(form, x, axes)
    else:
        result = b.new(x, b.put(form, x), shape)
    return result._replace(grid=x.grid + int(math.log2(count)) if "Mean" in form or "Average" in form else x.grid)


def pool(b, x):
    if not 3 <= len(x.shape) <= 5 or min(x.shape[2:]) < 2:
        return None
    spatial = len(x.shape) - 2
    kernel, stride = b.one([2, 2, 3]), b.one([1, 2])
    operator = b.one(["MaxPool", "MaxPool", "AveragePool", "AveragePool"])
    pads = [b.one([0, 1])] * 2 * spatial
    named = {}
    if operator == "AveragePool":
        if b.exact:
            kernel, named["count_include_pad"] = 2, 1
            x = b.small(x, 12)
        else:
            named["count_include_pad"] = b.one([0, 1])
    lengths = [(n + 2 * pads[0] - kernel) // stride + 1 for n in x.shape[2:]]
    if min(lengths) < 1:
        return None
    name = b.put(operator, x, kernel_shape=[kernel] * spatial, strides=[stride] * spatial, pads=pads, **named)
    grid = x.grid + (spatial if operator == "AveragePool" else 0)
    return b.new(x, name, (*x.shape[:2], *lengths), None, grid)


def island(b, x):
    """A part in channels-last layout, as tf2onnx writes it: a Transpose, some operators, and mostly a Transpose back and a
    convolution."""
    rank = len(x.shape)
    if not 3 <= rank <= 5:
        return None
    last, first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    y = b.transposed(x, last)
    channels = x.shape[1]
    for _ in range(b.one([1, 1, 2])):
        what = b.one(["constant", "constant", "constant", "value", "activation", "none"])
        if what == "constant":
            shape = b.one([(channels,), (1, *[1] * (rank - 3), channels), y.shape[1:], (1,), (*[1] * (rank - 1), channels)])
            y = b.binary(b.one(["Add", "Mul", "Sub", "PRelu"]), y, b.value_of(b.numbers(shape)))
        elif what == "value":
            others = [each for each in b.live if each.shape == x.shape]
            other = b.transposed(b.one(others), last) if others else b.activation(y)
            y = b.binary(b.one(["Add", "Mul"]), *((y, other) if b.chance(0.5) else (other, y)))
        elif what == "activation":
            y = b.activation(y)
        y = b.quantized(y, 0.7)
    if b.chance(0.1):
        return y
    if b.chance(0.2):
        b.live.append(y)
    y = b.transposed(y, first)
    return conv(b, y) or y if b.chance(0.6) else y


def transpose(b, x):
    if len(x.shape) < 2:
        return None
    return b.transposed(x, [int(k) for k in b.random.permutation(len(x.shape))])


def reshape(b, x):
    rank = len(x.shape)
    if rank < 3:
        return b.reshaped(x, (x.shape[0], 1, *x.shape[1:])) if rank > 1 else b.reshaped(x, (1, *x.shape))
    forms = [(*x.shape[:2], math.prod(x.shape[2:])), (x.shape[0], math.prod(x.shape[1:]))]
    if rank == 3:
        forms = [(x.shape[0], x.shape[1], 1, x.shape[2]), (x.shape[0], x.shape[1], x.shape[2], 1)]
    if rank == 4 and x.shape[1] % 4 == 0:
        forms.append((x.shape[0], 4, x.shape[1] // 4, *x.shape[2:]))
    return b.reshaped(x, b.one(forms))


def there_and_back(b, x):
    """A Reshape, some operators, and a Reshape back, as in a channel shuffle or a patch embedding."""
    rank = len(x.shape)
    if rank < 3:
        return None
    if rank == 4 and x.shape[1] % 4 == 0 and b.chance(0.5):
        n, c, *rest = x.shape
        y = b.transposed(b.reshaped(x, (n, 4, c // 4, *rest)), [0, 2, 1, 3, 4])
        return b.reshaped(b.quantized(y, 0.4), x.shape)
    y = b.reshaped(x, (*x.shape[:2], math.prod(x.shape[2:])))
    y = b.quantized(b.one([constant_operand, activated])(b, y), 0.8)
    return b.reshaped(y, x.shape)


def squeeze(b, x):
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    if ones and len(x.shape) > 1 and b.chance(0.7):
        axis = b.one(ones)
        return b.squeezed("Squeeze", x, [axis], [n for k, n in enumerate(x.shape) if k != axis])
    if len(x.shape) > 4:
        return None
    axis = int(b.random.integers(len(x.shape) + 1))
    return b.squeezed("Unsqueeze", x, [axis], [*x.shape[:axis], 1, *x.shape[axis:]])


def slice_(b, x):
    axis = int(b.random.integers(len(x.shape)))
    n = x.shape[axis]
    if n < 2:
        return None
    start, step = b.one([0, 1]), b.one([1, 1, 2])
    stop = b.one([n, n - 1, 2**31 - 1]) if n > 2 else n
    length = len(range(n)[start:stop:step])
    shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
    return b.new(x, b.put("Slice", x, *(b.integers([each]) for each in (start, stop, axis, step))), shape)


def pad(b, x):
    if x.size > MOST_ELEMENTS / 4:
        return None
    before, after = ([int(k) for k in b.random.integers(0, 2, len(x.shape))] for _ in range(2))
    if len(x.shape) > 2 and b.chance(0.7):
        before[:2], after[:2] = [0, 0], [0, 0]
    modes = ["constant", "constant", "edge", *(["reflect"] if min(x.shape) > 1 else [])]
    mode = b.one(modes)
    inputs = [x, b.integers([*before, *after])]
    if mode == "constant" and b.chance(0.5):
        inputs.append(b.constant(b.numbers(())))
    shape = [n + one + other for n, one, other in zip(x.shape, before, after, strict=True)]
    return b.new(x, b.put("Pad", *inputs, mode=mode), shape, max(x.bound, 2), max(x.grid, 2))


def resize(b, x):
    if len(x.shape) != 4 or x.size > MOST_ELEMENTS / 8:
        return None
    is_linear = b.chance(0.4)
    named = {"mode": "linear" if is_linear else "nearest"}
    named |= {"coordinate_transformation_mode": b.one(["asymmetric", "half_pixel"])}
    if not is_linear:
        named["nearest_mode"] = "floor" if named["coordinate_transformation_mode"] == "asymmetric" else "round_prefer_floor"
    x = b.small(x, 12) if is_linear else x
    shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
    roi = b.constant(np.zeros(0, np.float32)) if b.opset < 13 else ""
    if b.chance(0.5):
        inputs = [roi, b.constant([1, 1, 2, 2], np.float32)]
    else:
        inputs = [roi, b.constant(np.zeros(0, np.float32)) if b.opset < 13 else "", b.integers(shape)]
    return b.new(x, b.put("Resize", x, *inputs, **named), shape, None, x.grid + 4 * is_linear)


def joined(b, values, axis):
    shape = list(values[0].shape)
    shape[axis] = sum(each.shape[axis] for each in values)
    bound, grid = max(each.bound for each in values), max(each.grid for each in values)
    return b.new(values[0], b.put("Concat", *values, axis=axis), shape, bound, grid)


def concat(b, x):
    axis = 1 if len(x.shape) > 1 and b.chance(0.8) else int(b.random.integers(len(x.shape)))
    rest = lambda each: (*each.shape[:axis], *each.shape[axis + 1 :])  # noqa: E731
    others = [each for each in b.live if len(each.shape) == len(x.shape) and rest(each) == rest(x) and each is not x]
    other = b.one(others) if others else b.quantized(b.activation(x), 0.7)
    return joined(b, [x, other], axis) if x.size + other.size < MOST_ELEMENTS else None


def split(b, x):
    axis = 1 if len(x.shape) > 1 else 0
    n = x.shape[axis]
    if n < 2:
        return None
    first = n // 2 if b.chance(0.5) else int(b.random.integers(1, n))
    sizes = [first, n - first]
    if b.opset >= 18 and n % 2 == 0 and b.chance(0.5):
        sizes = [n // 2] * 2
        names = b.put("Split", x, axis=axis, num_outputs=2, count=2)
    elif b.opset >= 13:
        names = b.put("Split", x, b.integers(sizes), axis=axis, count=2)
    else:
        names = b.put("Split", x, axis=axis, split=sizes, count=2)
    parts = [b.new(x, name, [*x.shape[:axis], size, *x.shape[axis + 1 :]]) for name, size in zip(names, sizes, strict=True)]
    if b.chance(0.3):
        b.live.append(parts[0])
        return parts[1]
    parts = [b.quantized(b.activation(parts[0]), 0.8), parts[1]]
    if b.chance(0.5):
        parts.reverse()
    return joined(b, parts, axis)


def second_input(b, x):
    """A second input that broadcasts to the value, or the value to it, along dimensions that are known only at run time."""
    shape = [n if b.chance(0.6) else 1 for n in x.shape]
    if b.chance(0.3):
        shape = shape[b.one([0, 1]) :]
    declared = [n if b.chance(0.4) else b.name("d") for n in shape]
    other = b.add_input(shape, declared)
    return b.binary(b.one(["Add", "Add", "Mul", "Sub"]), *((x, other) if b.chance(0.5) else (other, x)))


def run_time_broadcast(b, x):
    """The sum of two inputs, whose batch dimensions have different names, the first of them with batch 1; then the sum of a
    convolution of it and another value."""
    if len(x.shape) != 4 or x.shape[1] > 66:
        return None
    rest = x.shape[1:]
    template = b.add_input((1, *rest), [b.name("A"), *rest])
    search = b.add_input((max(x.shape[0], b.one([1, 2, 3])), *rest), [b.name("B"), *rest])
    if b.chance(0.7):
        template, search = (b.convolution(each, x.shape[1], [1, 1]) for each in (template, search))
    y = b.quantized(b.binary("Add", *((template, search) if b.chance(0.7) else (search, template))))
    return b.binary("Add", b.convolution(y, x.shape[1], [1, 1]), b.one([y, template, template, search]))


def sandwich(b, x):
    """The most common part of networks: a convolution, activations and the like, quantization nodes, and a convolution."""
    if len(x.shape) != 4 or x.shape[1] > 66:
        return None
    kernel = [1, 1] if min(x.shape[2:]) < 3 or b.chance(0.4) else [3, 3]
    y = b.convolution(x, b.one(CHANNELS), kernel, pads=[kernel[0] // 2] * 4)
    for _ in range(b.one([0, 1, 1, 1, 2])):
        y = b.one([activated, activated, constant_operand])(b, y)
    y = b.quantized(y)
    if b.chance(0.2):
        b.live.append(y)
    return b.convolution(y, b.one(CHANNELS), [1, 1])


def xint8(b, x):
    """Convolutions of 8-bit codes times powers of two, with an activation, and nodes that move codes, between them."""
    if len(x.shape) != 4 or x.shape[1] > 66 or not b.exact:
        return None
    y = b.pair(x, "int8")
    for _ in range(b.one([1, 2, 2])):
        kernel = [1, 1] if min(y.shape[2:]) < 3 or b.chance(0.4) else [3, 3]
        y = b.convolution(y, b.one([16, 16, 20, 32]), kernel, pads=[kernel[0] // 2] * 4)
        form = b.one(["Relu", "Relu", "none", "HardSwish"])
        if form != "none":
            y = b.unary("Relu", y) if form == "Relu" else hard_swish_in_parts(b, y)
        y = b.pair(y, b.one(["int8", "uint8"]))
        form = b.one(["none", "none", "MaxPool", "Resize", "moved", "residual"])
        if form == "MaxPool":
            y = b.new(y, b.put("MaxPool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]))
        elif form != "none":
            y = {"Resize": resized, "moved": moved, "residual": residual}[form](b, y) or y
        if len(y.shape) != 4 or y.shape[1] > 66 or y.size > MOST_ELEMENTS / 2:
            return y
    return y


def padded(b, x):
    """Two convolutions with float codes between them, whose channels do not fill a block. The blocked layout adds channels to
    the first convolution, in which 0 * Inf is NaN. This NaN must not reach the channels of the second one."""
    y = b.convolution(x, b.one([12, 20, 20]), [1, 1])
    return b.convolution(b.pair(y, "bfloat16"), b.one([8, 16, 20]), [1, 1])


def matmul(b, x):
    if len(x.shape) < 2 or x.shape[-1] > 400:
        return None
    return linear(b, x, b.one([8, 16, 5]), 0.6)


def linear(b, x, outer, probability):
    """A product with a weight, and with this probability a sum with a bias."""
    weight, sums = b.weight((x.shape[-1], outer), x.shape[-1])
    x = b.small(x, 22 - b.weight_grid - math.log2(sums))
    y = b.new(x, b.put("MatMul", x, weight), (*x.shape[:-1], outer), x.bound * sums, x.grid + b.weight_grid)
    return b.binary("Add", y, b.value_of(b.numbers(outer))) if b.chance(probability) else y


def gemm(b, x):
    if len(x.shape) < 2 or math.prod(x.shape[1:]) > 600:
        return None
    inner, outer = math.prod(x.shape[1:]), b.one([8, 5])
    weight, sums = b.weight((outer, inner), inner)
    x = b.small(x, 22 - b.weight_grid - math.log2(sums))
    if len(x.shape) > 2:
        x = b.new(x, b.put("Flatten", x), (x.shape[0], inner))
    name = b.put("Gemm", x, weight, b.bias(outer, x), transB=1)
    return b.new(x, name, (x.shape[0], outer), x.bound * sums + 2, x.grid + b.weight_grid)


def attention(b, x):
    if len(x.shape) != 3 or b.exact:
        return None
    q, k, v = (b.quantized(matmul_to(b, x, 8), 0.8) for _ in range(3))
    k = b.transposed(k, [0, 2, 1])
    scores = b.new(q, b.put("MatMul", q, k), (*x.shape[:2], x.shape[1]))
    scores = b.quantized(b.binary("Mul", scores, b.value_of(np.array(0.35, np.float32))), 0.8)
    weights = b.quantized(b.unary("Softmax", scores, axis=-1), 0.8)
    return b.new(v, b.put("MatMul", weights, v), (*x.shape[:2], 8))


def matmul_to(b, x, outer):
    weight, _ = b.weight((x.shape[-1], outer), x.shape[-1])
    return b.new(x, b.put("MatMul", x, weight), (*x.shape[:-1], outer))


def hard_swish_in_parts(b, x):
    add, most = (4.0, 8.0) if b.exact else (3.0, 6.0)
    x = b.small(x, 9)
    gated = b.binary("Add", x, b.value_of(np.array(add, np.float32)))
    gated = b.unary("Clip", gated, b.constant(0, np.float32), b.constant(most, np.float32), bound=most)
    if b.chance(0.3):
        gated = b.quantized(gated)
    y = b.binary("Mul", x, gated)
    if b.chance(0.5):
        return b.unary("Div", y, b.constant(most, np.float32), grid=y.grid + 3)
    return b.unary("Mul", y, b.constant(1 / most, np.float32), grid=y.grid + 3)


def gelu(b, x):
    """Gelu, as exporters write it in basic operators."""
    if b.opset >= 20 and b.chance(0.2):
        return b.unary("Gelu", x)
    root, one, half = (b.value_of(np.array(each, np.float32)) for each in (2**0.5, 1, 0.5))
    inner = b.unary("Div", x, root) if b.chance(0.8) else b.binary("Mul", x, b.value_of(np.array(0.5**0.5, np.float32)))
    outer = b.binary("Add", b.unary("Erf", inner), one)
    form = b.one(["x, half", "half, x", "half first"])
    if form == "half first":
        return b.binary("Mul", b.binary("Mul", x, half), outer)
    if form == "half, x":
        return b.binary("Mul", x, b.binary("Mul", outer, half))
    return b.binary("Mul", b.binary("Mul", x, outer), half)


def tanh_gelu(b, x):
    """Gelu with Tanh, as exporters write it."""
    cube, root, half, one = (b.value_of(np.array(each, np.float32)) for each in (0.044715, (2 / math.pi) ** 0.5, 0.5, 1))
    inner = b.binary("Add", x, b.binary("Mul", b.unary("Pow", x, b.constant(3, np.float32)), cube))
    outer = b.binary("Add", b.unary("Tanh", b.binary("Mul", inner, root)), one)
    return b.binary("Mul", b.binary("Mul", x, half), outer)


def softplus(b, x):
    if b.chance(0.7):
        return b.unary("Softplus", x)
    return b.unary("Log", b.binary("Add", b.unary("Exp", x), b.value_of(np.array(1, np.float32))))


def mish(b, x):
    if b.opset >= 18 and b.chance(0.3):
        return b.unary("Mish", x)
    return b.binary("Mul", x, b.unary("Tanh", softplus(b, x)))


def quick_gelu(b, x, is_silu=False):
    inner = x if is_silu else b.binary("Mul", x, b.value_of(np.array(1.702, np.float32)))
    return b.binary("Mul", x, b.unary("Sigmoid", inner))


def gelu_like(b, x):
    return None if b.exact else b.one([gelu, gelu, quick_gelu, tanh_gelu, mish])(b, x)


COMPOSED = {"Gelu": gelu, "TanhGelu": tanh_gelu, "Mish": mish, "Softplus": softplus}


def layer_norm(b, x):
    if b.exact or len(x.shape) < 2 or x.shape[-1] < 3:
        return None
    n = x.shape[-1]
    if b.opset >= 17 and b.chance(0.2):
        return b.unary("LayerNormalization", x, b.constant(b.numbers(n)), b.constant(b.numbers(n)), axis=-1)
    centered = b.binary("Sub", x, b.reduced("ReduceMean", x, [-1]))
    squares = b.binary("Mul", centered, centered) if b.chance(0.4) else b.unary("Pow", centered, b.constant(2, np.float32))
    variance = b.reduced("ReduceMean", squares, [-1])
    deviation = b.unary("Sqrt", b.binary("Add", variance, b.value_of(np.array(1e-5, np.float32))))
    y = b.binary("Div", centered, deviation)
    if b.chance(0.3):
        y = b.quantized(y)
    return b.binary("Add", b.binary("Mul", y, b.value_of(b.numbers(n))), b.value_of(b.numbers(n)))


def batch_norm(b, x):
    if b.exact or not 3 <= len(x.shape) <= 4:
        return None
    c = x.shape[1]
    positive = np.abs(b.numbers(c))
    constants = [b.constant(each) for each in (b.numbers(c), b.numbers(c), b.numbers(c), positive)]
    return b.unary("BatchNormalization", x, *constants)


def if_(b, x):
    """An If, whose branches capture x and another value."""
    flag = b.name("flag")
    if b.chance(0.7):
        b.inputs.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, []))
        b.feeds[flag] = np.array(b.chance(0.5))
    else:
        b.initializers.append(tensor(np.array(b.chance(0.5)), flag))
    x = b.small(x, 12)
    others = [each for each in b.live if each.shape == x.shape]
    other = b.small(b.one(others), 12) if others else x

    def first():
        return b.binary("Add", x, other)

    def second():
        y = b.binary("Mul", b.small(x, 10), b.value_of(np.array(0.5, np.float32)))
        return b.quantized(b.unary("Relu", y)) if b.chance(0.5) else y

    (one, graph), (two, other_graph) = map(b.subgraph, (first, second))
    name = b.put("If", flag, then_branch=graph, else_branch=other_graph)
    return b.new(x, name, None, max(one.bound, two.bound), max(one.grid, two.grid))


def loop(b, x):
    """A Loop of two iterations, whose body adds the captured x to the sum."""
    x = b.small(x, 10)
    others = [each for each in b.live if each.shape == x.shape]
    start = b.small(b.one(others), 10) if others else x

    def add(name):
        y = b.binary("Add", Value(name, x.shape, start.bound + 2 * x.bound, max(start.grid, x.grid)), x)
        return b.quantized(y, 0.4) if b.type in ("bfloat16", "float16") and not b.has_blocks else y

    y, name = two_iterations(b, start, "sum", add)
    return b.new(x, name, None, start.bound + 3 * x.bound, max(start.grid, x.grid, y.grid))


def two_iterations(b, start, prefix, change):
    """Add a Loop, in whose body ``change(name)`` makes the next value from that of a name. Return this value, and the name of
    the last one."""
    i, go, state, again = (b.name(each) for each in ("i", "go", prefix, "again"))
    kinds = {i: (TensorProto.INT64, []), go: (TensorProto.BOOL, []), state: (TensorProto.FLOAT, None)}

    def body():
        b.nodes.append(helper.make_node("Identity", [go], [again]))
        return change(state)

    y, graph = b.subgraph(body, [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()], [again])
    return y, b.put("Loop", b.integers(2), b.constant(True, np.bool_), start, body=graph)


def scan(b, x):
    """A Scan over the slices of a value, whose body adds another, captured value."""
    if len(x.shape) < 2 or x.shape[0] < 1 or len(x.shape) > 4:
        return None
    x = b.small(x, 12)
    row = b.name("row")
    captured = b.small(b.activation(x), 12)

    def body():
        y = b.binary("Add", Value(row, x.shape[1:], x.bound, x.grid), captured)
        return b.unary("Relu", y)

    y, graph = b.subgraph(body, [helper.make_tensor_value_info(row, TensorProto.FLOAT, x.shape[1:])])
    stacked = b.new(y, b.put("Scan", x, body=graph, num_scan_inputs=1), (x.shape[0], *x.shape))
    return b.reduced("ReduceMax", stacked, [0], 0)


def half(b, x):
    """Add a Cast to float16 and one back, and return the output."""
    name = b.put("Cast", b.put("Cast", x, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    return b.new(x, name)


# Moves: nodes between two equal round trips. They move elements, or choose among them and values of the format.


def moved(b, x):
    """A round trip, some moves, and an equal round trip."""
    if not x.shape or not x.size or x.size > MOST_ELEMENTS / 4:
        return None
    x = b.quantized(x)
    again = again_of(b, x)
    for _ in range(b.one([1, 1, 2, 3])):
        x = b.one(MOVES)(b, x) or x
        b.again.setdefault(x.name, again)
        x = (again(x) if b.chance(0.3) else None) or x
    return again(x) or b.pair(x)


def again_of(b, x):
    """Return the function that rounds another value as x was rounded."""
    return b.again.get(x.name, b.quantized)


def again_joined(b, x):
    """A Concat with another value, rounded alike."""
    other = again_of(b, x)(b.activation(x))
    return joined(b, [x, other], int(b.random.integers(len(x.shape)))) if other else None


def taken(b, x):
    """One of the parts of a Split."""
    axis = int(b.random.integers(len(x.shape)))
    n = x.shape[axis]
    if n < 2:
        return None
    first = n // 2 if b.chance(0.5) else int(b.random.integers(1, n))
    if b.opset >= 13:
        names = b.put("Split", x, b.integers([first, n - first]), axis=axis, count=2)
    else:
        names = b.put("Split", x, axis=axis, split=[first, n - first], count=2)
    k = b.one([0, 1])
    return b.new(x, names[k], [*x.shape[:axis], [first, n - first][k], *x.shape[axis + 1 :]])


def gather(b, x):
    axis = int(b.random.integers(len(x.shape)))
    if not x.shape[axis]:
        return None
    count = b.one([1, 2, 5])
    places = b.integers(b.random.integers(0, x.shape[axis], count))
    return b.new(x, b.put("Gather", x, places, axis=axis), (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def expand(b, x):
    if len(x.shape) > 4:
        return None
    return b.new(x, b.put("Expand", x, b.integers([2, *[1] * len(x.shape)])), (2, *x.shape))


def tile(b, x):
    repeats = [b.one([1, 1, 2]) for _ in x.shape]
    return b.new(x, b.put("Tile", x, b.integers(repeats)), [n * k for n, k in zip(x.shape, repeats, strict=True)])


def clipped(b, x):
    """Nodes that keep each element or take 0 or another value."""
    what = b.one(["Relu", "Clip", "Neg", "Abs", "Max", "Min", "ThresholdedRelu", "Trilu"])
    if what in ("Max", "Min"):
        return b.binary(what, x, b.value_of(b.numbers(b.one([(), (1,), x.shape[-1:]]))))
    if what == "Clip":
        return b.unary("Clip", x, *(b.constant(each, np.float32) for each in b.one([(0, 6), (-1, 1), (-0.5, 4)])))
    if what == "Trilu" and (b.opset < 14 or len(x.shape) < 2):
        return None
    return b.unary(what, x, **({"alpha": 0.5} if what == "ThresholdedRelu" else {}))


def where(b, x):
    others = [each for each in b.live if each.shape == x.shape] or [x]
    mask = b.constant(b.random.random(x.shape[-1:]) < 0.5, np.bool_)
    other = b.one([*others, b.value_of(b.numbers(()))])
    return b.new(x, b.put("Where", mask, x, other), None, max(x.bound, other.bound), max(x.grid, other.grid))


def scatter(b, x):
    """Elements of another value in the place of those at some indices."""
    axis = int(b.random.integers(len(x.shape)))
    if b.opset < 11 or x.shape[axis] < 1:
        return None
    places = np.broadcast_to(b.random.permutation(x.shape[axis]).reshape(-1, *[1] * (len(x.shape) - 1 - axis)), x.shape)
    return b.new(x, b.put("ScatterElements", x, b.integers(places), x, axis=axis))


def max_pool(b, x):
    if not 3 <= len(x.shape) <= 4 or min(x.shape) < 1 or getattr(b, "is_awkward", False):
        return None
    spatial = len(x.shape) - 2
    name = b.put("MaxPool", x, kernel_shape=[3] * spatial, pads=[1] * 2 * spatial, strides=[1] * spatial)
    return b.new(x, name)


def resized(b, x):
    return resize(b, x) if b.opset > 10 else None


MOVES = [again_joined, taken, gather, expand, tile, clipped, where, scatter, max_pool, resized, transpose, reshape, squeeze]
MOVES += [slice_, pad, again_joined, taken, clipped, clipped]


# The builders and their weights in the random choice.
BUILDERS = [
    (conv, 16),
    (sandwich, 16),
    (conv_transpose, 3),
    (constant_operand, 9),
    (activated, 7),
    (chain, 5),
    (residual, 9),
    (two_branches, 3),
    (gate, 5),
    (global_pool, 1),
    (pool, 6),
    (island, 9),
    (transpose, 1),
    (reshape, 1),
    (there_and_back, 3),
    (squeeze, 2),
    (slice_, 3),
    (pad, 3),
    (resize, 3),
    (concat, 4),
    (split, 4),
    (second_input, 4),
    (run_time_broadcast, 2),
    (matmul, 2),
    (gemm, 1),
    (attention, 4),
    (layer_norm, 5),
    (gelu_like, 7),
    (moved, 12),
    (xint8, 9),
    (batch_norm, 3),
    (if_, 2),
    (loop, 1),
    (scan, 1),
    (half, 1),
]


def first_input(b):
    batch = b.one([1, 1, 2, 3])
    h, w = b.one(LENGTHS[2:]), b.one(LENGTHS)
    shape = {
        "image": (batch, b.one([3, 3, *CHANNELS]), h, w),
        "line": (batch, b.one(CHANNELS), b.one([8, 16, 11])),
        "volume": (batch, b.one([3, 8, 5]), 4, h, 2),
        "tokens": (batch, b.one([5, 8, 12]), b.one([8, 16, 20])),
        "table": b.one([(batch, 16), (7,), (batch, 33)]),
    }[b.kind]
    form = b.one(["known", "known", "batch", "space", "all"])
    names = ["n", "c", "h", "w", "d"]
    declared = list(shape)
    for axis, name in enumerate(names[: len(shape)]):
        if form == "all" or (form == "batch" and axis == 0) or (form == "space" and axis != 1):
            declared[axis] = name
    if form == "all" and len(shape) > 1 and b.chance(0.5):
        declared[1] = shape[1]
    return b.add_input(shape, declared, "x")


def case(seed):
    """Return the case of a seed."""
    b = Builder(seed)
    x = first_input(b)
    if b.special != "none":
        flat = b.feeds["x"].reshape(-1)
        special = {"Inf": [np.inf, -np.inf], "NaN": [np.nan], "huge": [2.0**100, -(2.0**101), 3e38]}[b.special]
        for place in b.random.choice(flat.size, min(flat.size, b.one([1, 1, 2])), replace=False):
            flat[place] = b.one(special)
    if b.kind == "image" and b.special == "Inf" and b.chance(0.6):
        x = b.quantized(padded(b, x), 0.5)
    elif b.kind in ("image", "line", "volume"):
        x = b.quantized((sandwich(b, x) if b.chance(0.8 if b.special == "Inf" else 0.3) else None) or conv(b, x), 0.7)
    elif b.chance(0.5):
        x = b.quantized(x)
    b.live.append(x)
    b.grow(BUILDERS, b.one([3, 4, 6, 8, 10]), 60, MOST_ELEMENTS)
    if b.kind == "image" and len(b.live[-1].shape) == 4 and b.live[-1].shape[1] <= 66 and b.chance(0.7):
        b.live.append(conv(b, b.live[-1]))
        b.built.append("conv")
    return finished(b, seed)


def finished(b, seed):
    used = set(used_names(b.nodes))
    made = [name for node in b.nodes for name in node.output]
    floats = set(b.shapes)
    outputs = [name for name in made if name not in used and name in floats]
    extra = [name for name in made if name in used and name in floats]
    for _ in range(b.one([0, 0, 1, 2])):
        if extra:
            outputs.append(extra.pop(b.random.integers(len(extra))))
    models = []
    for is_folded in (False, True):
        nodes, initializers = b.nodes, b.initializers
        if is_folded:
            nodes = [node for node in nodes if node.output[0] not in b.weights]
            needed = set(used_names(nodes))
            initializers = [each for each in initializers + b.folded if each.name in needed]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(nodes, f"seed {seed}", b.inputs, infos, initializers)
        opsets = [helper.make_opsetid("", b.opset), helper.make_opsetid(QUARK, 1), helper.make_opsetid(QONNX, 1)]
        models.append(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    shapes = {name: b.shapes[name] for name in outputs}
    return Case(seed, b.exact, b.special, *models, b.feeds, shapes, b.built)


def used_names(nodes):
    """Yield the names that nodes use, nodes of their subgraphs included."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from used_names(attribute.g.node)
                yield from (each.name for each in attribute.g.output)
