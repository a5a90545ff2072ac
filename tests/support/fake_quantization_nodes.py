"""Random nodes of the operators of QONNX, MCT and OpenVINO, and models of one node. Imports nothing of the package."""

from typing import Any, NamedTuple

import numba
import numpy as np
import samples
from onnx import helper, numpy_helper
from onnx_models import model
from other_quantizers import QONNX_DOMAINS, call

f32 = np.float32
QONNX = QONNX_DOMAINS[0]

ROUNDING_MODES = ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN", "HALF_EVEN", "ROUND_TO_ZERO")

# Shapes of x. The last one is large enough for several threads in a session.
SHAPES = [(), (1,), (17,), (0,), (5, 3), (4, 0, 3), (2, 3, 4), (2, 3, 4, 5), (3, 7, 5, 1), (2, 1, 33), (40, 5, 199)]
SMALL_SHAPES = SHAPES[:-1]


class Node(NamedTuple):
    domain: str
    operator: str
    attributes: dict[str, Any]
    inputs: list[np.ndarray]

    @property
    def version(self):
        """The version of the operator in which the node is valid: the second one if it is a Trunc with six inputs."""
        return 2 if self.operator == "Trunc" and len(self.inputs) == 6 else 1

    def expected(self):
        with np.errstate(all="ignore"):
            (y,) = call(self.domain, self.operator, self.version, self.attributes, self.inputs)
        return y

    def model(self, *, constants=False, shapes=None):
        """Return a model of the node. Its inputs are those of the graph, or all but x are `constants`."""
        names = ["x", *(f"i{k}" for k in range(1, len(self.inputs)))]
        node = helper.make_node(self.operator, names, ["y"], domain=self.domain, **self.attributes)
        held = names[1:] if constants else []
        values = [
            (name, str(each.dtype), None if shapes is None else shape)
            for name, each, shape in zip(names, self.inputs, shapes or names, strict=True)
            if name not in held
        ]
        initializers = [numpy_helper.from_array(self.inputs[names.index(name)], name) for name in held]
        y = "y" if shapes is None else ("y", "float32", shapes[0])
        return model([node], values, [y], initializers=initializers, domains=[self.domain])

    def feeds(self, *, constants=False):
        return {"x": self.inputs[0]} if constants else {f"i{k}" if k else "x": each for k, each in enumerate(self.inputs)}


def random_node(domain, operator, seed):
    """Return a random node. Each operator has its own random numbers."""
    rng = np.random.default_rng([seed, *operator.encode()])
    shapes = SMALL_SHAPES if numba.config.DISABLE_JIT else SHAPES
    attributes, inputs = RANDOM[operator](rng, shapes[seed % len(shapes)])
    return Node(domain, operator, attributes, [np.asarray(each) for each in inputs])


def values(rng, shape, step=1.0):
    """Return an x: multiples of half a step, where results change, numbers of its size, special numbers and random bits."""
    size = int(np.prod(shape))
    with np.errstate(all="ignore"):
        halves = (rng.integers(-40, 40, size) * f32(0.5) * f32(step)).astype(f32)
        normal = (rng.normal(0, 10, size) * f32(step)).astype(f32)
    bits = rng.integers(0, 2**32, size, np.uint32).view(f32)
    special = rng.choice(samples.SPECIAL, size)
    return rng.permuted(np.choose(rng.integers(0, 4, size), [halves, normal, bits, special])).astype(f32).reshape(shape)


def broadcast_shape(rng, shape):
    """Return a shape that broadcasts: of one element, along one axis, along two axes, or along all."""
    rank = len(shape)
    whole = [1] * rank
    for axis in rng.permutation(rank)[: rng.choice([0, 0, 1, 1, 2, rank])]:
        whole[axis] = shape[axis]
    leading = next((k for k, length in enumerate(whole) if length != 1), rank)
    return tuple(whole[rng.integers(0, leading + 1) :])  # with or without the ones in front


def scales(rng, shape):
    scale = rng.choice(np.array([*samples.SCALES, 0.37, 0.011], f32), shape)
    return np.where(rng.random(shape) < 0.03, f32(0), scale).astype(f32)


