"""Find out whether the sign of a zero changes the result of a model: which operators of ONNX move it, keep it or lose it."""

from __future__ import annotations

import onnx_ir as ir

from ..declaration import RoundTrip
from .graph import Graph

# ONNX's operators whose outputs have only elements of their first input, or of all inputs.
MOVE_FIRST = (
    *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
MOVE_ALL = ("Concat",)

# ONNX's operators whose results for 0 and -0 differ at most in the sign of a zero: 0 and -0 in their first input, or in any
# input.
_KEEP_FIRST = ("AveragePool", "Clip", "Div", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Pad", "Relu")
_KEEP_ALL = ("Add", "Mul", "Sub")

# ONNX's operators whose results for 0 and -0 do not differ. The first three add up products, beginning with 0, and 0 plus -0 is
# 0.
_LOSE = ("Conv", "Gemm", "MatMul", "HardSigmoid", "Sigmoid", "Softmax")


def signs_of_zeros_are_lost(graph: Graph, y: ir.Value) -> bool:
    """Return whether all nodes that use a value return the same bits for 0 and -0, directly or after nodes that pass its zeros
    on. Products do, and round trips, which turn -0 into 0."""
    waiting, seen = [y], {y}
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return False
        for user, index in value.uses():
            meaning = graph.meaning(graph.node(user))
            if isinstance(meaning, RoundTrip) and index == 0 and meaning.element_type is not None:
                if meaning.element_type.is_integer or meaning.is_symmetric:
                    continue
                return False
            if user.domain:
                return False
            if user.op_type in _LOSE:
                continue
            if user.op_type not in (*MOVE_ALL, *_KEEP_ALL) and (index or user.op_type not in (*MOVE_FIRST, *_KEEP_FIRST)):
                return False
            new = [output for output in user.outputs if output not in seen]
            seen.update(new)
            waiting += new
    return True
