"""Nodes of ExtendedInstanceNormalization and ExtendedLSTM: recorded ones, with the results of Quark's library, and random
ones."""

import functools
import json

import numpy as np
import samples
from onnx import helper, numpy_helper
from onnx_models import model
from paths import MODELS

NORMALIZATION, LSTM = "ExtendedInstanceNormalization", "ExtendedLSTM"
OLDER_NAMES = {NORMALIZATION: "VitisInstanceNormalization", LSTM: "VitisLSTM"}
INPUTS = {NORMALIZATION: ("x", "scale", "bias"), LSTM: ("x", "w", "r", "b")}

# The flags of probes for which Quark's library deviates from the intended result.
OUT_OF_RANGE = {
    "wraps",
    "multiplier rounds to 32768",
    "output shift above 31",
    "output multiplier 65536",
    "shift out of range",
    "not finite",
}


@functools.cache
def nodes_of(name):
    """Return (operator, attributes, inputs, output) for each recorded node of a model."""
    with np.load(MODELS / f"{name}_nodes.npz") as arrays:
        return [
            (
                key.split("_")[1],
                json.loads(str(arrays[f"{key}_attributes"])),
                [arrays[f"{key}_in{i}"] for i in range(len(INPUTS[key.split("_")[1]]))],
                arrays[f"{key}_out"],
            )
            for key in (each.removesuffix("_out") for each in arrays.files if each.endswith("_out"))
        ]


@functools.cache
def probes(operator):
    """Return (attributes, inputs, output, flags) for each probe of an operator."""
    with np.load(MODELS / "other_operators_probes.npz") as arrays:
        descriptions = enumerate(json.loads(str(arrays["meta"])))
        return [
            (each["attributes"], [arrays[f"{i}_in{k}"] for k in range(each["inputs"])], arrays[f"{i}_out"], set(each["flags"]))
            for i, each in descriptions
            if each["op"] == operator
        ]


def of_layer(attributes):
    """Return the attributes that the oracle accepts."""
    return {name: value for name, value in attributes.items() if name not in ("direction", "layout", "input_forget")}


def one_node(operator, attributes, arrays, *, constants=False, domain="com.amd.quark", shapes=None):
    """Return a model of one node. With `constants`, all inputs but x are initializers. `shapes` declares shapes by name."""
    names = INPUTS[operator]
    op_type = operator if domain == "com.amd.quark" else OLDER_NAMES[operator]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    fed = names[:1] if constants else names
    held = zip(names[1:], arrays[1:], strict=True) if constants else ()
    return model(
        [node],
        [(name, "float32", (shapes or {}).get(name)) for name in fed],
        [("y", "float32", (shapes or {}).get("y"))],
        initializers=[numpy_helper.from_array(array, name) for name, array in held],
        domains=[domain],
    )


def values(rng, shape):
    """Return values of one magnitude, of many magnitudes, all equal, with special values, or of random bits."""
    size = int(np.prod(shape))
    kind = rng.integers(0, 8)
    with np.errstate(all="ignore"):
        if kind < 4:
            spread, mean = 10.0 ** rng.uniform(-4, 3), rng.choice([0, 0, 1, 10, 100])
            x = rng.normal(mean * spread, spread, size)
        elif kind == 4:
            x = np.exp2(rng.uniform(-149, 128, size)) * rng.choice([-1, 1], size)
        elif kind == 5:
            x = np.full(size, rng.normal() * 10.0 ** rng.uniform(-3, 4))
        elif kind == 6:
            x = np.exp2(rng.integers(-76, -70, size).astype(np.float64))  # squares near the least float32
        else:
            return rng.integers(0, 2**32, size, np.uint32).view(np.float32).reshape(shape)
        x = x.astype(np.float32)
        if rng.random() < 0.15 and size:
            x[rng.integers(0, size, 1 + size // 20)] = rng.choice(samples.SPECIAL)
    return x.reshape(shape)


def random_normalization(seed):
    """Return the attributes and the inputs of a random normalization."""
    rng = np.random.default_rng([1, seed])
    rank = int(rng.integers(2, 7))
    shape = [*rng.integers(1, 5, 2), *(rng.integers(1, (60, 12, 6, 4)[min(3, rank - 3)], rank - 2) if rank > 2 else ())]
    if rng.random() < 0.08:
        shape[rng.integers(0, rank)] = 0
    channels = int(shape[1])
    attributes = {} if rng.random() < 0.3 else {"epsilon": float(np.float32(rng.choice([1e-5, 1e-3, 0, 1e-12, 10, -1e-3])))}
    operands = [values(rng, shape)]
    for _ in range(2):
        size = channels + int(rng.integers(0, 3)) * (rng.random() < 0.2)
        operand = values(rng, size)
        operands.append(operand.reshape(1, size, 1) if rng.random() < 0.2 else operand)
    return attributes, operands


ZERO_POINTS = [0, 1, 255, 32767, 32768, 32769, 40000, 65535, -5, 65536 + 17]


def random_lstm(seed):
    """Return the attributes and the inputs of a random LSTM layer."""
    rng = np.random.default_rng([2, seed])
    steps, batch = int(rng.integers(1, 8)), int(rng.choice([1, 1, 1, 2, 3]))
    inputs, hidden = int(rng.integers(1, 10)), int(rng.integers(1, 10))
    large = rng.random()
    if large < 0.03:
        steps, inputs = 2, int(rng.integers(250, 600))
    elif large < 0.05:
        steps, batch, hidden = 2, 1, int(rng.integers(30, 70))
    elif large < 0.12:
        steps, batch, inputs = rng.permutation([0, steps, inputs]).tolist()
    shapes = [(steps, batch, inputs), (2, 4 * hidden, inputs), (2, 4 * hidden, hidden), (2, 8 * hidden)]
    typical = dict(zip("xwrby", [1e-4, 1.5e-5, 1.5e-5, 1.5e-5, 3e-5], strict=True))
    kind = rng.integers(0, 5)
    attributes = {"hidden_size": hidden}
    for name, scale in typical.items():
        scale *= 10.0 ** rng.uniform(-0.3, 0.3)
        if kind == 0:
            scale = 2.0 ** np.round(np.log2(scale))
        elif kind == 1:
            scale = 10.0 ** rng.uniform(-18, 18)
        elif kind == 2 and rng.random() < 0.3:
            scale = 10.0 ** rng.uniform(-44, 0)
        attributes[f"{name}_scale"] = float(np.float32(scale))
        near = int(rng.integers(32768 - 300, 32768 + 300))
        attributes[f"{name}_zero_point"] = int(rng.choice([near, near, *ZERO_POINTS, int(rng.integers(0, 65536))]))
    arrays = []
    for name, shape in zip("xwrb", shapes, strict=True):
        scale, zero_point = attributes[f"{name}_scale"], attributes[f"{name}_zero_point"] % 65536
        with np.errstate(all="ignore"):
            array = ((rng.integers(0, 65536, shape) - zero_point + rng.normal(0, 0.3, shape)) * scale).astype(np.float32)
        if rng.random() < 0.1 and array.size:
            array.reshape(-1)[rng.integers(0, array.size, 1 + array.size // 10)] = rng.choice(samples.SPECIAL)
        arrays.append(array)
    return attributes, arrays
