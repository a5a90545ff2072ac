"""Random graphs of ONNX's own QuantizeLinear and DequantizeLinear, from a seed. They have the operators of `generated_graphs`,
other quantization nodes around them, integer operators that a user wrote, and codes that pass through other operators. Imports
nothing of the package.

`case(seed)` returns a model, several feeds, and whether it is *exact*, as in `generated_graphs`: scales are powers of two, and
all sums have fewer than 24 bits. Ties occur."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import generated_graphs
import numpy as np
import onnx
import oracle
from generated_graphs import QUARK, Value, tensor
from onnx import TensorProto, helper

MICROSOFT, ONNX, LOCAL = "com.microsoft", "", "local"
OPSETS = [*range(10, 26), 13, 17, 21, 21, 25]

# The opset in which ONNX's own operators got a type.
SINCE = {"int8": 10, "uint8": 10, "int16": 21, "uint16": 21, "int4": 21, "uint4": 21, "int2": 25, "uint2": 25, "int32": 99}
FLOAT8 = ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]
SINCE |= dict.fromkeys(FLOAT8, 19) | {"bfloat16": 99}
OF_MICROSOFT = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
OF_QUARK = ("int8", "uint8", "int16", "uint16", "int32", "bfloat16")
MIDDLES = {"uint8": 128, "uint16": 32768, "uint4": 8, "uint2": 2}


class Parameters(NamedTuple):
    """The properties that both nodes of a pair share. `axis` is None, or that of scales for each index or block."""

    kind: str
    domain: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None
    block_size: int
    scale_name: str
    zero_point_name: str

    @property
    def is_integer(self):
        return isinstance(oracle.TYPES[self.kind], oracle.Integer)

    def after(self, x):
        """Return the bound and the grid of values after the pair."""
        if not self.is_integer:
            return 1.25 * x.bound, x.grid
        row, zero_point, most = oracle.TYPES[self.kind], self.zero_point.astype(np.int64), float(self.scale.max())
        span = max(row.highest - int(zero_point.min()), int(zero_point.max()) - row.lowest)
        return min(x.bound + most, span * most), -math.floor(math.log2(self.scale.min()))


@dataclass
class Case:
    """A generated graph. `feeds` is a list; their batches differ, if the batch is unknown."""

    seed: int
    exact: bool
    model: onnx.ModelProto
    feeds: list
    built: list


class Builder(generated_graphs.Builder):
    """A graph under construction."""

    def __init__(self, seed, entropy=43):
        super().__init__(seed)
        self.random = np.random.default_rng([entropy, seed])
        self.special, self.has_blocks = "none", False
        self.exact = self.chance(0.85)
        self.opset = self.one(OPSETS)
        self.kinds = [kind for kind in SINCE if self.domains(kind)]
        wide = [kind for kind in ("int16", "uint16", "int4", "uint4", "bfloat16", *FLOAT8) if kind in self.kinds]
        self.type = self.one(["int8", "uint8"] * 6 + wide)
        self.weight_kind = self.one(["int8"] * 4 + ["uint8", "float", "mixed", "int16", *wide])
        self.rate = self.one([1, 1, 0.75, 0.4])
        self.kind = self.one(["image"] * 4 + ["wide image"] * 3 + ["wide table"] * 3 + ["line", "tokens", "table"])
        self.is_dynamic = self.chance(0.5)
        self.has_output_dtypes, self.has_sums = self.opset >= 21 and self.chance(0.15), True
        self.shared, self.used, self.codes, self.code_types, self.scale_of = {}, [], [], {}, {}
        self.makers, self.functions = {}, {}
        self.used_domains, self.value_infos = {MICROSOFT, QUARK}, {}
        self.made_weights = {}
        self.weight_scale, self.has_own_initializers = None, False

    # Parameters.

    def domains(self, kind):
        """Return the domains of operators that have a type."""
        found = [ONNX] * 6 if SINCE[kind] <= self.opset else []
        return found + [MICROSOFT] * (kind in OF_MICROSOFT) + [QUARK] * (kind in OF_QUARK)

    def parameter(self, array):
        """Return the name of a scale or zero point: an initializer, mostly shared with others, or computed."""
        array = np.asarray(array)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key in self.shared and self.chance(0.7):
            return self.shared[key]
        is_scale = array.dtype == np.float32
        form = self.one(["plain"] * 24 + ["Constant", "Identity", *(["Mul", "input", "ReduceMax"] * is_scale)])
        if form == "Constant":
            name = self.put("Constant", value=tensor(array, ""))
        elif form == "Identity" and array.dtype.name in ("float32", "int8", "uint8", "int16", "uint16"):
            name = self.put("Identity", self.constant(array))
        elif form == "Mul":
            name = self.put("Mul", self.constant(array / 2), self.constant(np.float32(2)))
        elif form == "ReduceMax" and not array.shape:
            name = self.put("ReduceMax", self.constant(np.array([array / 2, array], np.float32)), keepdims=0)
        elif form == "input":
            name = self.name("p")
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
            self.makers[name] = lambda batch: array
        else:
            name = self.constant(array)
        if not self.depth:
            self.shared[key] = name
        return name

    def parameters(self, kind, shape, bound, grid, *, per_tensor=False, domain=None, axis=None):
        """Return parameters that suit values of this bound and grid. With `axis`, scales are for each index of it."""
        row = oracle.TYPES[kind]
        domain = self.one(self.domains(kind)) if domain is None else domain
        size, block_size = (), 0
        if axis is None and not per_tensor and shape and min(shape) > 0 and row.bits <= 16 and kind not in FLOAT8:
            form = self.one(["tensor"] * 12 + ["axis"] * 3 + ["blocks"] * (not self.is_dynamic))
            if form == "axis" and (self.opset >= 13 or domain):
                axis = int(self.random.integers(len(shape)))
            elif form == "blocks" and domain == ONNX and self.opset >= 21 and len(shape) > 1:
                axis = int(self.random.integers(len(shape)))
                block_size = int(self.random.choice([2, 3, 4, 16]))
                size = tuple(-(-n // block_size) if k == axis else n for k, n in enumerate(shape))
        if axis is not None and not block_size:
            size = (shape[axis],)
        if axis is None and self.chance(0.15):
            size = (1,)
        if axis in (0, -len(shape)) and self.is_dynamic and shape and shape[0] == getattr(self, "batch", None):
            axis, size, block_size = None, (), 0  # the batch changes
        middle = MIDDLES.get(kind, 0)
        if isinstance(row, oracle.Integer):
            zero_point = self.one([middle] * 4 + [0, 0, middle + 3 if row.bits > 4 else 1, row.lowest, middle])
            zero_point = (
                np.full(size, zero_point) if self.chance(0.7) or not size else self.random.integers(-1, 2, size) + middle
            )
            zero_point = zero_point.clip(row.lowest, row.highest)
            span = max(row.highest - int(zero_point.min()), int(zero_point.max()) - row.lowest, 1)
            exponent = math.ceil(math.log2(bound / span)) + self.one([-3, -2, -1, -1, 0, 0, 1])
            exponent = max(min(exponent, 0), -8)
        else:
            zero_point = np.zeros(size)
            exponent = 0 if kind == "bfloat16" else min(9 - grid, max(math.ceil(math.log2(bound)) - 7, -4))
        scale = np.ldexp(np.float32(1), exponent - (self.random.integers(0, 2, size) if size else 0)).astype(np.float32)
        if not self.exact:
            scale = (scale * np.float32(0.83)).astype(np.float32)
        zero_point = zero_point.astype(oracle.dtype(kind))
        if axis is not None and self.chance(0.3):
            axis -= len(shape)
        names = self.parameter(scale), self.parameter(zero_point)
        return Parameters(kind, domain, np.asarray(scale), np.asarray(zero_point), axis, block_size, *names)

    def node(self, operation, x, p):
        """Add a quantize or dequantize node. A zero point of zeros is mostly there."""
        attributes = {} if p.axis is None or (p.axis == 1 and self.chance(0.3)) else {"axis": p.axis}
        if p.block_size:
            attributes["block_size"] = p.block_size
        inputs = [x, p.scale_name, p.zero_point_name]
        if p.domain != QUARK and not p.zero_point.astype(np.float64).any() and self.chance(0.3):
            if operation == "Dequantize" or p.kind == "uint8":
                inputs.pop()
            elif p.domain == ONNX and self.has_output_dtypes:
                inputs.pop()
                attributes["output_dtype"] = helper.np_dtype_to_tensor_dtype(p.zero_point.dtype)
        if operation == "Quantize" and p.kind in FLOAT8 and self.chance(0.2):
            attributes["saturate"] = 1
        prefix = "Extended" if p.domain == QUARK else ""
        y = self.put(f"{prefix}{operation}Linear", *inputs, domain=p.domain, **attributes)
        if operation == "Quantize":
            self.code_types[y] = p.kind
        return y

    def dequantized(self, codes, p, like, shape=None):
        """Add a dequantize node, and return the value. `like` is the value before the quantize node."""
        y = self.new(like, self.node("Dequantize", codes, p), shape, *p.after(like))
        if p.axis is None:
            self.scale_of[y.name] = p.scale
        return y

    def pair(self, x, kind=None):
        kind = kind or (self.type if self.chance(0.85) else self.one([each for each in self.kinds if each != "int32"]))
        suited = [p for p in self.used if p.kind == kind and p.axis is None] if kind in SINCE else []
        if suited and self.chance(0.35):
            p = self.one(suited)
            if not p.is_integer and x.bound / float(p.scale.max()) > 200:
                return self.pair(x, "int8")
        else:
            p = self.parameters(kind, x.shape, x.bound, x.grid)
        if not self.depth:
            self.used.append(p)
        if p.axis is None and p.zero_point.size == 1 and self.chance(0.04) and p.domain == ONNX:
            return self.new(x, self.put("RoundTrip", x, *self.function(p), domain=LOCAL), None, *p.after(x))
        return self.rounded(x, p)

    def rounded(self, x, p):
        """Add a pair with these parameters, and remember it (`repeatable`)."""
        codes = self.node("Quantize", x, p)
        if not self.depth:
            self.codes.append((codes, p, x))

        def again(other):
            axes = [p.axis] if p.axis is None else [k for k, n in enumerate(other.shape) if (n,) == p.scale.shape]
            return self.rounded(other, p._replace(axis=self.one(axes))) if axes and not p.block_size else None

        y = self.dequantized(codes, p, x)
        self.again[y.name] = again
        return y

    def function(self, p):
        """Make the local function of a pair, and return its other inputs."""
        if not self.functions:
            nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
            nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
            opsets = [helper.make_opsetid("", self.opset)]
            self.functions[LOCAL] = helper.make_function(LOCAL, "RoundTrip", ["x", "s", "z"], ["y"], nodes, opsets)
        return p.scale_name, p.zero_point_name

    def quantized(self, x, probability=1.0):
        return self.pair(x) if self.chance(self.rate if probability < 1 else max(self.rate, 0.8)) else x

    # Weights.

    def weight_codes(self, shape, fan_in, kind, domain=None, *, axis=None):
        """Return codes beyond their zero points, their parameters, and the largest sum of magnitudes."""
        row = oracle.TYPES[kind]
        most = {2: 1, 4: 6, 16: 700, 32: 700}.get(row.bits, self.one([3, 6, 50])) if kind not in FLOAT8 else 6
        most = most if kind != "bfloat16" else 6
        budget = 2.0 ** (6 if oracle.TYPES[self.type].bits > 8 else 11)
        most = max(1, min(most, budget / 4))
        numbers = self.random.integers(-most, most + 1, shape) * (
            self.random.random(shape) < 2 * budget / (most * max(1, fan_in))
        )
        p = self.parameters(kind, shape, 0.5, 2, per_tensor=axis is None, domain=domain, axis=axis)
        middle = self.one([MIDDLES.get(kind, 0)] * 5 + [1, -1])
        zero_point = np.full(p.zero_point.shape, middle if row.bits == 8 and kind not in FLOAT8 else MIDDLES.get(kind, 0))
        zero_point = zero_point.clip(getattr(row, "lowest", 0), getattr(row, "highest", 0)).astype(p.zero_point.dtype)
        exponent = {2: -2, 4: -4, 16: -10, 32: -10}.get(row.bits, -5) if kind != "bfloat16" else -4
        scale = np.ldexp(np.float32(1), exponent + self.random.integers(0, 2, p.scale.shape)).astype(np.float32)
        p = p._replace(scale=scale, scale_name=self.parameter(scale))
        p = p._replace(zero_point=zero_point, zero_point_name=self.parameter(zero_point))
        offset = zero_point.flat[0].astype(np.float64) if isinstance(row, oracle.Integer) else 0
        if isinstance(row, oracle.Integer):
            numbers = (numbers + offset).clip(row.lowest, row.highest) - offset
        return numbers, numbers + offset, p

    def weight(self, shape, fan_in):
        """Return the name of a weight, mostly dequantized codes, and the largest sum of magnitudes. Some weights are shared."""
        if (shape, fan_in) in self.made_weights and self.chance(0.3):
            name, sums, self.weight_grid, self.weight_scale = self.made_weights[shape, fan_in]
            return name, sums
        name, sums = self.new_weight(shape, fan_in)
        if not self.depth:
            self.made_weights[shape, fan_in] = name, sums, self.weight_grid, self.weight_scale
        return name, sums

    def new_weight(self, shape, fan_in):
        kind = self.weight_kind if self.weight_kind != "mixed" and self.chance(0.85) else self.one(["float", *self.kinds])
        is_float = kind == "float"
        right = [k for k, n in enumerate(shape) if math.prod(shape) == fan_in * n]
        has_axis = not is_float and self.chance(0.35)
        axis = self.one(right) if has_axis and right and self.chance(0.85) else int(self.random.integers(len(shape)))
        kind = "int8" if is_float else kind
        domain = self.one(self.domains(kind))
        if not has_axis or 0 in shape or kind in FLOAT8 or kind == "bfloat16" or (self.opset < 13 and domain == ONNX):
            axis = None
        numbers, codes, p = self.weight_codes(shape, fan_in, kind, domain, axis=axis)
        if kind == "int4" and domain == ONNX and len(shape) == 2 and self.opset >= 21 and self.chance(0.4):
            p = self.blocked(p, shape)
        spread = oracle.spread(p.scale, p.axis or 0, p.block_size, shape)
        w = (numbers * spread).astype(np.float32)
        self.weight_grid = max(1, -math.floor(math.log2(p.scale.min())))
        self.weight_scale = None if p.block_size or is_float else p.scale
        sums = generated_graphs.largest_sum(w, right or range(w.ndim))
        if is_float:
            return self.constant(w), sums
        if self.chance(0.25) and kind != "int32" and not p.block_size:
            return self.node("Dequantize", self.node("Quantize", self.constant(w), p), p), sums
        array = codes.astype(p.zero_point.dtype)
        return self.node("Dequantize", self.constant(array), p), sums

    def blocked(self, p, shape):
        """Return parameters of blocks of 16 along the first axis, as ONNX Runtime fuses them into MatMulNBits."""
        size = (-(-shape[0] // 16), shape[1])
        scale = np.broadcast_to(p.scale.max(), size).astype(np.float32)
        zero_point = np.zeros(size, p.zero_point.dtype)
        names = self.parameter(scale), self.parameter(zero_point)
        return Parameters(p.kind, p.domain, scale, zero_point, 0, 16, *names)

    def bias(self, channels, x):
        """A float bias, or a dequantized int32 bias with the product of both scales."""
        scale = self.scale_of.get(x.name)
        if scale is None or self.weight_scale is None or self.chance(0.3):
            return self.constant(np.ceil(self.numbers(channels)) if x.grid + self.weight_grid < 2 else self.numbers(channels))
        scale = (scale * self.weight_scale).astype(np.float32)
        if scale.size not in (1, channels):
            scale = scale[:1]
        most = max(1, min(1000, 2 / scale.max()))
        codes = self.constant(self.random.integers(-most, most + 1, channels), np.int32)
        scale = scale.reshape(-1) if scale.size == channels and self.opset >= 13 else scale.max()
        zero_point = [self.parameter(np.zeros(scale.shape, np.int32))] if self.chance(0.5) else []
        return self.put("DequantizeLinear", codes, self.parameter(scale), *zero_point, **({"axis": 0} if scale.shape else {}))

    # Nodes whose older versions have attributes in place of inputs.

    def put(self, operator, *inputs, count=1, domain="", **attributes):
        if operator == "Resize" and self.opset < 13 and len(inputs) == 4:
            inputs = [*inputs[:2], self.constant([1, 1, 2, 2], np.float32)]  # instead of sizes, which the oracle lacks here
        if self.opset < 11 and operator in ("Clip", "Pad") and not domain:
            arrays = {each.name: onnx.numpy_helper.to_array(each) for each in self.initializers}
            x, *others = inputs
            values = [arrays[each].tolist() for each in others]
            attributes |= dict(zip(("min", "max") if operator == "Clip" else ("pads", "value"), values, strict=False))
            inputs = [x]
        self.used_domains.add(domain)
        return super().put(operator, *inputs, count=count, domain=domain, **attributes)

    # Graphs.

    def subgraph(self, make, inputs=(), others=()):
        """Do the same as for other graphs. The initializers of the graph are mostly its own."""
        count, live, own_codes = len(self.initializers), len(self.live), len(self.codes)
        y, graph = super().subgraph(make, inputs, others)
        made = [name for node in graph.node for name in node.output]
        graph.value_info.extend(self.value_infos[name] for name in made if name in self.value_infos)
        if self.chance(0.7):
            self.has_own_initializers = True
            graph.initializer.extend(self.initializers[count:])
            del self.initializers[count:]
        del self.live[live:], self.codes[own_codes:]
        return y, graph

    def add_input(self, shape, declared, name=None):
        name, shape = name or self.name("x"), tuple(shape)
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
        is_unknown = bool(shape) and not isinstance(declared[0], int)

        def make(batch):
            size = (batch * shape[0] // self.batch, *shape[1:]) if is_unknown and shape[0] == self.batch else shape
            if self.exact:
                return np.asarray(self.random.integers(-16, 17, size) / 4, np.float32)
            return np.asarray(self.random.normal(0, 1.5, size), np.float32)

        self.makers[name] = make
        return self.new(Value(name, shape), name)

    def code_input(self, shape, declared):
        """Add an input of codes, and return its dequantized value."""
        kind = self.one(["int8", "uint8", "int8", "uint8", *(["int16", "uint16"] * (self.opset >= 21))])
        p = self.parameters(
            kind, shape, 4.0, 2, per_tensor=self.chance(0.9), domain=self.one([ONNX, ONNX, *self.domains(kind)])
        )
        name, row = self.name("q"), oracle.TYPES[kind]
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(row.dtype)), declared))
        middle, most = MIDDLES.get(kind, 0), 120 if row.bits == 8 else 1000

        def make(batch):
            size = shape if isinstance(declared[0], int) else (batch, *shape[1:])
            return (self.random.integers(-most, most, size) + middle).astype(row.dtype)

        self.makers[name] = make
        return self.dequantized(name, p, Value(name, tuple(shape), 4096.0, 0))


# Builders that `generated_graphs` lacks.


def dense(b, x):
    """A wide product, for which integer operators are the fastest."""
    if len(x.shape) == 4 and 8 <= x.shape[1] <= 128 and min(x.shape[2:]) > 2:
        return b.convolution(x, b.one([32, 64, 96]), [3, 3], pads=[1] * 4)
    if len(x.shape) < 2 or not 16 <= x.shape[-1] <= 600:
        return None
    return generated_graphs.linear(b, x, b.one([64, 128, 256]), 0.4)


def gemm(b, x):
    """Add a Gemm with all its attributes, and return the output."""
    if len(x.shape) != 2 or not 1 <= x.shape[1] <= 600:
        return None
    inner, outer, turned = x.shape[1], b.one([5, 8, 64]), b.one([0, 1])
    weight, sums = b.weight((outer, inner) if turned else (inner, outer), inner)
    x = b.small(x, 21 - b.weight_grid - math.log2(sums))
    alpha, beta = b.one([1.0, 1.0, 0.5, 2.0]), b.one([1.0, 1.0, 0.5, 2.0])
    inputs = [x, weight, *([b.bias(outer, x)] if b.chance(0.7) else [])]
    if b.chance(0.2):
        inputs[0], turn = b.transposed(x, [1, 0]), {"transA": 1}
    else:
        turn = {}
    name = b.put("Gemm", *inputs, transB=turned, alpha=alpha, beta=beta, **turn)
    return b.new(x, name, (x.shape[0], outer), 2 * x.bound * sums + 4, x.grid + b.weight_grid + 1)


def lookup(b, x):
    """A function of 8-bit codes, whose result is quantized to 8 bits: a table of codes."""
    x, own = b.pair(x, b.one(["int8", "uint8"])), set(b.shapes)
    what = b.one(["Sigmoid", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Erf", "Silu", "Gelu", "Softplus"])
    what = "Sigmoid" if what == "Erf" and b.opset < 9 else what
    if what == "Silu":
        y = b.new(x, b.put("Mul", x, b.put("Sigmoid", x)))
    elif what == "Gelu":
        root, one, half = (b.constant(np.float32(each)) for each in (2**0.5, 1, 0.5))
        outer = b.put("Add", b.put("Erf", b.put("Div", x, root)), one)
        y = b.new(x, b.put("Mul", b.put("Mul", x, outer), half))
    else:
        y = b.unary(what, x)
    y = y._replace(bound=max(1, x.bound), grid=x.grid + 8)
    for name in set(b.shapes) - own:  # no outputs: only the codes are exact
        del b.shapes[name]
    return b.pair(y, b.one(["int8", "uint8"]))


def extreme(b, x):
    others = [each for each in b.live if each.shape == x.shape]
    return b.binary(b.one(["Max", "Min"]), x, b.one(others) if others and b.chance(0.7) else b.value_of(b.numbers(())))


def requantize(b, x):
    """Add two pairs in a row, the second with another scale or type, and return the output."""
    return b.pair(b.pair(x), b.one(["int8", "uint8", *[each for each in b.kinds if each != "int32"]]))


def second_reader(b, x):
    """A second dequantize node of codes, with the same scale or another one."""
    if not b.codes:
        return None
    codes, p, like = b.one(b.codes)
    if p.axis is None and p.is_integer and b.chance(0.5):
        p = p._replace(scale=p.scale * 2, scale_name=b.parameter((p.scale * 2).astype(np.float32)))
        like = like._replace(bound=4 * like.bound)
    return b.dequantized(codes, p, like)


def moved_codes(b, x):
    """A node between both nodes of a pair, which only moves codes."""
    p = b.parameters(b.one(["int8", "uint8"]), x.shape, x.bound, x.grid, per_tensor=True)
    codes, shape = b.node("Quantize", x, p), x.shape
    form = b.one(["Transpose", "Flatten", "Identity", "Reshape"])
    if form == "Transpose" and len(shape) > 1:
        order = [0, *(1 + b.random.permutation(len(shape) - 1)).tolist()]
        codes, shape = b.put("Transpose", codes, perm=order), tuple(shape[k] for k in order)
    elif form == "Flatten" and len(shape) > 1:
        codes, shape = b.put("Flatten", codes), (shape[0], math.prod(shape[1:]))
    elif form == "Reshape":
        codes = b.put("Reshape", codes, b.integers([0, -1, 1] if len(shape) > 1 else [0, 1]))
        shape = (shape[0], math.prod(shape[1:]), 1) if len(shape) > 1 else (*shape, 1)
    else:
        codes = b.put("Identity", codes)
    return b.dequantized(codes, p, x, shape)


def flatten(b, x):
    return b.new(x, b.put("Flatten", x), (x.shape[0], math.prod(x.shape[1:]))) if len(x.shape) > 2 else None


def resize(b, x):
    if b.opset > 10:
        return generated_graphs.resize(b, x)
    if len(x.shape) != 4 or x.size > 1500:
        return None
    return b.new(x, b.put("Resize", x, b.constant([1, 1, 2, 2], np.float32)), (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))


def integer_operator(b, x):
    """An integer operator as a user or another quantizer writes it."""
    if not x.shape or min(x.shape) < 1:
        return None
    kind = b.one(["int8", "uint8", "uint8"])
    p = b.parameters(kind, x.shape, x.bound, x.grid, per_tensor=True, domain=ONNX)
    p = scalar(b, p)
    if len(x.shape) == 2 and x.shape[1] < 400 and b.opset >= 11 and b.chance(0.2):
        return dynamic(b, x)
    codes = b.node("Quantize", x, p)
    bound, grid = p.after(x)
    x = x._replace(name=codes, bound=bound, grid=grid)
    has_weight = (len(x.shape) == 2 or 3 <= len(x.shape) <= 4) and x.shape[1] <= 600 and b.chance(0.6)
    return (product if has_weight else coded_operator)(b, x, p, kind)


def scalar(b, p):
    """Return parameters without dimensions."""
    p = p._replace(scale=p.scale.reshape(()), zero_point=p.zero_point.reshape(()))
    return p._replace(scale_name=b.parameter(p.scale), zero_point_name=b.parameter(p.zero_point))


def named(p):
    return p.scale_name, p.zero_point_name


def product(b, x, p, kind):
    """Add a product of codes with codes of weights, and return the output."""
    outer, channels = b.one([8, 16, 33]), x.shape[1]
    is_matrix = len(x.shape) == 2
    k = 1 if is_matrix or min(x.shape[2:]) < 3 else b.one([1, 3])
    shape = (channels, outer) if is_matrix else (outer, channels, *[k] * (len(x.shape) - 2))
    fan_in = math.prod(shape) // outer
    is_integer = b.chance(0.4)  # ConvInteger or MatMulInteger
    of_axis = b.chance(0.3) and not is_matrix and not is_integer
    _, codes, w = b.weight_codes(
        shape, fan_in, "int8" if kind == "int8" else b.one(["int8", "uint8"]), ONNX, axis=0 if of_axis else None
    )
    if not of_axis:
        w = scalar(b, w)
    weight = b.constant(codes, w.zero_point.dtype)
    sums = max(1.0, float(np.abs((codes - w.zero_point.flat[0].astype(float)) * w.scale.max()).sum() / outer * 4))
    out = (x.shape[0], outer, *x.shape[2:])
    window = {} if is_matrix else {"pads": [k // 2] * 2 * (len(x.shape) - 2)}
    grid = -math.floor(math.log2(p.scale.min())) - math.floor(math.log2(w.scale.min()))
    y = Value("", out, x.bound * sums + 2, grid)
    if is_integer:
        y_codes = b.put(
            "MatMulInteger" if is_matrix else "ConvInteger", x, weight, p.zero_point_name, w.zero_point_name, **window
        )
        scale = b.parameter(np.asarray(p.scale * w.scale, np.float32))
        return b.new(y, b.put("Mul", b.put("Cast", y_codes, to=TensorProto.FLOAT), scale))
    q = b.parameters(kind, out, y.bound / 8, y.grid, per_tensor=True, domain=ONNX)
    q = scalar(b, q)
    bias = [b.constant(b.random.integers(-500, 500, outer), np.int32)] if b.chance(0.5) else []
    if is_matrix and b.chance(0.5):
        c = bias or [""]
        is_float = b.chance(0.3)
        result = b.put("QGemm", x, *named(p), weight, *named(w), *c, *([] if is_float else named(q)), domain=MICROSOFT)
        if is_float:
            return b.new(y, result)
    elif is_matrix:
        result = b.put("QLinearMatMul", x, *named(p), weight, *named(w), *named(q))
    else:
        result = b.put("QLinearConv", x, *named(p), weight, *named(w), *named(q), *bias, **window)
    return b.dequantized(result, q, y)


def coded_operator(b, x, p, kind):
    """Add one of com.microsoft's operators on codes, and return the output."""
    forms = ["QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearLeakyRelu", "QLinearSigmoid"]
    is_image = len(x.shape) == 4 and min(x.shape[2:]) > 1
    form = b.one(forms + ["QLinearAveragePool", "QLinearGlobalAveragePool"] * is_image)
    shape, grid = x.shape, x.grid + 4
    count = math.prod(x.shape[2:])
    if form == "QLinearGlobalAveragePool" and b.exact and count & (count - 1):
        form = "QLinearAveragePool"
    q = scalar(b, b.parameters(kind, x.shape, x.bound, x.grid, per_tensor=True, domain=ONNX))
    if "Pool" in form:  # ONNX Runtime rounds averages with their zero point: with an even one, ties go to the same code
        q = scalar(b, q._replace(zero_point=np.asarray(MIDDLES.get(kind, 0), q.zero_point.dtype)))
    if form in ("QLinearAdd", "QLinearMul"):
        y = b.put(form, x, *named(p), x, *named(p), *named(q), domain=MICROSOFT)
    elif form == "QLinearConcat":
        axis = len(shape) - 1
        y, shape = b.put(form, *named(q), x, *named(p), x, *named(p), axis=axis, domain=MICROSOFT), (*shape[:-1], 2 * shape[-1])
    elif form in ("QLinearLeakyRelu", "QLinearSigmoid"):
        y = b.put(form, x, *named(p), *named(q), domain=MICROSOFT, **({"alpha": 0.25} if "Leaky" in form else {}))
    elif form == "QLinearAveragePool":
        y = b.put(form, x, *named(p), *named(q), domain=MICROSOFT, kernel_shape=[2, 2])
        shape = (*shape[:2], *(n - 1 for n in shape[2:]))
    else:
        y, shape = b.put(form, x, *named(p), *named(q), domain=MICROSOFT), (*shape[:2], 1, 1)
    return b.dequantized(y, q, x._replace(grid=grid, bound=x.bound**2 + 1), shape)


