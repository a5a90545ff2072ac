"""Random graphs of QONNX, MCT and NVIDIA nodes ("dialects"), and of block formats ("blocks"), from a seed.

Half of the graphs have ordinary scales, powers of two, and the operators of `generated_qdq_graphs`; their sums are exact. The
others have awkward parameters and inputs: scales that are 0, negative, NaN or huge, all bit widths, Inf and NaN. These have no
sums, but operators whose results do not depend on the order of anything."""

import math

import fake_quantization_nodes
import generated_graphs
import generated_qdq_graphs as qdq
import numpy as np
from generated_graphs import QONNX, QUARK
from onnx import TensorProto, helper
from other_quantizers import MCT, NVIDIA, QONNX_DOMAINS

BFP, MX = "BFPQuantizeDequantize", "MXQuantizeDequantize"
ELEMENTS = ["fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8"]
AWKWARD = [np.nan, np.inf, -np.inf, -0.5, 0.0, -0.0, 1e30, 3e38, 1e-42]
SPECIAL = [*AWKWARD, 2.0**127, -(2.0**-149), 0.5, -2.5]
# The pads of MultiThreshold and tables of MCT need channels, so they are among the awkward nodes only.
OF_QONNX = ["Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant", "MultiThreshold"]
OF_MCT = [each for each in fake_quantization_nodes.RANDOM if each.startswith(("Activation", "Weights"))]


