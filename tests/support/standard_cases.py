"""Nodes of every operator that has a standard form, from the catalog: a family without nodes here fails its tests."""

from typing import Any, NamedTuple

import numpy as np
from fake_quantization_nodes import RANDOM
from onnx import helper

from quark_numba.catalog import OPERATORS
from quark_numba.declaration import Operator
from quark_numba.element_types import FLOAT16, FLOAT32, UINT8, ElementType, find
from quark_numba.element_types.operands import find_any

# The newest opset of which ONNX Runtime has all operators.
NEWEST = 25

# Operators under their newest names. An operator of ONNX has a declaration for each of its versions.
WITH_FORMS = [each for each in OPERATORS if each.standard_form and not each.newer_name and each.since_version <= NEWEST]

SHAPE = (2, 4, 6)


class Case(NamedTuple):
    """A node: the arrays that it takes, None for an omitted input, and its attributes."""

    operator: Operator
    attributes: dict[str, Any]
    inputs: list[np.ndarray | None]

    def __str__(self):
        shapes = "/".join("-" if each is None else "x".join(map(str, each.shape)) or "one" for each in self.inputs)
        return f"{self.operator.domain or 'onnx'}-{self.operator.name}-{self.operator.since_version}-{shapes}"

    @property
    def opset(self):
        """The opset of a model of the node: that of ONNX's operator, or the newest of which ONNX Runtime has all operators."""
        return self.operator.since_version if not self.operator.domain else NEWEST

    @property
    def version(self):
        """The version of the operator's domain in which the node is valid: the second one if it is a Trunc with six inputs."""
        return 2 if self.operator.name == "Trunc" and len(self.inputs) == 6 else self.operator.since_version

    def names(self):
        return ["" if each is None else f"i{k}" if k else "x" for k, each in enumerate(self.inputs)]

    def node(self, **names):
        """Return the node, with other names of its inputs and outputs."""
        outputs = [f"y{k}" if k else "y" for k in range(len(self.operator.outputs))]
        inputs, outputs = ([names.get(each, each) for each in every] for every in (self.names(), outputs))
        return helper.make_node(self.operator.name, inputs, outputs, domain=self.operator.domain, **self.attributes)

    def outputs(self, x=None):
        """Return what the kernels compute, for another x if one is given."""
        inputs = [self.inputs[0] if x is None else x, *self.inputs[1:]]
        with np.errstate(all="ignore"):
            found = self.operator.call(*inputs, **self.attributes)
        return list(found) if isinstance(found, tuple) else [found]

    def tensors(self):
        """Return the inputs besides x as tensors."""
        pairs = list(zip(self.names(), self.inputs, strict=True))[1:]
        return [
            helper.make_tensor(name, find_any(each.dtype).number, each.shape, each.tobytes(), raw=True)
            for name, each in pairs
            if each is not None
        ]


def cases(operator, *, is_float16=False, seed=0):
    """Return some nodes of an operator: of each granularity that it has, or of float16 wherever it takes that."""
    rng = np.random.default_rng([seed, *operator.name.encode()])
    return [each for each in _NODES[operator.family](operator, rng, is_float16) if each]