def dynamic(b, x):
    """DynamicQuantizeLinear of values with the extremes 0 and 255/16, which make its scale a power of two."""
    top = np.float32(255 / 16)
    x = b.unary("Clip", x, b.constant(np.float32(0)), b.constant(top))
    ends = b.put(
        "Expand",
        b.constant(np.array([[0, top]], np.float32)),
        b.put("Concat", b.put("Slice", b.put("Shape", x), *(b.integers([k]) for k in (0, 1))), b.integers([2]), axis=0),
    )
    codes, scale, zero_point = b.put("DynamicQuantizeLinear", b.put("Concat", x, ends, axis=1), count=3)
    inner, outer = x.shape[1] + 2, b.one([8, 16])
    _, numbers, w = b.weight_codes((inner, outer), inner, b.one(["int8", "uint8"]), ONNX)
    w = scalar(b, w)
    y = b.put("MatMulInteger", codes, b.constant(numbers, w.zero_point.dtype), zero_point, w.zero_point_name)
    y = b.put("Mul", b.put("Mul", b.put("Cast", y, to=TensorProto.FLOAT), scale), b.constant(w.scale.max()))
    sums = float(np.abs(numbers).sum(0).max() * w.scale.max()) + 1
    return b.new(x, y, (x.shape[0], outer), 16 * sums, 4 - math.floor(math.log2(w.scale.max())))


