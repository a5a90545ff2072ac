"""The compiled functions of nodes, ahead of the session that needs them. Helper processes compile the functions that all
regions share. Meanwhile this process optimizes the model and compiles the functions of each region and of other nodes."""

from __future__ import annotations

from functools import partial

import onnx

from ..catalog import OPERATORS
from ..compiling.cache import is_kept
from ..compiling.helpers import Helpers
from ..errors import EnvironmentVariableError, errors_ignored
from ..region import operators
from ..region.dispatch import TABLE
from ..region.key import parse
from .operators import node_function

(REGION,) = operators.OPERATORS

# The modules whose functions are compiled. They are imported only for compiling, because they import Numba.
_NODE, _KERNELS, _TILES = f"{__package__}.nodes.{REGION.family}", f"{TABLE.package}.kernels", f"{TABLE.package}.tiles"


def helpers(model: onnx.ModelProto) -> Helpers:
    """Return helper processes for what the regions of a model will probably need when it is optimized. Raise
    EnvironmentVariableError if QUARK_NUMBA_COMPILE_PROCESSES is invalid."""
    families = {operator.family for node in model.graph.node if (operator := OPERATORS.find(node.domain, node.op_type))}
    node, statements = f"compute_{REGION.family}", []
    chunk, module = ("chunk_region_of_blocks", _TILES) if "block" in families else ("chunk_region", _KERNELS)
    if families and not is_kept(node, _NODE):
        statements.append(f"from {node_function.__module__} import node_function; node_function('{REGION.family}', 'compute')")
    if families and not is_kept(chunk, module):
        statements.append(f"from {module} import chunk_function; chunk_function()")
    try:
        return Helpers(statements)
    except ValueError as error:
        raise EnvironmentVariableError(str(error)) from None


def wait(running: Helpers, model: onnx.ModelProto) -> None:
    """Compile what the nodes of a session's model need, until the helpers are done: the regions first, then what the other
    nodes of each family share. Return at once if the model has no regions."""
    nodes = [(node, found) for node in model.graph.node if (found := OPERATORS.find(node.domain, node.op_type))]
    regions = [node for node, operator in nodes if operator is REGION]
    programs = dict.fromkeys(attribute.s for node in regions for attribute in node.attribute if attribute.name == "program")
    families = dict.fromkeys(operator.family for _, operator in nodes if operator is not REGION)
    if not programs:
        return
    of_regions = [partial(_compile_region, text) for text in programs]
    for compile_one in (*of_regions, *(partial(_compile_node, family) for family in families)):
        if running.are_done:
            return
        with errors_ignored():  # the session reports what is not valid
            compile_one()
    running.wait()


def _compile_region(text: bytes) -> None:
    program = parse(text.decode())
    if not is_kept(program.name, _KERNELS):
        TABLE[program].task  # noqa: B018


def _compile_node(family: str) -> None:
    node_function(family, "compute")
