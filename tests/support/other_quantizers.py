"""Models of other quantizers, run by onnx's reference evaluator with the oracles' operators. Imports nothing of the package."""

import functools
import zlib
from typing import Any, NamedTuple

import mct_oracle
import numpy as np
import nvidia_oracle
import onnx
import openvino_oracle
import oracle
import qonnx_oracle
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from paths import MODELS

QONNX_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general", "finn")
MCT, NVIDIA, OPENVINO = "mct_quantizers", "trt", "org.openvinotoolkit"

# The function of each operator, by the version in which the operator came or changed.
QONNX_OPERATORS = {
    "Quant": {1: qonnx_oracle.quant},
    "IntQuant": {1: qonnx_oracle.quant},
    "BipolarQuant": {1: qonnx_oracle.bipolar_quant},
    "Trunc": {1: qonnx_oracle.trunc_1, 2: qonnx_oracle.trunc_2},
    "FloatQuant": {1: qonnx_oracle.float_quant},
    "MultiThreshold": {1: qonnx_oracle.multi_threshold},
}
MCT_OPERATORS = {
    "ActivationSymmetricQuantizer": {1: mct_oracle.activation_symmetric},
    "ActivationPOTQuantizer": {1: mct_oracle.activation_pot},
    "ActivationUniformQuantizer": {1: mct_oracle.activation_uniform},
    "WeightsSymmetricQuantizer": {1: mct_oracle.weights_symmetric},
    "WeightsPOTQuantizer": {1: mct_oracle.weights_pot},
    "WeightsUniformQuantizer": {1: mct_oracle.weights_uniform},
    "WeightsLUTSymmetricQuantizer": {1: mct_oracle.weights_lut_symmetric},
    "WeightsLUTPOTQuantizer": {1: mct_oracle.weights_lut_pot},
}
NVIDIA_OPERATORS = {
    "QuantizeLinear": {1: nvidia_oracle.quantize},
    "DequantizeLinear": {1: nvidia_oracle.dequantize},
    "TRT_FP8QuantizeLinear": {1: nvidia_oracle.quantize},
    "TRT_FP8DequantizeLinear": {1: nvidia_oracle.dequantize},
    "TRT_FP4DynamicQuantize": {1: nvidia_oracle.fp4_dynamic_quantize},
    "TRT_MXFP8DynamicQuantize": {1: nvidia_oracle.mxfp8_dynamic_quantize},
    "TRT_MXFP8DequantizeLinear": {1: nvidia_oracle.mxfp8_dequantize},
}
OPENVINO_OPERATORS = {"FakeQuantize": {1: openvino_oracle.fake_quantize}}
OPERATORS = dict.fromkeys(QONNX_DOMAINS, QONNX_OPERATORS)
OPERATORS |= {MCT: MCT_OPERATORS, NVIDIA: NVIDIA_OPERATORS, OPENVINO: OPENVINO_OPERATORS}

# The operators whose oracles take `digits`.
WITH_DIGITS = {name for name in MCT_OPERATORS if name.startswith(("Activation", "WeightsLUT"))}

# Whether float32 sums are added in the order of the machine on which the tolerances of models were found. In another order
# their last bits differ, and one flipped rounding spreads.
_rng = np.random.default_rng(0)
_products = _rng.normal(size=(48, 270)).astype(np.float32) @ _rng.normal(size=(270, 500)).astype(np.float32)
HAS_SAME_SUMS = zlib.crc32(_products.tobytes()) in (806007939, 762761068)  # with two releases of OpenBLAS

# Attributes that the runtimes do not read.
UNREAD = {"mctq_version"}


class Node(NamedTuple):
    """A node that has been run. `version` is the domain's import, 1 without one."""

    name: str  # of its first output
    domain: str
    operator: str
    version: int
    attributes: dict[str, Any]
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def call(domain, operator, version, attributes, inputs, *, digits=None):
    """Return the outputs of a node, as a list. `digits`: of float attributes of mct_quantizers, see `mct_oracle`."""
    versions = OPERATORS[domain][operator]
    function = versions[max(each for each in versions if each <= version)]
    given = {name: value for name, value in attributes.items() if name not in UNREAD}
    if operator in WITH_DIGITS:
        given["digits"] = digits
    outputs = function(*inputs, **given)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def outputs_of(node, inputs, opset_imports, *, digits=None):
    """Return the outputs of a NodeProto for its inputs. `opset_imports` are the model's."""
    return call(node.domain, node.op_type, version_of(node, opset_imports), attributes_of(node), inputs, digits=digits)