# Branches and bodies.


def body(b, x, others):
    """Add some nodes that keep the shape of a captured value."""
    y = x
    for _ in range(b.one([1, 2, 2, 3])):
        form = b.one(["pair", "pair", "binary", "activation", "conv", "matmul", "twice", "codes"])
        if form == "pair":
            y = b.pair(y)
        elif form == "binary":
            y = b.binary(b.one(["Add", "Mul", "Max"]), y, b.one(others) if others else b.value_of(b.numbers(())))
        elif form == "conv" and b.has_sums and 3 <= len(x.shape) <= 4 and 0 < x.shape[1] <= 66 and min(x.shape) > 0:
            groups = b.one([1, x.shape[1]])
            y = b.convolution(y, x.shape[1], [1] * (len(x.shape) - 2), groups)
        elif form == "matmul" and b.has_sums and len(x.shape) > 1 and 0 < x.shape[-1] <= 128:
            y = generated_graphs.matmul_to(b, b.small(y, 10), x.shape[-1])
            y = b.pair(y._replace(grid=y.grid + 8, bound=y.bound * 64), "int8")
        elif form == "twice":
            y = b.unary(b.one(["Max", "Add"]), y, y, bound=2 * y.bound)
        elif form == "codes":
            codes = [each for each in b.codes if each[2].shape == x.shape and each[1].axis is None]
            if codes:
                y = b.binary("Add", y, b.dequantized(*b.one(codes)))
        else:
            y = b.activation(y)
    return y


