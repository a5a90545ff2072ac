"""What is known of sessions that ``onnxruntime.InferenceSession`` is creating: the types that their models declare, and their
execution providers.

While ONNX Runtime loads a model, it asks for the type of each output. It does not say which type the model declares, and
refuses the model if the declared type differs from the answer. So the answer has to depend on the declaration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import onnxruntime

# For each session: the domains and types of the operators whose outputs the model declares nowhere.
_undeclared: WeakKeyDictionary[Any, frozenset[tuple[str, str]]] = WeakKeyDictionary()


def is_undeclared(thread: int, domain: str, name: str) -> bool:
    """Return whether the model that a thread is loading has no declaration for the output of any node of an operator. False if
    this is not known, for example if the session is not being created from Python."""
    import onnxruntime

    session, source = None, None
    for frame in _frames(thread):
        own = frame.f_locals.get("self")
        if isinstance(own, onnxruntime.InferenceSession) and session in (None, own):
            session, source = own, source or frame.f_locals.get("path_or_bytes")
    if session is None:
        return False
    if session not in _undeclared:
        _undeclared[session] = _operators_without_declarations(source)
    return (domain, name) in _undeclared[session]


def providers_of_sessions(has_operators: Callable[[onnxruntime.SessionOptions], bool]) -> list[str]:
    """Return the execution providers of sessions that are being created with options that have this package's operators, as far
    as Python was told their names. Sessions of this package's own class are left out."""
    import onnxruntime

    providers: list[str] = []
    for thread in sys._current_frames():
        for frame in _frames(thread):
            if frame.f_code.co_name != "_create_inference_session":
                continue
            session, named = frame.f_locals.get("self"), frame.f_locals.get("providers")
            options = getattr(session, "_sess_options", None)
            is_own = type(session).__module__.startswith(f"{__package__.partition('.')[0]}.")
            if is_own or not isinstance(options, onnxruntime.SessionOptions) or not has_operators(options):
                continue
            providers += [each if isinstance(each, str) else each[0] for each in named or ()]
    return providers


def _frames(thread: int) -> Iterator[FrameType]:
    frames = sys._current_frames()
    # Windows has 32 bits for a thread's number, and leaves the word's other bits as they were.
    frame = frames.get(thread) or frames.get(thread & 0xFFFFFFFF)
    while frame:
        yield frame
        frame = frame.f_back


def _operators_without_declarations(source: Any) -> frozenset[tuple[str, str]]:
    import onnx

    from ..models.protos import graphs

    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
    except Exception:  # such as another format, which ONNX Runtime knows
        return frozenset()
    undeclared: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for graph in graphs(model):
        outputs = graph.output if isinstance(graph, onnx.GraphProto) else ()  # the outputs of a function are names
        declared = {value.name for value in (*graph.value_info, *outputs) if value.type.tensor_type.elem_type}
        for node in graph.node:
            (others if declared & {*node.output} else undeclared).add((node.domain, node.op_type))
    return frozenset(undeclared - others)
