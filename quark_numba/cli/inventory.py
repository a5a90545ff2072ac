"""The quantization nodes of a model, by operator and element type, and which runtime runs them, or the reason why none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ..catalog import OPERATORS
from ..declaration import BlockRoundTrip, Operator
from ..dialects import refused
from ..errors import errors_named
from ..models import model_files
from ..models.protos import subgraphs, value_of
from ..rewriting.onnx_runtime import has_operator, runs


@dataclass(frozen=True)
class QuantizationNodes:
    """The nodes of one operator and element type in a model. `run_by`: "quark_numba", "ONNX Runtime" or "nobody". ONNX's own
    operators are run by this package, with ``qdq="float"``, if ONNX Runtime's CPU provider lacks their type."""

    operator: str
    element_type: str
    count: int
    run_by: str

    @property
    def needs_float_qdq(self) -> bool:
        return self.run_by == "quark_numba" and self.operator.startswith("ai.onnx::")

    @property
    def why(self) -> str:
        """The reason why neither library runs the nodes, if it is known."""
        return (self.run_by == "nobody" and refused.reason(*self.operator.split("::", 1))) or ""


def quantization_nodes(path: str | Path) -> list[QuantizationNodes]:
    """Return the nodes of the package's operators in the model at `path`, and those of operators that neither ONNX Runtime nor
    this package has, by operator and element type. Subgraphs and local functions are included."""
    model = model_files.load(path)
    functions = {(function.domain, function.name) for function in model.functions}
    with errors_named(f"{path}: not a valid model", with_type=False):
        counts = Counter(key for graph in (model.graph, *model.functions) for key in _keys(graph, {}, functions))
    return [
        QuantizationNodes(name, element_type, count, run_by) for (name, element_type, run_by), count in sorted(counts.items())
    ]


def _keys(
    graph: onnx.GraphProto | onnx.FunctionProto, outer_types: Mapping[str, str], functions: set[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the operator, the element type and the runtime of each quantization node."""
    types = dict(outer_types)
    if isinstance(graph, onnx.GraphProto):
        types |= {tensor.name: _name(tensor.data_type) for tensor in graph.initializer}
        types |= {value.name: _name(value.type.tensor_type.elem_type) for value in [*graph.input, *graph.value_info]}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and node.output:
                types[node.output[0]] = _name(attribute.t.data_type)
        for subgraph in subgraphs(node):
            yield from _keys(subgraph, types, functions)
        if (node.domain, node.op_type) in functions:
            continue
        operator = OPERATORS.find(node.domain, node.op_type)
        full_name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        if operator:
            # In a function, an attribute may refer to one of the function, which has a value only in a call of the function.
            attributes = {each.name: "?" if each.ref_attr_name else value_of(each) for each in node.attribute}
            element_type = operator.format_of([types.get(name) for name in node.input], attributes)
            if operator.operation == "quantize" and node.output:
                types[node.output[0]] = element_type
            for name, parameter in zip(node.output, operator.outputs, strict=False):
                (known, *others) = operator.types[parameter.variable]
                if not others:
                    types[name] = known.name
            yield full_name, _name_of_blocks(operator, attributes) or element_type, _run_by(operator, node, element_type)
        elif not has_operator(node.domain, node.op_type):
            yield full_name, "?", "nobody"


def _run_by(operator: Operator, node: onnx.NodeProto, element_type: str) -> str:
    if element_type not in (*operator.formats, "?"):
        return "nobody" if operator.domain else "ONNX Runtime"
    is_onnx_runtimes = not operator.domain and runs(operator, node.domain, operator.formats.get(element_type), None)
    return "ONNX Runtime" if is_onnx_runtimes else "quark_numba"


def _name(data_type: int) -> str:
    known = data_type in onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(data_type)).lower() if known else f"type {data_type}"


def _name_of_blocks(operator: Operator, attributes: Mapping[str, Any]) -> str:
    """Return the name of a node's block format, as in `analyze` ("mx9"), or "" for other nodes and unknown formats."""
    if operator.family != "block" or operator.meaning is None or "?" in attributes.values():
        return ""
    try:
        meaning = operator.meaning([None] * len(operator.inputs), operator.values(attributes))
    except (ValueError, TypeError):  # a session would refuse the node
        return ""
    return meaning.format if isinstance(meaning, BlockRoundTrip) else ""
