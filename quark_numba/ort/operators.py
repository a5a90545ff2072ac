"""The descriptions of operators for ONNX Runtime, which overloads and messages they have, and the states of nodes (the
operators are declared in the families). They are the same in this process and in stand-alone libraries."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..catalog import OPERATORS
from ..compiling.kernel import Table
from ..declaration import Operator, Overload
from . import c_api
from .c_api import Description

_CHARACTERISTICS = {"required": c_api.REQUIRED, "optional": c_api.OPTIONAL, "variadic": c_api.VARIADIC}


def overloads(operator: Operator, release: tuple[int, ...]) -> list[Overload]:
    """Return the overloads of an operator in a release of ONNX Runtime."""
    return [*operator.overloads(lambda element_type: element_type.has_tensors(release))]


def descriptions(release: tuple[int, ...]) -> list[Description]:
    """Return the descriptions of all overloads of all operators in a release of ONNX Runtime."""
    return [
        describe(operator, overload, number)
        for domain in OPERATORS.domains
        for operator in OPERATORS.newest(domain)
        for number, overload in enumerate(overloads(operator, release))
    ]


def describe(operator: Operator, overload: Overload, number: int = 0) -> Description:
    """Return the description of an overload.

    TensorRT models may declare float8 codes as uint8. ONNX Runtime compares declared types with inferred ones. So such outputs
    are registered as "any type", which it does not infer, and as optional, which "any type" requires."""
    has_any_type = [each is operator.uint8_holds for each in overload.outputs]
    types = iter(overload.inputs)
    return Description(
        operator.domain,
        operator.name,
        number,
        is_homogeneous=operator.is_homogeneous,
        # Some operators need the shape of x to set a type: the operators of TensorRT (`uint8_holds`), and operators with a type
        # in an attribute or with scales as an output. So these operators, and the operators between them, pass the shape on.
        infers=operator.takes_type or operator.uint8_holds is not None or len(operator.outputs) > 1,
        is_checked=operator.is_checked_at_load or not operator.is_homogeneous,
        attributes=[(attribute.name, attribute.kind, attribute.default) for attribute in operator.attributes],
        input_types=[
            c_api.type_number(next(types)) if parameter.is_homogeneous else c_api.ANY_TYPE for parameter in operator.inputs
        ],
        output_types=[
            c_api.ANY_TYPE if any_type else c_api.type_number(element_type)
            for element_type, any_type in zip(overload.outputs, has_any_type, strict=True)
        ],
        input_characteristics=[_CHARACTERISTICS[parameter.option] for parameter in operator.inputs],
        output_characteristics=[c_api.OPTIONAL if any_type else c_api.REQUIRED for any_type in has_any_type],
        runs_on_gpus=operator.runs_on_gpus,
    )


def node_of(family: str) -> ModuleType:
    """Return the module with the node of a family."""
    return OPERATORS.nodes.get(family) or importlib.import_module(f"{__package__}.nodes.{family}")


def gpu_node_of(family: str) -> ModuleType:
    """Return the module with the node of a family on a GPU, if it has one."""
    return importlib.import_module(f"{__package__}.gpu_nodes.{family}")


def node_function(family: str, name: str, is_on_gpu: bool = False) -> int:
    """Return the address of a function of a family's node by its name, or 0 if the family does not have the function."""
    from . import callbacks

    function = getattr(gpu_node_of(family) if is_on_gpu else node_of(family), name, None)
    return callbacks.compiled(function, f"{name}_{family}{'_on_gpu' * is_on_gpu}") if function else 0


def node_functions(family: str, is_on_gpu: bool = False) -> list[int]:
    """Return the addresses of `compute`, `prepare` and `destroy` of a family's node."""
    return [node_function(family, name, is_on_gpu) for name in ("compute", "prepare", "destroy")]


def table_of(family: str) -> Table[Any]:
    """Return the dispatch table of a family."""
    table: Table[Any] = importlib.import_module(f"..{family}.dispatch", __package__).TABLE
    return table


@functools.cache
def messages_of(operator: Operator) -> tuple[bytes, ...]:
    """Return an operator's messages, in their order."""
    from .nodes import context

    return context.messages_of(operator, getattr(node_of(operator.family), "MESSAGE_NUMBERS", ()))


def state_of(operator: Operator, overload: Overload, attributes: Mapping[str, Any], *, compiles: bool = True) -> NDArray[Any]:
    """Return a new state of nodes with these types and attributes: what the family selects, and the addresses of the functions,
    if it `compiles`. Raise ValueError if an attribute is invalid."""
    from .nodes import context

    node = node_of(operator.family)
    state = np.zeros((), node.STATE)
    overload = operator.with_code_types(overload)  # the kernel depends on the codes in a uint8 tensor
    key, numbers = node.select(operator, overload, attributes)
    functions: dict[str, Any] = {}
    if compiles and key is not None:
        functions["task"] = table_of(operator.family)[key].task
    if compiles and hasattr(node, "functions"):
        functions |= node.functions(overload, key)
    context.fill(state, numbers, functions)
    return state


def gpu_state_of(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> NDArray[Any]:
    """Return a new state of nodes on a GPU, as `state_of` returns it. Raise ValueError also if there is no kernel, and
    RuntimeError if the driver refuses it."""
    from . import cuda
    from .nodes import context

    node, overload = gpu_node_of(operator.family), operator.with_code_types(overload)
    state, selection = np.zeros((), node.STATE), node.select(operator, overload, attributes)
    kernel = node.kernel(overload, selection)
    launch = {"task": cuda.loaded(kernel), "launch": cuda.launcher(), "units_per_thread_block": kernel.units_per_thread_block}
    context.fill(state, {**selection.numbers, **launch}, {})
    return state


def words_of(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the words of a new state, and the indices of those that are addresses of functions: a word that compiling
    changes."""
    states = (state_of(operator, overload, attributes, compiles=compiles).tobytes() for compiles in (False, True))
    plain, words = (np.frombuffer(state + bytes(-len(state) % 8), np.int64).tolist() for state in states)
    return words, [index for index, word in enumerate(words) if word != plain[index]]