def _linear(operator, rng, is_float16):
    x_types, scale_types = (operator.types[parameter.variable] for parameter in operator.inputs[:2])
    preferred = (FLOAT16, FLOAT32) if is_float16 else (FLOAT32, FLOAT16)
    integers = (find("int8"), UINT8) if not operator.uint8_holds else (find("float8e4m3fn"),)
    zero_type = _first(operator.types[operator.inputs[-1].variable], integers)
    x_type = _first(x_types, integers if operator.operation == "dequantize" else preferred)
    scale_type = _first(scale_types, preferred)
    granularities = [((), {}), ((SHAPE[1],), {}), ((SHAPE[2],), {"axis": -1})]
    has = {attribute.name for attribute in operator.attributes}
    if "block_size" in has:
        granularities += [((2, 4, 3), {"axis": 2, "block_size": 2}), ((2, 2, 6), {"axis": -2, "block_size": 3})]
    for shape, attributes in granularities:
        if attributes.keys() - has or (shape and "axis" not in has):
            continue
        scale = rng.choice([0.25, 0.1, 0.013, 1.5], shape).astype(np.float32).astype(scale_type.dtype)
        x = rng.normal(0, 4, SHAPE).astype(np.float32).astype(x_type.dtype)
        if operator.operation == "dequantize":
            x = rng.integers(1, 100, SHAPE).astype(np.uint8).view(x_type.dtype)
        if scale_type is UINT8:
            scale = rng.integers(120, 130, shape).astype(np.uint8)
        given = [x, scale]
        if len(operator.inputs) > 2:
            given.append(rng.integers(0, 5, shape).astype(zero_type.dtype))
        defaults = {each.name: each.default for each in operator.attributes if each.default}
        defaults |= {name: value for name, value in {"axis": 1, "block_size": 0}.items() if name in has}
        attributes = defaults | attributes
        yield Case(operator, attributes, given)


def _first(types: tuple[ElementType, ...], preferred: tuple[ElementType, ...]) -> ElementType:
    return next((each for each in preferred if each in types), types[0])


def _block(operator, rng, is_float16):
    x_types = operator.types["T"]
    x_type = _first(x_types, (FLOAT16 if is_float16 else FLOAT32,))
    base = {each.name: each.default for each in operator.attributes if each.default is not None}
    formats = {
        "BFPQuantizeDequantize": [
            {"bit_width": 13, "block_size": 4},
            {"bit_width": 13, "block_size": 4, "convert_to_bfloat_before_bfp": 1},
            {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 4, "sub_block_size": 2, "sub_block_shift_bits": 1},
        ],
        "MXQuantizeDequantize": [{"element_dtype": "fp8_e4m3", "block_size": 3}, {"element_dtype": "int8", "block_size": 4}],
    }.get(operator.name, [{"block_size": 2}])
    for attributes in formats:
        for axis in (1, -1, 0, -2):
            x = rng.normal(0, 4, SHAPE).astype(np.float32).astype(x_type.dtype)
            given = [x, np.float32(0.37).reshape(())][: len(operator.inputs)]
            yield Case(operator, base | attributes | {"axis": axis}, given)


def _fake_quantization(operator, rng, is_float16):
    if operator.domain == "quark_numba":
        scale = rng.uniform(0.1, 1, (SHAPE[1], 1)).astype(np.float32)
        fixed = [np.float32(number).reshape(()) for number in (0, 4, 1, 0)]
        for each in (scale, np.float32(0.3).reshape(())):
            x = rng.normal(0, 4, SHAPE).astype(np.float32)
            yield Case(operator, {"form": "integer", "rounding_mode": "ROUND"}, [x, each, *fixed])
        for form in ("bfloat16", "float16"):
            yield Case(operator, {"form": form, "rounding_mode": "ROUND"}, [x])
        return
    for _ in range(6):
        attributes, inputs = RANDOM[operator.name](rng, SHAPE)
        defaults = {each.name: each.default for each in operator.attributes if each.default is not None}
        attributes = {**defaults, **attributes}
        yield Case(operator, attributes, [np.asarray(each) for each in inputs])


def _tables(operator, rng, is_float16):
    return _fake_quantization(operator, rng, is_float16)


def _normalization(operator, rng, is_float16):
    given = [rng.normal(3, 2, SHAPE), rng.normal(size=SHAPE[1]), rng.normal(size=SHAPE[1])]
    yield Case(operator, {"epsilon": 1e-5}, [each.astype(np.float32) for each in given])


_NODES = {
    "linear": _linear,
    "block": _block,
    "fake_quantization": _fake_quantization,
    "tables": _tables,
    "normalization": _normalization,
}
