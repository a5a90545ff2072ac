"""Whose nodes a model has: its quantization nodes, by operator and element type, and who runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from ..catalog import OPERATORS, QUANTIZATION
from ..declaration import Operator
from ..errors import ModelError
from ..rewriting import model_files


@dataclass(frozen=True)
class QuantizationNodes:
    """The quantization nodes of one operator and element type in a model, and who runs them."""

    operator: str
    element_type: str
    count: int

    @property
    def run_by(self) -> str:
        domain, _, name = self.operator.partition("::")
        if domain not in [each for each in OPERATORS.domains if each]:
            return "ONNX Runtime"
        operator = OPERATORS.find(domain, name)
        return "quark_numba" if operator and self.element_type in (*operator.formats, "?") else "nobody"


def quantization_nodes(path: str | Path) -> list[QuantizationNodes]:
    """Those of the model at `path`, by operator and element type, subgraphs and local functions included."""
    model = model_files.load(path, external_data=False)
    counts: Counter[tuple[str, str]] = Counter()
    try:
        for graph in (model.graph, *model.functions):
            _count(graph, {}, counts)
    except Exception as error:  # whatever a model that is not valid leads to
        raise ModelError(f"{path}: not a valid model: {error}") from error
    return [QuantizationNodes(*key, count) for key, count in sorted(counts.items())]


def _count(
    graph: onnx.GraphProto | onnx.FunctionProto, outer_types: Mapping[str, str], counts: Counter[tuple[str, str]]
) -> None:
    types = dict(outer_types)
    if isinstance(graph, onnx.GraphProto):
        types |= {tensor.name: _name(tensor.data_type) for tensor in graph.initializer}
        types |= {value.name: _name(value.type.tensor_type.elem_type) for value in [*graph.input, *graph.value_info]}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and node.output:
                types[node.output[0]] = _name(attribute.t.data_type)
            for subgraph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _count(subgraph, types, counts)
        if not QUANTIZATION.search(node.op_type):
            continue
        # One of a like name in another domain is taken for ONNX's own.
        operator = OPERATORS.find(node.domain, node.op_type) or OPERATORS.find("", node.op_type)
        element_type = _element_type(operator, node, types) if operator else "?"
        if operator and operator.operation == "quantize" and node.output:
            types[node.output[0]] = element_type
        counts[f"{node.domain or 'ai.onnx'}::{node.op_type}", element_type] += 1


def _name(data_type: int) -> str:
    known = data_type in onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(data_type)).lower() if known else f"type {data_type}"


def _element_type(operator: Operator, node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """What the operator says of the node."""
    attributes = {}
    for attribute in node.attribute:
        # In a function it may refer to the function's own: then it is known when the function is called, and has no value here.
        value = helper.get_attribute_value(attribute) if not attribute.ref_attr_name else "?"
        attributes[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return operator.format_of([types.get(name) for name in node.input], attributes)
