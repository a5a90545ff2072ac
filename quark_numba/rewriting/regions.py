"""Merge connected elementwise nodes, such as a quantize-dequantize node with adjacent additions and activations, into regions:
which nodes join, and why others do not (limits are in ``region.key``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..block.granularity import MAX_IN_REGISTERS
from ..declaration import BlockRoundTrip, FakeQuantize, RoundTrip
from ..declaration.reasons import Invalid, NotRewrittenError, require, stays_if
from ..element_types import FLOAT32
from ..region import key as programs
from ..region.activations import ACTIVATIONS
from ..region.granularity import GPU_LOOPS
from ..region.key import CASTS, Input, Program, Step
from ..region.operators import OPERATORS as REGION
from ..region.step_operators import BLOCK_ROUND_TRIPS, CAST, FAKE_QUANTIZE, ROUND_TRIP, STEP_OPERATORS
from . import casts
from .activation_probe import ON_CUDA, OTHERWISE, is_computed_alike
from .fusions import fused_values
from .graph import Graph
from .nodes import GraphOperand, Node

MERGED = "merged: one pass over memory with its neighbours"

# From this opset on, all operators of steps have their present meaning. Only HardSwish is newer.
_FIRST_OPSET = 13

(_REGION,) = REGION


def rewrite(graph: Graph) -> None:
    if not graph.native_operators or graph.model.opset_imports.get("", 0) < _FIRST_OPSET:
        return
    kinds = RoundTrip, BlockRoundTrip, FakeQuantize
    quantized = [
        nodes
        for nodes in map(list, (graph.model.graph, *graph.model.graph.subgraphs()))
        if any(isinstance(graph.meaning(graph.node(node)), kinds) for node in nodes)
    ]
    fused = fused_values(graph) if quantized else {}
    mergers = [_Merger(graph, nodes, fused) for nodes in quantized]
    regions = [(merger, *pair) for merger in mergers for pair in merger.regions()]
    has_convolutions = any(node.op_type == "Conv" for node in graph.model.graph.all_nodes())
    # If a region has several nodes, single nodes become regions as well: no kernel outside of regions is compiled for them. And
    # only regions can lie between convolutions in their blocked layout, and have nodes of fake quantization on a GPU.
    if has_convolutions or graph.operators == "cuda" or any(len(region) > 1 for _, _, region in regions):
        for merger, last, region in regions:
            merger.merge(last, region)


class _Steps:
    """The steps for nodes of a graph. `fused` are the values that ONNX Runtime computes in its own operators, with the reason.
    Nodes have to be passed in the order of the graph: a step may show that later nodes are float32."""

    def __init__(self, graph: Graph, fused: dict[str, str]) -> None:
        self.graph, self.fused = graph, fused
        self.floats: set[ir.Value] = set()  # values found to be float32

    def step(self, node: ir.Node) -> Step | None:
        """Return the step for a node, or None if the node cannot be a step."""
        if known := self.graph.node(node):
            return self._quantization(known)
        operator = STEP_OPERATORS.get(node.op_type)
        if node.domain or operator is None or operator.domain or len(node.outputs) != 1:
            return None
        if node.outputs[0].name in self.fused:
            self.graph.count_left(node, self.fused[node.outputs[0].name])
            return None
        is_cuda = self.graph.operators == "cuda"
        if node.op_type in ACTIVATIONS and (is_cuda or not is_computed_alike(node.op_type)):
            self.graph.count_left(node, ON_CUDA if is_cuda else OTHERWISE)
            return None
        return self._cast(node) if node.op_type == CAST else self._elementwise(node)

    def _quantization(self, node: Node) -> Step | None:
        try:
            match self.graph.meaning(node):
                case RoundTrip() as meaning:
                    return self._round_trip(node, meaning)
                case BlockRoundTrip() as meaning:
                    return self._block_round_trip(node, meaning)
                case FakeQuantize() if node.ir_node.op_type == FAKE_QUANTIZE:
                    self.floats |= {node.x, node.y}
                    return Step(FAKE_QUANTIZE, (), tuple(sorted(node.attributes.items())))
        except NotRewrittenError as error:
            self.graph.reasons[node] = error.reason
        return None

    def _elementwise(self, node: ir.Node) -> Step | None:
        operator = STEP_OPERATORS[node.op_type]
        attributes = dict(operator.attributes)
        for name, attribute in node.attributes.items():
            if name not in attributes or attribute.is_ref() or attribute.type.name != "FLOAT":
                return None
            attributes[name] = attribute.as_float()
        if not operator.fewest <= len(node.inputs) <= operator.most or None in node.inputs[: operator.fewest]:
            return None
        # Whether ONNX Runtime takes 0 or -0 as the larger one depends on their position in the tensor.
        if node.op_type in ("Max", "Min") and not any(map(self._is_nonzero, node.inputs)):
            return None
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if not any(map(self._is_float32, values)):
            return None
        self.floats.add(node.outputs[0])
        return Step(node.op_type, (), tuple(sorted(attributes.items())))

    def _cast(self, node: ir.Node) -> Step | None:
        x = node.inputs[0] if casts.target(node) is FLOAT32 else None
        if x is None or self.graph.inferred_type(x) not in CASTS:
            return None
        self.floats.add(node.outputs[0])
        return Step(CAST, (), (("to", FLOAT32.number),))

    def _round_trip(self, node: Node, meaning: RoundTrip[GraphOperand]) -> Step:
        stays_if(meaning.block_size, "its scales are blocked")
        unknown = "its scale or its zero point is not a constant"
        scale = require(meaning.scale.array, unknown)
        zero_point = require(meaning.zero_points, unknown)
        stays_if(scale.dtype != FLOAT32.dtype, unknown)
        are_alike = scale.shape == zero_point.shape or scale.size == zero_point.size == 1
        stays_if(not are_alike, "its scale and its zero point have different shapes")
        codes = require(meaning.element_type, f"{_REGION.full_name} has no zero point of its type")
        stays_if(codes not in programs.ZERO_POINTS, f"{_REGION.full_name} has no {codes.name}")
        axis = 0
        if scale.size != 1:
            axis = meaning.axis
            if axis >= 0:
                axis -= len(require(self.graph.shape(node.x), "it has several scales, and the rank of its x is not known"))
            stays_if(scale.ndim != 1 or axis >= 0, Invalid("not valid: its scales do not fit its axis"))
        self.floats |= {node.x, node.y}  # the operator has no other types
        return Step(ROUND_TRIP, (), (("axis", axis), ("saturate", int(meaning.saturate))))

    def _block_round_trip(self, node: Node, meaning: BlockRoundTrip[GraphOperand]) -> Step:
        stays_if(meaning.operator not in BLOCK_ROUND_TRIPS, f"{_REGION.full_name} has no {node.full_name}")
        stays_if(not self._is_float32(node.x), f"{_REGION.full_name} has no blocks of a type other than float32")
        unknown = "the rank of its x is not known, or it may have one element"
        shape = require(self.graph.shape(node.x), unknown)
        has_several = any(isinstance(length, int) and length > 1 for length in shape)
        stays_if(len(shape) < 2 or not has_several, unknown)
        axis = meaning.axis - len(shape) * (meaning.axis >= 0)
        stays_if(not -len(shape) <= axis < 0, Invalid("not valid: its axis is out of range"))
        most = MAX_IN_REGISTERS if self.graph.operators == "cuda" else programs.MAX_BLOCK
        stays_if(meaning.block_size > most, f"its blocks have more than {most} elements")
        self.floats.add(node.y)
        return Step(meaning.operator, (), tuple(sorted({**meaning.attributes, "axis": axis}.items())))

    def _is_nonzero(self, value: ir.Value | None) -> bool:
        """Return whether a value is a constant without zeros."""
        array = self.graph.array(value)
        return array is not None and bool(np.all(array != 0))

    def _is_float32(self, value: ir.Value) -> bool:
        return value in self.floats or self.graph.inferred_type(value) is FLOAT32


class _InputKey(NamedTuple):
    """The identity of an input of a region: how the program declares it, the axis of a scale or zero point, and the value.
    Equal constants of one element share an input, so for them the value's shape and bits take the place of the value."""

    declared: Input
    axis: int | None
    content: ir.Value | tuple[tuple[int, ...], bytes]


