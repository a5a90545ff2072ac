"""The nodes that can be steps of a region."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..block.granularity import MOST_ROWS
from ..declaration import BlockRoundTrip, FakeQuantize, RoundTrip
from ..element_types import FLOAT32
from ..region.key import BLOCK_ROUND_TRIPS, CAST, CASTS, DOMAINS, FAKE_QUANTIZE, OPERANDS, ROUND_TRIP, UNARY, ZERO_POINTS, Step
from ..region.operators import OPERATORS as REGION
from .graph import Graph
from .nodes import Left, Node, Operand

(REGION_OPERATOR,) = REGION


class Steps:
    """The steps for nodes of a graph. `fused` are the values that ONNX Runtime computes in operators of its own, with the
    reason. The nodes come in the order of the graph: a step for one may show that the next ones are float32."""

    def __init__(self, graph: Graph, fused: dict[str, str]) -> None:
        self.graph, self.fused = graph, fused
        self.floats: set[ir.Value] = set()  # values found to be float32

    def step(self, node: ir.Node) -> Step | None:
        """Return the step for a node; None: the node cannot be a step."""
        own = self.graph.node(node)
        if own:
            try:
                match self.graph.meaning(own):
                    case RoundTrip() as meaning:
                        return self._round_trip(own, meaning)
                    case BlockRoundTrip() as meaning:
                        return self._block_round_trip(own, meaning)
                    case FakeQuantize() if node.op_type == FAKE_QUANTIZE:
                        self.floats |= {own.x, own.y}
                        return Step(FAKE_QUANTIZE, (), tuple(sorted(own.attributes.items())))
            except Left as error:
                self.graph.reasons[own] = str(error)
                return None
        if node.domain or node.op_type not in OPERANDS or node.op_type in DOMAINS or len(node.outputs) != 1:
            return None
        if node.outputs[0].name in self.fused:
            self.graph.leave(node, self.fused[node.outputs[0].name])
            return None
        if node.op_type == CAST:
            return self._cast(node)
        fewest, most = OPERANDS[node.op_type]
        attributes = dict(UNARY.get(node.op_type, {}))
        for name, attribute in node.attributes.items():
            if name not in attributes or attribute.is_ref() or attribute.type.name != "FLOAT":
                return None
            attributes[name] = attribute.as_float()
        if not fewest <= len(node.inputs) <= most or None in node.inputs[:fewest]:
            return None
        # Which of 0 and -0 ONNX Runtime takes for the larger depends on their place in the tensor.
        if node.op_type in ("Max", "Min") and not any(map(self._is_nonzero, node.inputs)):
            return None
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if not any(map(self._is_float32, values)):
            return None
        self.floats.add(node.outputs[0])
        return Step(node.op_type, (), tuple(sorted(attributes.items())))

    def _cast(self, node: ir.Node) -> Step | None:
        to, (x, *_) = node.attributes.get("to"), (*node.inputs, None)
        if set(node.attributes) != {"to"}:  # other attributes are for float8
            return None
        if to is None or to.is_ref() or to.value != FLOAT32.number or x is None or self.graph.inferred_type(x) not in CASTS:
            return None
        self.floats.add(node.outputs[0])
        return Step(CAST, (), (("to", FLOAT32.number),))

    def _round_trip(self, node: Node, meaning: RoundTrip[Operand]) -> Step:
        scale, zero_point = meaning.scale.array, meaning.zero_point.array if meaning.zero_point else None
        if meaning.block_size:
            raise Left("its scales are blocked")
        if scale is None or zero_point is None or scale.dtype != FLOAT32.dtype:
            raise Left("its scale or its zero point is not a constant")
        if scale.shape != zero_point.shape and not scale.size == zero_point.size == 1:
            raise Left("its scale and its zero point have different shapes")
        codes = meaning.element_type
        if codes not in ZERO_POINTS:
            raise Left(f"{REGION_OPERATOR.full_name} has no {codes.name if codes else 'zero point of its type'}")
        axis = 0
        if scale.size != 1:
            axis = meaning.axis
            if axis >= 0:
                shape = self.graph.shape(node.x)
                if shape is None:
                    raise Left("it has several scales, and the rank of its x is not known")
                axis -= len(shape)
            if scale.ndim != 1 or axis >= 0:
                raise Left("not valid: its scales do not fit its axis")
        self.floats |= {node.x, node.y}  # the operator has no other types
        return Step(ROUND_TRIP, (), (("axis", axis), ("saturate", int(meaning.saturate))))

    def _block_round_trip(self, node: Node, meaning: BlockRoundTrip[Operand]) -> Step:
        if meaning.operator not in BLOCK_ROUND_TRIPS:
            raise Left(f"{REGION_OPERATOR.full_name} has no {node.full_name}")
        shape = self.graph.shape(node.x)
        if not self._is_float32(node.x):
            raise Left(f"{REGION_OPERATOR.full_name} has no blocks of another type than float32")
        if shape is None or len(shape) < 2 or not any(isinstance(each, int) and each > 1 for each in shape):
            raise Left("the rank of its x is not known, or it may have one element")
        axis = meaning.axis - len(shape) * (meaning.axis >= 0)
        if not -len(shape) <= axis < 0:
            raise Left("not valid: its axis is out of range")
        if meaning.block_size > MOST_ROWS:
            raise Left(f"its blocks have more than {MOST_ROWS} elements")
        self.floats.add(node.y)
        return Step(meaning.operator, (), tuple(sorted({**meaning.attributes, "axis": axis}.items())))

    def _is_nonzero(self, value: ir.Value | None) -> bool:
        """Whether a value is a constant without zeros."""
        array = None if value is None else self.graph.array(value)
        return array is not None and bool(np.all(array != 0))

    def _is_float32(self, value: ir.Value) -> bool:
        return value in self.floats or self.graph.inferred_type(value) is FLOAT32
