"""The compiled functions of regions, ahead of the session that needs them. Helper processes compile what all regions share,
while this process optimizes the model and compiles what is of one region."""

from __future__ import annotations

import onnx

from ..catalog import OPERATORS
from ..compiling.helpers import Helpers
from ..errors import EnvironmentVariableError, reraise_of_signal_handler
from ..region import kernels, operators, tiles
from ..region.dispatch import TABLE
from ..region.key import parse
from .operators import node_function

(REGION,) = operators.OPERATORS


def helpers(model: onnx.ModelProto) -> Helpers:
    """Return helper processes for what the regions of a model will probably need when it is optimized. Raise
    EnvironmentVariableError if QUARK_NUMBA_COMPILE_PROCESSES is invalid."""
    families = {operator.family for node in model.graph.node if (operator := OPERATORS.find(node.domain, node.op_type))}
    chunks = tiles if "block" in families else kernels
    node = f"from {node_function.__module__} import node_function; node_function('{REGION.family}', 'compute')"
    try:
        return Helpers([node, f"from {chunks.__name__} import chunk_function; chunk_function()"] if families else [])
    except ValueError as error:
        raise EnvironmentVariableError(str(error)) from None


def wait(running: Helpers, model: onnx.ModelProto) -> None:
    """Compile the regions of an optimized model until the helpers are done. Return at once if the model has no regions."""
    nodes = (node for node in model.graph.node if (node.domain, node.op_type) == (REGION.domain, REGION.name))
    programs = dict.fromkeys(attribute.s for node in nodes for attribute in node.attribute if attribute.name == "program")
    for text in programs:
        if running.are_done:
            break
        try:
            TABLE[parse(text.decode())].task  # noqa: B018
        except Exception as error:  # the session reports what is not valid
            reraise_of_signal_handler(error)
    if programs:
        running.wait()