def number(rng, value):
    """Return a number as models may have it: a scalar or an array of one element, of one of three types."""
    return np.full(((), (1,), (1, 1))[rng.integers(0, 3)], value, (f32, np.int32, np.int64)[rng.integers(0, 3)])


def numbers(rng, *given):
    """Return numbers as arrays of one random type."""
    dtype = (f32, np.int32, np.int64)[rng.integers(0, 3)]
    return [number(rng, value).astype(dtype) for value in given]


def mode(rng):
    name = rng.choice(ROUNDING_MODES)
    return str(name if rng.random() < 0.7 else name.lower())


def quant(rng, shape):
    scale, bits = scales(rng, broadcast_shape(rng, shape)), rng.integers(1, 33)
    of_zeros = broadcast_shape(rng, shape)
    zero_point = rng.choice(np.array([0, 0, 0, -3, 7, 100, 0.3], f32), of_zeros)
    attributes = {"signed": int(rng.integers(0, 2)), "narrow": int(rng.integers(0, 2)), "rounding_mode": mode(rng)}
    return attributes, [values(rng, shape, scale.flat[0] if scale.size else 1), scale, zero_point, number(rng, bits)]


def bipolar_quant(rng, shape):
    return {}, [values(rng, shape), scales(rng, broadcast_shape(rng, shape))]


def trunc(rng, shape):
    of_scale = broadcast_shape(rng, shape)
    scale, bits = rng.uniform(0.01, 2, of_scale).astype(f32), rng.integers(1, 33, 2)
    zero_point = rng.choice(np.array([0, 0, 5, -17], f32), broadcast_shape(rng, shape))
    x = values(rng, shape, 3 * scale.flat[0] if scale.size else 1)
    in_bits, out_bits = numbers(rng, *bits)
    if rng.random() < 0.5:
        return {"rounding_mode": mode(rng)}, [x, scale, zero_point, in_bits, number(rng, bits[1])]
    out_scale = (scale * rng.uniform(0.2, 300, of_scale)).astype(f32)
    attributes = {"rounding_mode": mode(rng), "signed": int(rng.integers(0, 2)), "narrow": int(rng.integers(0, 2))}
    return attributes, [x, scale, zero_point, in_bits, out_scale, out_bits]


def float_quant(rng, shape):
    scale = scales(rng, broadcast_shape(rng, shape))
    exponent_bits, mantissa_bits = int(rng.integers(1, 9)), int(rng.integers(0, 24))
    bias = int(np.clip(2 ** (exponent_bits - 1) - 1 + rng.integers(-3, 4), -126, 150 - mantissa_bits))
    if rng.random() < 0.3:
        exponent_bits, mantissa_bits, bias = [(4, 3, 7), (5, 2, 15), (2, 1, 1), (3, 2, 3)][rng.integers(0, 4)]
    max_val = rng.choice(np.array([448, 57344, 6, 3.5, 0, np.inf], f32))
    saturation, has_inf = (int(each) for each in rng.integers(0, 2, 2))
    has_nan = 1 if not (saturation or has_inf) else int(rng.integers(0, 2))
    attributes = {"has_inf": has_inf, "has_nan": has_nan, "saturation": saturation, "has_subnormal": int(rng.integers(0, 2))}
    of_format = numbers(rng, exponent_bits, mantissa_bits, bias)
    x = values(rng, shape, scale.flat[0] if scale.size else 1)
    return attributes | {"rounding_mode": mode(rng)}, [x, scale, *of_format, np.full((1,) * rng.integers(0, 2), max_val, f32)]


