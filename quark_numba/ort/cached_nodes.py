"""What sessions need of operators and nodes, in records of the cache: the descriptions of all overloads, the functions that all
operators share, and the states of nodes. A process that finds them loads compiled functions with LLVM alone: it needs neither
Numba nor the declarations of operators.

A process that has added operators to the catalog neither finds nor keeps descriptions and states."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiling.cache import find_record, keep_record, load_function, reference_of
from ..compiling.lifetimes import keep_alive
from .c_api import Description, has_shape_reference, texts_at

if TYPE_CHECKING:
    from ..declaration import Operator, Overload

_CATALOG = f"{__package__.rpartition('.')[0]}.catalog"

_FUNCTIONS = "ort_functions"


class NodeKernel(NamedTuple):
    """The address of a state, and the addresses of the functions of its nodes. The address 0 stands for a function that the
    family does not have."""

    state: int
    compute: int
    prepare: int
    destroy: int


def added_operators() -> list[tuple[str, int]]:
    """Return the operators that were added from outside the package, or none if the catalog is not loaded."""
    catalog = sys.modules.get(_CATALOG)
    return [(operator.full_name, operator.since_version) for operator in catalog.OPERATORS.added] if catalog else []


@functools.cache
def functions() -> dict[str, int]:
    """Return the addresses of the functions that all operators share, or an empty dict if they are not kept. The answer never
    changes in a process."""
    record = find_record(_FUNCTIONS) or {}
    with suppress(LookupError, OSError, ValueError):
        return {name: load_function(reference) for name, reference in record.items()}
    return {}


def keep_functions(addresses: Mapping[str, int]) -> None:
    """Keep the functions that all operators share."""
    with suppress(LookupError):
        keep_record(_FUNCTIONS, {name: reference_of(address) for name, address in addresses.items()})


def descriptions(release: tuple[int, ...]) -> list[Description]:
    """Return the descriptions of all overloads in a release of ONNX Runtime."""
    if not added_operators():
        return _kept_descriptions(release)
    from . import operators

    return operators.descriptions(release)


@functools.cache
def _kept_descriptions(release: tuple[int, ...]) -> list[Description]:
    name = f"ort_descriptions_{'.'.join(map(str, release))}"
    if kept := find_record(name):
        return [Description(*fields) for fields in kept]
    from . import operators

    made = operators.descriptions(release)
    keep_record(name, made)
    return made


class Node(NamedTuple):
    """All that the kernel of a node depends on: an overload, the attributes, and the types and shapes that are checked."""

    release: tuple[int, ...]  # of ONNX Runtime, which numbers the overloads
    domain: str
    name: str
    overload: int
    attributes: Mapping[str, Any]
    inputs: list[tuple[int, list[int | None] | None]] | None  # from `c_api.read_inputs`; None: they are not checked
    outputs: list[int | None]  # ONNXTensorElementDataType; None: ONNX Runtime checks it

    @property
    def attribute_items(self) -> tuple[tuple[str, Any], ...]:
        """The attributes in a form that can be hashed."""
        return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in self.attributes.items())

    @property
    def record(self) -> str:
        """The name of the record."""
        return f"ort_{self.name}_{hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]}"


# The states that were made from records, by the names of these.
_kernels: dict[tuple[str, int], NodeKernel] = {}


def find(node: Node, api: int) -> NodeKernel | None:
    """Return the kept kernel of a node, or None if no kernel is kept for it."""
    name = node.record
    if (name, api) not in _kernels and not added_operators():
        record = find_record(name)
        with suppress(LookupError, OSError, ValueError):
            if record:
                _kernels[name, api] = _load(record, api, has_shape_reference(node.release))
    return _kernels.get((name, api))


def _load(record: Mapping[str, Any], api: int, has_reference: bool) -> NodeKernel:
    words = [*record["words"]]
    for index, reference in record["functions"]:
        words[index] = load_function(reference)
    # The first fields of `nodes.context.STATE`.
    words[:3] = api, has_reference, texts_at(tuple(text.encode() for text in record["messages"]))
    state = keep_alive((ctypes.c_int64 * len(words))(*words))
    return NodeKernel(ctypes.addressof(state), *(load_function(each) if each else 0 for each in record["node"]))


def keep(node: Node, operator: Operator, overload: Overload) -> None:
    """Keep the kernel of a node, which this process has compiled, unless one of its functions is not on disk."""
    from . import operators

    if added_operators():
        return
    words, functions = operators.words_of(operator, overload, node.attributes)
    with suppress(LookupError):
        content = {
            "words": [0 if index in functions else word for index, word in enumerate(words)],
            "functions": [[index, reference_of(words[index])] for index in functions],
            "node": [reference_of(address) if address else "" for address in operators.node_functions(operator.family)],
            "messages": [text.decode() for text in operators.messages_of(operator)],
        }
        keep_record(node.record, content)