# An operand of a step: an input of the region, the result of another step, or nothing.
_StepInput = _InputKey | ir.Value | None


def _collect_inputs(nodes: list[ir.Node], operands: list[list[_StepInput]]) -> dict[_InputKey, ir.Value]:
    """Return a value for each input of a region. Inputs that may be as large as y come first."""
    values: dict[_InputKey, ir.Value] = {}
    for node, row in zip(nodes, operands, strict=True):
        for value, operand in zip(node.inputs, row, strict=True):
            if isinstance(operand, _InputKey) and value is not None:
                values.setdefault(operand, value)
    return dict(sorted(values.items(), key=lambda item: item[0].declared.is_scalar))


class _Merger:
    """The nodes of one graph, while they are merged into regions."""

    def __init__(self, graph: Graph, nodes: list[ir.Node], fused: dict[str, str]) -> None:
        self.graph, self.nodes, self.fused = graph, nodes, fused
        self.places = {node: place for place, node in enumerate(nodes)}
        self.constants: set[ir.Value] = set()  # values computed only from constants
        self.steps: dict[ir.Node, Step] = {}  # without operands yet

    def regions(self) -> Iterator[tuple[ir.Node, set[ir.Node]]]:
        """Yield each region that contains a quantization node: its last node, and all its nodes."""
        steps = _Steps(self.graph, self.fused)
        for node in self.nodes:
            # ONNX Runtime computes a node of constants only once.
            if all(value is None or value in self.constants or self.graph.tensor(value) for value in node.inputs):
                self.constants.update(node.outputs)
                continue
            if step := steps.step(node):
                self.steps[node] = step
        taken: set[ir.Node] = set()
        for node in reversed(self.nodes):
            if node in self.steps and node not in taken:
                region = self._grow(node)
                taken |= region
                names = {self.steps[member].operator for member in region}
                if self.graph.operators == "cuda" and not self._fits_gpu(node):
                    continue
                if not names.isdisjoint((ROUND_TRIP, FAKE_QUANTIZE, *BLOCK_ROUND_TRIPS)):
                    yield node, region

    def _grow(self, last: ir.Node) -> set[ir.Node]:
        """Return the nodes of the region that ends with `last`. A node joins if only the region uses its output, and if the
        output may have the shape of y."""
        region, waiting = {last}, [last]
        while waiting:
            node = waiting.pop()
            for value in self._operands(node):
                before = value.producer()
                if before is None or before in region or before not in self.steps or value.is_graph_output():
                    continue
                users = {user for user, _ in value.uses()}
                if users <= region and self._may_have_shape(value, node, last) and self._fits(region | {before}):
                    region.add(before)
                    waiting.append(before)
                    # Try again nodes that did not join because one of their users was not in the region yet.
                    waiting += [user for user in users if user is not node]
        return region

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs of a node that are not scales or zero points."""
        values = node.inputs[:1] if self.steps[node].operator == ROUND_TRIP else node.inputs
        return [value for value in values if value is not None]

    def _may_have_shape(self, value: ir.Value, user: ir.Node, last: ir.Node) -> bool:
        """Return whether a value may be as large as the region's output. A smaller value would be computed several times, once
        for each element of the output."""
        others = [operand for operand in self._operands(user) if operand is not value]
        if all(self._is_scalar(operand) for operand in others):
            return True
        small, large = self.graph.shape(value), self.graph.shape(last.outputs[0])
        if small is None or large is None:
            return True
        if len(small) != len(large):
            return False
        return not any(one == 1 and other != 1 for one, other in zip(small, large, strict=True))

    def _is_scalar(self, value: ir.Value) -> bool:
        tensor = self.graph.tensor(value)
        return tensor is not None and tensor.size == 1 and self.graph.array(value) is not None

    def _fits_gpu(self, last: ir.Node) -> bool:
        """Return whether a GPU kernel is known to have enough loops for the output of a node."""
        shape = self.graph.shape(last.outputs[0])
        return shape is not None and len(shape) <= GPU_LOOPS

    def _fits(self, region: set[ir.Node]) -> bool:
        inputs = {value for node in region for value in node.inputs if value is not None and value.producer() not in region}
        streams = sum(not self._is_scalar(value) for value in inputs)
        attributes = [dict(self.steps[node].attributes) for node in region]
        blocks = {(each["axis"], each["block_size"]) for each in attributes if "block_size" in each}
        if len(blocks) > 1:
            return False
        # A constant with two roles becomes two inputs.
        is_small = len(region) <= programs.MAX_STEPS and streams <= programs.MAX_STREAMS
        return is_small and 2 * len(inputs) <= programs.MAX_INPUTS

    # Rewriting the graph.

    def merge(self, last: ir.Node, nodes: set[ir.Node]) -> None:
        """Replace the nodes by one region, in the place of the last node."""
        ordered = sorted(nodes, key=self.places.__getitem__)
        operands = [[self._operand(node, index, nodes) for index in range(len(node.inputs))] for node in ordered]
        values = _collect_inputs(ordered, operands)
        numbers = {operand: number for number, operand in enumerate([*values, *(node.outputs[0] for node in ordered)])}
        rows = (tuple(None if operand is None else numbers[operand] for operand in row) for row in operands)
        steps = [self.steps[node]._replace(operands=row) for node, row in zip(ordered, rows, strict=True)]
        program = Program(tuple(key.declared for key in values), tuple(steps))
        region = self.graph.put(_REGION, [*values.values()], {"program": program.text}, last)
        region.metadata_props["quark_numba.nodes"] = ", ".join(str(node.name) for node in ordered)
        for node in reversed(ordered):
            if node.graph:  # the node may have been removed already, together with its last user
                self.graph.remove(node, MERGED)

    def _operand(self, node: ir.Node, index: int, nodes: set[ir.Node]) -> _StepInput:
        """Return the operand of a step for an input of its node, in a region of these nodes."""
        value = node.inputs[index]
        if value is None or value.producer() in nodes:
            return value
        step = self.steps[node]
        is_parameter = step.operator == ROUND_TRIP and index > 0
        has_own_type = step.operator == CAST or (is_parameter and index == 2)
        element_type = self.graph.inferred_type(value) if has_own_type else FLOAT32
        assert element_type
        declared = Input(element_type, self._is_scalar(value))
        array = self.graph.array(value) if declared.is_scalar else None
        axis = step.axis if is_parameter else None
        return _InputKey(declared, axis, value if array is None else (array.shape, array.tobytes()))