def flag(b):
    name = b.name("flag")
    b.inputs.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    b.makers[name] = lambda batch: np.array(b.chance(0.5))
    return name


def if_(b, x):
    """An If, whose branches capture dequantized values and codes."""
    if b.chance(0.5) and x.name not in b.scale_of:
        x = b.pair(x)
    x, condition = b.small(x, 12), flag(b)
    others = [b.small(each, 12) for each in b.live if each.shape == x.shape][:2]
    (one, graph), (two, other_graph) = (b.subgraph(lambda: body(b, x, others)) for _ in range(2))
    name = b.put("If", condition, then_branch=graph, else_branch=other_graph)
    return b.new(x, name, None, max(one.bound, two.bound), max(one.grid, two.grid))


def loop(b, x):
    """A Loop of two iterations, whose body quantizes the sum of its state and captured values."""
    x = b.pair(x, "int8")

    def add(name):
        y = b.pair(b.binary("Add", Value(name, x.shape, 2 * x.bound, 8), x), b.one(["int8", "uint8"]))
        return b.unary("Relu", y) if b.chance(0.3) else y

    y, name = generated_graphs.two_iterations(b, x, "state", add)
    return b.new(x, name, None, max(x.bound, y.bound), max(x.grid, y.grid, 8))


def scan(b, x):
    """A Scan over the slices of a value, whose body captures others."""
    if not 2 <= len(x.shape) <= 4 or not 1 <= x.shape[0] <= 8 or x.size > 2000:
        return None
    x, row = b.pair(x), b.name("row")
    x = b.small(x, 12)

    def make():
        y = b.binary("Add", x._replace(name=row, shape=x.shape[1:]), x)
        return b.pair(y) if b.chance(0.7) else b.unary("Relu", y)

    y, graph = b.subgraph(make, [helper.make_tensor_value_info(row, TensorProto.FLOAT, None)])
    stacked = b.new(y, b.put("Scan", x, body=graph, num_scan_inputs=1), (x.shape[0], *x.shape))
    return b.reduced("ReduceMax", stacked, [0], 0)