class Builder(qdq.Builder):
    """A graph under construction, with other nodes in the place of pairs of ONNX's operators."""

    def __init__(self, seed, graphs):
        super().__init__(seed, {"dialects": 44, "blocks": 45}[graphs])
        self.graphs, self.exact, self.is_dynamic = graphs, True, graphs == "blocks" and self.is_dynamic
        self.is_awkward, self.has_block_type = self.chance(0.5), self.chance(0.5)
        self.has_sums = not self.is_awkward
        self.opset = max(self.opset, 13)
        self.kind = self.kind if self.has_sums or "wide" not in self.kind else "tokens"
        self.weight_kind = self.one(["float", "float", "int8"])

    def small(self, x, bits):
        return super().small(x, bits) if self.has_sums else x

    def pair(self, x, kind=None):
        if self.graphs == "blocks" and not (kind and self.has_sums):
            return self.block(x)
        if self.is_awkward:
            return self.awkward(x)
        return self.ordinary(x)

    def code_input(self, shape, declared):
        return self.add_input(shape, declared)

    def add_input(self, shape, declared, name=None):
        value = super().add_input(shape, declared, name)
        if not self.is_awkward:
            return value
        make = self.makers[value.name]

        def special(batch):
            array = make(batch) * np.float32(self.one([1, 1, 0.37, 1e-20, 1e20]))
            at = self.random.random(array.shape) < 0.05
            return np.where(at, self.random.choice(np.array(SPECIAL, np.float32), array.shape), array).astype(np.float32)

        self.makers[value.name] = special
        return value

    # Nodes.

    def block(self, x):
        if self.has_block_type or not x.shape:
            self.block_type = getattr(self, "block_type", None) or self.format()
        operator, attributes = self.block_type if self.has_block_type and self.chance(0.8) else self.format()
        mode = self.one([0, 1, 2])

        def rounded(x, axis):
            y = self.new(x, self.put(operator, x, domain=QUARK, axis=axis, rounding_mode=mode, **attributes), None, 2 * x.bound)
            self.again[y.name] = lambda x: rounded(x, self.block_axis(x, axis)) if x.shape else None
            return y

        return rounded(x, self.block_axis(x, 1) if x.shape else 0)

    def format(self):
        """Return an operator and its attributes."""
        if self.chance(0.4):
            return MX, {"element_dtype": self.one(ELEMENTS), "block_size": self.one([32, 32, 7, 16, 3])}
        method = self.one(["to_bfp", "to_bfp_prime"])
        bits, size = self.one([16, 16, 13, 11, 10]), self.one([8, 16, 16, 6])
        return BFP, {"bfp_method": method, "bit_width": bits, "block_size": size}

    def ordinary(self, x):
        """A node whose results are multiples of a power of two."""
        exponent = max(min(math.ceil(math.log2(x.bound)) - self.one([8, 7, 6, 5]), 0), -6)
        step, bits = np.float32(2.0**exponent), self.one([8, 8, 8, 4, 6, 16])
        form = self.one(["Quant", "Quant", "mct", "nvidia", "bipolar"])
        bound, grid = min(x.bound + step, 2.0**bits * step), -exponent
        if form == "mct":
            named = {"threshold": float(step * 2 ** (bits - 1)), "signed": 1, "num_bits": bits}
            operator = self.one(["ActivationSymmetricQuantizer", "ActivationPOTQuantizer"])
            return self.new(x, self.put(operator, x, domain=MCT, **named), None, bound, grid)
        if form == "nvidia":
            prefix = self.one(["TRT_FP8", ""])
            scale = self.constant(np.float32(2.0 ** max(exponent, -4)))
            zero = [] if prefix else [self.parameter(np.zeros((), "uint8").view(qdq.oracle.dtype("float8e4m3fn")))]
            codes = self.coded(self.put(f"{prefix}QuantizeLinear", x, scale, *zero, domain=NVIDIA))
            return self.new(x, self.put(f"{prefix}DequantizeLinear", codes, scale, *zero, domain=NVIDIA), None, 1.2 * x.bound)
        if form == "bipolar":
            return self.new(x, self.put("BipolarQuant", x, self.constant(step), domain=QONNX), None, step, grid)
        shape = x.shape and self.chance(0.3) and (1, *x.shape[1:2], *[1] * (len(x.shape) - 2))
        scale = np.full(shape or (), step, np.float32)
        signed = self.one([0, 1, 1])
        mode = self.one(["ROUND", "ROUND", "FLOOR", "CEIL", "HALF_UP"])
        named = {"signed": signed, "narrow": self.one([0, 1]), "rounding_mode": mode}
        names = [self.constant(each) for each in (scale, np.float32(0), np.float32(bits))]
        domain = self.one(QONNX_DOMAINS[:2])
        if not shape:
            make = lambda x, axis: self.put("Quant", x, *names, domain=domain, **named)  # noqa: E731
            return self.repeatable(x, make, None, (), bound, grid)
        return self.new(x, self.put("Quant", x, *names, domain=domain, **named), None, bound, grid)

    def awkward(self, x):
        """A node with any parameters that its operator accepts, also scales without a meaning."""
        operator = self.one([*OF_QONNX * 2, *OF_MCT, "fp8", "mxfp8"])
        if operator == "fp8":
            return self.fp8(x)
        if operator == "mxfp8":
            return self.mxfp8(x)
        if operator.startswith("MultiThreshold") and len(x.shape) < 2:
            return x
        attributes, (_, *others) = fake_quantization_nodes.RANDOM[operator](self.random, x.shape)
        others = [np.asarray(each) for each in others]
        has_scale = operator not in ("MultiThreshold", "FloatQuant") and not operator.startswith(("Activation", "Weights"))
        if has_scale and others[0].size and self.chance(0.4):
            scale = np.array(others[0], np.float32)
            scale.reshape(-1)[self.random.integers(scale.size)] = self.one(AWKWARD)
            others[0] = scale
        if operator == "Trunc" and len(others) > 4:
            return x  # its version is the domain's, and other nodes need version 1
        domain = MCT if operator in OF_MCT else self.one(QONNX_DOMAINS[:1] * 3 + QONNX_DOMAINS[1:])
        return self.new(x, self.put(operator, x, *(self.constant(each) for each in others), domain=domain, **attributes))

    def coded(self, name, kind=TensorProto.FLOAT8E4M3FN):
        """Declare the type of a value, which ONNX Runtime cannot infer."""
        self.value_infos[name] = helper.make_tensor_value_info(name, kind, None)
        return name

    def fp8(self, x):
        scale = self.constant(np.float32(self.one([0.5, 0.011, 3.0, *AWKWARD])))
        codes = self.coded(self.put("TRT_FP8QuantizeLinear", x, scale, domain=NVIDIA))
        return self.new(x, self.put("TRT_FP8DequantizeLinear", codes, scale, domain=NVIDIA))

    def mxfp8(self, x):
        axes = [k for k, n in enumerate(x.shape) if n]
        if not axes:
            return x
        axis = self.one(axes)
        size = self.one([n for n in (1, 2, 3, 4, 8, 16, 32) if x.shape[axis] % n == 0])
        named = {"axis": axis - self.one([0, len(x.shape)]), "block_size": size}
        codes, exponents = self.put("TRT_MXFP8DynamicQuantize", x, domain=NVIDIA, count=2, output_dtype=17, **named)
        self.coded(codes)
        self.coded(exponents, TensorProto.UINT8)
        y = self.put("TRT_MXFP8DequantizeLinear", codes, exponents, domain=NVIDIA, output_dtype=TensorProto.FLOAT, **named)
        return self.new(x, y)


ORDERLESS = [
    *(generated_graphs.constant_operand, generated_graphs.activated, generated_graphs.chain, generated_graphs.concat),
    *(generated_graphs.transpose, generated_graphs.reshape, generated_graphs.squeeze, generated_graphs.slice_),
    *(generated_graphs.split, generated_graphs.two_branches, generated_graphs.there_and_back, generated_graphs.second_input),
    *(generated_graphs.moved, qdq.where, qdq.gather, qdq.flatten, qdq.if_, qdq.requantize),
]
OTHER = {"second_reader", "integer_operator", "moved_codes", "lookup", "run_time_broadcast"}
WITH_SUMS = [(build, weight) for build, weight in qdq.BUILDERS if build.__name__ not in OTHER]


def case(seed, graphs):
    """Return the case of a seed."""
    made = Builder(seed, graphs)
    return qdq.case(
        seed,
        lambda _: made,
        [(each, 1 + 3 * (each is generated_graphs.moved)) for each in ORDERLESS] if made.is_awkward else WITH_SUMS,
    )