def multi_threshold(rng, shape):
    """The shape of x gets a second axis if it lacks one."""
    shape = (shape + (3, 3))[:2] if len(shape) < 2 else shape
    layout = ["", "", "NCDHW"[: len(shape)], "N" + "DHW"[: len(shape) - 2] + "C"][rng.integers(0, 4)]
    axis = layout.index("C") if layout else {3: 2}.get(len(shape), 1)
    rows = shape[axis] if rng.random() < 0.7 else 1
    thresholds = values(rng, (rows, rng.choice([0, 1, 2, 3, 4, 7, 15, 31])))
    x = values(rng, shape)
    if thresholds.size:
        x = np.where(rng.random(shape) < 0.3, rng.choice(thresholds.reshape(-1), shape), x)
    attributes = {"data_layout": layout, "out_scale": float(f32(rng.normal())), "out_bias": float(f32(rng.normal()))}
    return attributes | {"out_dtype": "UINT4"}, [x, thresholds]


def channels(rng, shape):
    """Return attributes, and the number of parameters."""
    if not shape or 0 in shape or rng.random() < 0.4:
        return {"per_channel": 0, "channel_axis": 0}, 1
    axis = int(rng.integers(-len(shape), len(shape)))
    return {"per_channel": 1, "channel_axis": axis}, shape[axis]


def activation(rng, shape):
    threshold = f32(rng.choice([1.0, 0.37, 8.0, 1e-30]))
    attributes = {"threshold": float(threshold), "signed": int(rng.integers(0, 2)), "num_bits": int(rng.integers(1, 17))}
    return attributes, [values(rng, shape, threshold / 4)]


def activation_uniform(rng, shape):
    least = f32(rng.choice([-3.7, -1.0, 0.0, 0.2]))
    attributes = {"min_range": float(least), "max_range": float(least + f32(rng.uniform(0.1, 9)))}
    if rng.random() < 0.2:
        attributes = {"min_range": -2.5, "max_range": -0.5}
    return attributes | {"num_bits": int(rng.integers(1, 17))}, [values(rng, shape, 0.1)]


def weights(rng, shape):
    attributes, count = channels(rng, shape)
    attributes |= {"num_bits": int(rng.integers(1, 17)), "signed": 1}
    return attributes, [values(rng, shape, 0.1), rng.uniform(0.1, 3, count).astype(f32)]


def weights_uniform(rng, shape):
    attributes, (x, width) = weights(rng, shape)
    least = rng.uniform(-2, 1, width.shape).astype(f32)
    return attributes, [x, least, (least + width).astype(f32)]


def weights_of_table(rng, shape):
    attributes, (x, threshold) = weights(rng, shape)
    bits = int(rng.integers(1, 9))
    lut = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), rng.integers(1, 17)).astype(f32)
    return attributes | {"lut_values_bitwidth": bits, "eps": float(f32(rng.choice([0, 1e-8, 0.01])))}, [x, lut, threshold]


def levels(rng, shape):
    """Return the attributes and the inputs of a node of levels. The limits of x may be crossed, or the same."""
    low, high, y_low, y_high = (rng.uniform(*ends, broadcast_shape(rng, shape)).astype(f32) for ends in 2 * [(-4, 0.5), (0, 5)])
    if rng.random() < 0.3:
        low, high = (high, low) if rng.random() < 0.5 else (low, low)
    if rng.random() < 0.5:
        y_low, y_high = low, high
    count = int(rng.choice([2, 3, 4, 16, 255, 256, 65536]))
    attributes = {"levels": count} | ({} if rng.random() < 0.5 else {"auto_broadcast": "numpy"})
    step = (high.flat[0] - low.flat[0]) / (count - 1) if low.size and high.size else 1
    return attributes, [values(rng, shape, step), low, high, y_low, y_high]


RANDOM = {
    "Quant": quant,
    "IntQuant": quant,
    "BipolarQuant": bipolar_quant,
    "Trunc": trunc,
    "FloatQuant": float_quant,
    "MultiThreshold": multi_threshold,
    "ActivationSymmetricQuantizer": activation,
    "ActivationPOTQuantizer": activation,
    "ActivationUniformQuantizer": activation_uniform,
    "WeightsSymmetricQuantizer": weights,
    "WeightsPOTQuantizer": weights,
    "WeightsUniformQuantizer": weights_uniform,
    "WeightsLUTSymmetricQuantizer": weights_of_table,
    "WeightsLUTPOTQuantizer": weights_of_table,
    "FakeQuantize": levels,
}