where, gather = generated_graphs.where, generated_graphs.gather
own = (gemm, resize, if_, loop, scan)
BUILDERS = [(build, 5 if weight > 10 else min(weight, 3)) for build, weight in generated_graphs.BUILDERS]
BUILDERS += [(generated_graphs.moved, 6)]
BUILDERS = [each for each in BUILDERS if each[0].__name__ not in {build.__name__ for build in own}]
BUILDERS += [(dense, 14), (gemm, 4), (lookup, 3), (extreme, 2), (where, 2), (gather, 1), (requantize, 3), (second_reader, 2)]
BUILDERS += [(flatten, 2), (moved_codes, 2), (resize, 2), (integer_operator, 6), (if_, 5), (loop, 2), (scan, 1)]


def first_input(b):
    b.batch = b.one([1, 1, 2, 4])
    h, w = b.one([2, 4, 8]), b.one([1, 4, 8])
    shape = {
        "image": (b.batch, b.one([1, 3, 3, 8, 12, 16, 33]), h, w),
        "wide image": (b.batch, b.one([16, 32, 64]), b.one([4, 8, 10]), 8),
        "wide table": (b.one([16, 32, 64]), b.one([64, 128, 256])),
        "line": (b.batch, b.one([3, 8, 16]), b.one([8, 16, 11])),
        "tokens": (b.batch, b.one([5, 8, 12]), b.one([8, 16, 64])),
        "table": (b.batch, b.one([4, 16, 33])),
    }[b.kind]
    if b.kind == "wide table":
        b.batch = shape[0]
    if "wide" not in b.kind and b.chance(0.03):
        shape = (*shape[:-1], 0)
    declared = [b.one(["n", None]) if b.is_dynamic else shape[0], *shape[1:]]
    return b.code_input(shape, declared) if b.chance(0.3) else b.add_input(shape, declared)


