"""What helper processes compile for the nodes of a session, ahead of it, and in which order (how many there are is in
``compiling.helpers``). Helper processes first compile the functions that all regions share, while this process optimizes the
model. Then they share with this process what the nodes need."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import onnx

from ..catalog import OPERATORS
from ..compiling.cache import is_kept
from ..compiling.helpers import Call, Helpers
from ..element_types import ElementType
from ..errors import EnvironmentVariableError, errors_ignored
from ..models.protos import attributes_of
from ..region import operators
from ..region.dispatch import TABLE
from ..region.key import parse
from .operators import node_function, node_functions, state_of

(REGION,) = operators.OPERATORS

# Modules whose functions are compiled. They are imported only for compiling, because they import Numba.
_KERNELS, _TILES = f"{TABLE.package}.kernels", f"{TABLE.package}.tiles"

# The families that compile much for a node, whatever the types of its inputs.
_LARGE = ("convolution",)


def helpers(model: onnx.ModelProto) -> Helpers:
    """Return helper processes for what the regions of a model will probably need when it is optimized. Raise
    EnvironmentVariableError if QUARK_NUMBA_COMPILE_PROCESSES is invalid."""
    families = {operator.family for node in model.graph.node if (operator := OPERATORS.find(node.domain, node.op_type))}
    calls = []
    chunk, module = ("chunk_region_of_blocks", _TILES) if "block" in families else ("chunk_region", _KERNELS)
    if families and not _is_kept(REGION.family):
        calls.append(Call(node_function, (REGION.family, "compute")))
    if families and not is_kept(chunk, module):
        calls.append(Call(compile_chunks, (module,)))
    try:
        return Helpers(calls)
    except ValueError as error:
        raise EnvironmentVariableError(str(error)) from None


def finish(running: Helpers, model: onnx.ModelProto) -> None:
    """Compile what the nodes of a session's model need, in the helpers and in this process. Return at once if it needs
    nothing."""
    if calls := [*_calls(model)]:
        running.finish(calls)


def _calls(model: onnx.ModelProto) -> Iterator[Call]:
    """Yield what compiles the functions of nodes that are not in the cache: those that take long first."""
    nodes = [(node, found) for node in model.graph.node if (found := OPERATORS.find(node.domain, node.op_type))]
    families = [family for family in dict.fromkeys(operator.family for _, operator in nodes) if not _is_kept(family)]
    large = [node for node, operator in nodes if operator.family in _LARGE and operator.family in families]
    for (domain, name), node in {(node.domain, node.op_type): node for node in large}.items():
        yield Call(compile_states, (domain, name, attributes_of(node)))
    programs = (attribute.s for node, _ in nodes for attribute in node.attribute if attribute.name == "program")
    for text in dict.fromkeys(programs):
        with errors_ignored():
            if not is_kept(parse(text.decode()).name, _KERNELS):
                yield Call(compile_region, (text,))
    for family in families:
        yield Call(compile_node, (family,))


def _is_kept(family: str) -> bool:
    return is_kept(f"compute_{family}", f"{__package__}.nodes.{family}")


# The session reports what is not valid, so the functions below ignore it.


def compile_chunks(module: str) -> None:
    """Compile the function that cuts the work of all regions into tiles."""
    importlib.import_module(module).chunk_function()


def compile_node(family: str) -> None:
    """Compile the functions that all nodes of a family share."""
    with errors_ignored():
        node_functions(family)


def compile_region(text: bytes) -> None:
    """Compile the kernel of a program."""
    with errors_ignored():
        TABLE[parse(text.decode())].task  # noqa: B018


def compile_states(domain: str, name: str, attributes: dict[str, Any]) -> None:
    """Compile the kernels of an operator's nodes, for all types of its inputs."""
    with errors_ignored():
        operator: Any = OPERATORS.find(domain, name)
        for overload in operator.overloads(ElementType.has_tensors):
            state_of(operator, overload, operator.values(attributes))
