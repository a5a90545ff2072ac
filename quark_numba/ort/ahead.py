"""The compiled functions of regions, as work for helper processes (``compiling.helpers``)."""

from __future__ import annotations

from itertools import chain

import onnx

from ..catalog import OPERATORS
from ..compiling.helpers import Work
from ..errors import reraise_of_signal_handler
from ..region import kernels, tiles
from ..region.dispatch import TABLE
from ..region.key import parse
from . import callbacks
from .nodes import region


def expected(model: onnx.ModelProto) -> list[Work]:
    """Return what a model will probably need when it is optimised."""
    wings = {operator.wing for node in model.graph.node if (operator := OPERATORS.find(node.domain, node.op_type))}
    return _of_all_programs("block" in wings) if wings else []


def needed(model: onnx.ModelProto) -> list[Work]:
    """Return what the regions of an optimised model need, but for those that are not valid."""
    operators = ((node, OPERATORS.find(node.domain, node.op_type)) for node in model.graph.node)
    regions = [node for node, operator in operators if operator and operator.wing == "region"]
    programs = {}
    for text in {each.s for node in regions for each in node.attribute if each.name == "program"}:
        try:
            programs[text.decode()] = parse(text.decode())
        except Exception as error:
            reraise_of_signal_handler(error)
    longest_first = sorted(programs, key=lambda text: len(programs[text].steps), reverse=True)
    kinds = dict.fromkeys(bool(programs[text].block_steps) for text in longest_first)
    of_all = dict.fromkeys(chain(*map(_of_all_programs, kinds)))
    return [*of_all, *((_compile_program, text) for text in longest_first)]


def _of_all_programs(has_blocks: bool) -> list[Work]:
    return [(_compile_node,), ((tiles if has_blocks else kernels).chunk_function,)]


def _compile_node() -> None:
    callbacks.compiled(region.compute, "compute_region")


def _compile_program(text: str) -> None:
    TABLE[parse(text)].task  # noqa: B018