def case(seed, builder=Builder, builders=None):
    """Return the case of a seed."""
    b = builder(seed)
    b.live.append(b.quantized(first_input(b)))
    b.grow(builders or BUILDERS, b.one([1, 2, 3, 4, 6, 8]), 40, 20_000)
    return finished(b, seed)


def finished(b, seed):
    used, made = set(generated_graphs.used_names(b.nodes)), [name for node in b.nodes for name in node.output]
    outputs = [name for name in made if name not in used and name in b.shapes]
    extra = [name for name in made if name in used and name in b.shapes]
    outputs += list(b.random.permutation(extra)[: b.one([0, 0, 1, 2])])
    codes = [name for name in made if oracle.TYPES[b.code_types.get(name, "int4")].bits in (8, 16)]
    codes = [name for name in codes if b.code_types[name] in ("int8", "uint8", "int16", "uint16")]
    codes = list(b.random.permutation(codes)[: b.one([0, 0, 0, 1])]) if codes else []
    infos = [helper.make_tensor_value_info(str(name), TensorProto.FLOAT, None) for name in outputs]
    types = [helper.np_dtype_to_tensor_dtype(oracle.dtype(b.code_types[name])) for name in codes]
    infos += [helper.make_tensor_value_info(str(name), kind, None) for name, kind in zip(codes, types, strict=True)]
    needed = set(generated_graphs.used_names(b.nodes))
    initializers = [each for each in b.initializers if each.name in needed]
    inputs, ir_version = list(b.inputs), b.one([8, 9, 10, 10]) if b.opset < 19 else 10
    if b.opset < 19 and not b.functions and b.chance(0.2):
        ir_version = b.one([3, 4, 6, 7][b.has_own_initializers :])
    share = 1 if ir_version == 3 else b.one([0, 0, 0, 0.3])
    if share:  # initializers that a feed may replace
        inputs += [
            helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in initializers if b.chance(share)
        ]
    known = [b.value_infos[name] for name in made if name in b.value_infos and name not in outputs]
    graph = helper.make_graph(b.nodes, f"seed {seed}", inputs, infos, initializers, value_info=known)
    domains = sorted(b.used_domains - {ONNX})
    opsets = [helper.make_opsetid("", b.opset), *(helper.make_opsetid(each, 1) for each in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(b.functions.values()))
    batches = [b.batch, b.batch, 2 * b.batch, 0] if b.is_dynamic else [b.batch, b.batch]
    return Case(seed, b.exact, model, [{name: make(each) for name, make in b.makers.items()} for each in batches], b.built)
