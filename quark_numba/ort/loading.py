"""What a model that Python's ``onnxruntime.InferenceSession`` is loading declares.

ONNX Runtime asks for the type of each output while it loads a model, does not say which types the model declares, and refuses a
model that declares another type than the answer. So who answers has to know what is declared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

# For each session: the domains and types of the operators whose outputs the model declares nowhere.
_undeclared: WeakKeyDictionary[Any, frozenset[tuple[str, str]]] = WeakKeyDictionary()


def is_undeclared(thread: int, domain: str, name: str) -> bool:
    """Whether the model that a thread is loading has no declaration for the output of any node of an operator. False if that is
    not known, as where no session is being created from Python."""
    import onnxruntime

    given, session = None, None
    for frame in _frames(thread):
        own = frame.f_locals.get("self")
        if session is None and isinstance(own, onnxruntime.InferenceSession):
            session = own
        if session is not None and own is session and given is None:
            given = frame.f_locals.get("path_or_bytes")
    if session is None:
        return False
    if session not in _undeclared:
        _undeclared[session] = _operators_without_declarations(given)
    return (domain, name) in _undeclared[session]


def _frames(thread: int) -> Iterator[FrameType]:
    frames = sys._current_frames()
    # Windows has 32 bits for a thread's number, and leaves the others of the word as they were.
    frame = frames.get(thread) or frames.get(thread & 0xFFFFFFFF)
    while frame:
        yield frame
        frame = frame.f_back


def _operators_without_declarations(given: Any) -> frozenset[tuple[str, str]]:
    import onnx

    from ..models.protos import graphs

    try:
        model = onnx.load_from_string(given) if isinstance(given, bytes) else onnx.load(given, load_external_data=False)
    except Exception:  # such as another format, which ONNX Runtime knows
        return frozenset()
    undeclared: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for graph in graphs(model):
        outputs = graph.output if isinstance(graph, onnx.GraphProto) else ()  # those of a function are names
        declared = {value.name for value in (*graph.value_info, *outputs) if value.type.tensor_type.elem_type}
        for node in graph.node:
            (others if declared & {*node.output} else undeclared).add((node.domain, node.op_type))
    return frozenset(undeclared - others)
