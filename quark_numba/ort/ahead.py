"""The compiled functions of regions, ahead of the session that needs them. Helper processes compile what all regions share,
while this process optimises the model and compiles what is of one region."""

from __future__ import annotations

import onnx

from ..catalog import OPERATORS
from ..compiling.helpers import Helpers
from ..errors import reraise_of_signal_handler
from ..region import kernels, operators, tiles
from ..region.dispatch import TABLE
from ..region.key import parse
from . import callbacks
from .nodes import region

(REGION,) = operators.OPERATORS


def helpers(model: onnx.ModelProto) -> Helpers:
    """Return helper processes for what the regions of a model will probably need when it is optimised."""
    families = {operator.family for node in model.graph.node if (operator := OPERATORS.find(node.domain, node.op_type))}
    functions = (compile_node, compile_tiles if "block" in families else compile_chunks) if families else ()
    return Helpers([f"from {__name__} import {each.__name__}; {each.__name__}()" for each in functions])


def compile_node() -> None:
    callbacks.compiled(region.compute, "compute_region")


def compile_chunks() -> None:
    kernels.chunk_function()


def compile_tiles() -> None:
    tiles.chunk_function()


def wait(running: Helpers, model: onnx.ModelProto) -> None:
    """Compile the regions of an optimised model until the helpers are done. If it has none, nobody waits."""
    nodes = (node for node in model.graph.node if (node.domain, node.op_type) == (REGION.domain, REGION.name))
    programs = dict.fromkeys(each.s for node in nodes for each in node.attribute if each.name == "program")
    for text in programs:
        if running.are_done:
            break
        try:
            TABLE[parse(text.decode())].task  # noqa: B018
        except Exception as error:  # the session reports what is not valid
            reraise_of_signal_handler(error)
    if programs:
        running.wait()