def version_of(node, opset_imports):
    return {each.domain: each.version for each in opset_imports}.get(node.domain, 1)


def attributes_of(node):
    """Return the attributes of a NodeProto, strings as str."""
    values = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def quantization_nodes(model):
    """Return the nodes of a model's graph that the oracles compute."""
    return [node for node in model.graph.node if node.op_type in OPERATORS.get(node.domain, ())]


def models_of(*folders):
    """Return the paths of all models in folders of the test models."""
    return [path for folder in folders for path in sorted((MODELS / folder).glob("*.onnx"))]


def expectation(path):
    """Return (feeds, outputs): the inputs of a model by name, and what its vendor's runtime gave for each output."""
    model = onnx.load(path)
    held = {each.name for each in model.graph.initializer}
    (name,) = [each.name for each in model.graph.input if each.name not in held]
    beside = path.with_name(f"{path.stem.removesuffix('_m')}_expected.npz")
    with np.load(beside) as arrays:
        outputs = [arrays[key] for key in arrays.files if key.startswith("y")][: len(model.graph.output)]
        fed = [arrays[key] for key in arrays.files if key.startswith("x")]
    if not fed:
        with np.load(path.with_name("cnn160_x.npz")) as arrays:
            fed = [arrays["x"]]
    return {name: fed[0]}, outputs


def expected_outputs(source, feeds=None, *, digits=None):
    """Return the outputs of a model, as a list. `source` is a path or a ModelProto. Without `feeds`, the inputs are
    those in the file beside the model."""
    return run(source, feeds, digits=digits)[0]


def expected_nodes(source, feeds=None, *, digits=None):
    """Return each quantization node of a model, in the order of the run, with its inputs and outputs."""
    return run(source, feeds, digits=digits)[1]


def run(source, feeds=None, *, digits=None):
    """Return (outputs, nodes) of a model."""
    model = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    feeds = expectation(source)[0] if feeds is None else feeds
    nodes = []
    with np.errstate(all="ignore"):
        outputs = ReferenceEvaluator(model, new_ops=reference_ops(nodes, digits)).run(None, feeds)
    return outputs, nodes


def reference_ops(nodes=None, digits=None):
    """Return classes for the reference evaluator, and one for ONNX's DequantizeLinear, of which it lacks versions and types.
    Each quantization node that runs is appended to the list `nodes`."""
    classes = [
        type(operator, (_Operator,), {"op_domain": domain, "nodes": nodes, "digits": digits})
        for domain, operators in OPERATORS.items()
        for operator in operators
    ]
    return [*classes, DequantizeLinear]


class _Operator(OpRun):
    def __init__(self, onnx_node, run_params, schema=None):
        super().__init__(onnx_node, run_params, schema or NoSchema)

    def _run(self, *inputs, **_):
        node, version = self.onnx_node, self.run_params["opsets"].get(self.onnx_node.domain, 1)
        attributes, arrays = attributes_of(node), [from_onnx(each) for each in inputs]
        outputs = call(node.domain, node.op_type, version, attributes, arrays, digits=self.digits)
        if self.nodes is not None:
            self.nodes.append(Node(node.output[0], node.domain, node.op_type, version, attributes, arrays, outputs))
        return tuple(outputs)


class NoSchema:
    """Keeps the evaluator from requiring attributes, and from taking the schema of another domain's operator."""

    attributes: dict[str, Any] = {}  # noqa: RUF012


class DequantizeLinear(OpRun):
    op_domain = ""

    def _run(self, *inputs, **attributes):
        given = {name: value for name, value in attributes.items() if value is not None}
        return (nvidia_oracle.dequantize_linear(*map(from_onnx, inputs), **given),)


def from_onnx(array):
    """Return an array with a dtype of ml_dtypes. Before 1.19 onnx has its own, integers with one field, named after
    the type."""
    array = np.asarray(array)
    if not array.dtype.names:
        return array
    return array.view(f"u{array.dtype.itemsize}").view(element_types()[array.dtype.names[0]])


@functools.cache
def element_types():
    """Return the dtypes of ml_dtypes by onnx's names of them."""
    by_name = {name: np.dtype(row.dtype) for name, row in oracle.TYPES.items()}
    return by_name | {name.removeprefix("float8"): dtype for name, dtype in by_name.items() if name.startswith("float8")}
