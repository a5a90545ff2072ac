"""The tables of a library, as C: all overloads of all operators, and for those that nodes need, what the nodes are and their
states. ``structures.h`` declares the structs."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..catalog import OPERATORS
from ..compiling import other_machines
from ..declaration import Attribute, Operator, Overload, Tensor
from ..element_types import ELEMENT_TYPES, UINT8, ElementType
from ..ort import NO_FUSIONS, c_api, operators
from ..ort.custom_op import Need
from ..ort.native import REGISTERED
from ..ort.nodes import context
from .targets import COMMAND, Job

# The functions of an operator's nodes, by the names of their fields.
_FUNCTIONS = "set_attributes", "compute", "prepare", "destroy"


class Tables:
    """The tables. `functions` are the addresses of the functions that they name, by symbol."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._domains = [domain for domain in OPERATORS.domains if domain or job.has_qdq]
        self.functions: dict[str, int] = {}
        self._arrays: list[str] = []
        self._operators: list[str] = []
        self._overloads: list[str] = []
        self._nodes: list[str] = []
        self._needs: defaultdict[tuple[Any, ...], list[Need]] = defaultdict(list)
        for need in job.needs:
            self._needs[need.domain, need.name].append(need)
        newest = [operator for domain in self._domains for operator in OPERATORS.newest(domain)]
        # Operators that take lists are those of the blocked layout, which only sessions of this package write.
        self._newest = [each for each in newest if not _takes_lists(each) or self._needs[each.domain, each.name]]
        for operator in self._newest:
            self._add(operator)

    def _array(self, kind: str, items: Sequence[str], suffix: str = "") -> str:
        """Add an array, and return its name; 0, a null pointer, if it is empty."""
        if not items:
            return "0"
        name = f"array_{len(self._arrays)}"
        self._arrays.append(f"static const {kind} {name}[]{suffix} = {_list(items)};\n")
        return name

    def _symbol(self, address: int) -> str:
        """Return the symbol of a function. Several functions under one name are the same."""
        name = other_machines.symbol_of(address)
        self.functions.setdefault(name, address)
        return name

    def _add(self, operator: Operator) -> None:
        """Add an operator, all its overloads, and the nodes that are needed."""
        overloads = [*operator.overloads(ElementType.has_tensors)]
        needs = self._needs[operator.domain, operator.name]
        for overload in overloads:
            names = [tuple(element_type.name for element_type in side) for side in overload]
            self._add_overload(operator, overload, [need for need in needs if [need.inputs, need.outputs] == names])
        first = operators.describe(operator, overloads[0])
        attributes = [_attribute(attribute, _free_attributes(operator)) for attribute in operator.attributes]
        typed_by, instead = _typed_by(operator)
        self._operators.append(
            _struct(
                domain=_text(operator.domain),
                name=_text(operator.name),
                attributes=self._array("struct attribute", attributes),
                attribute_count=len(attributes),
                input_count=len(operator.inputs),
                output_count=len(operator.outputs),
                inputs=self._array("uint8_t", [*map(str, first.input_characteristics)]),
                outputs=self._array("uint8_t", [*map(str, first.output_characteristics)]),
                is_homogeneous=int(operator.is_homogeneous),
                takes_type=int(operator.takes_type),
                typed_by=typed_by,
                instead=instead,
                **(self._fields_of_nodes(operator) if needs else {}),
            )
        )

    def _fields_of_nodes(self, operator: Operator) -> dict[str, str]:
        """Return the messages and functions of an operator's nodes, which are fields of the operator."""
        addresses = {name: operators.node_function(operator.family, name) for name in _FUNCTIONS}
        messages = [_list([f"(word){_text(text)}", str(len(text))]) for text in operators.messages_of(operator)]
        fields = {name: self._symbol(address) for name, address in addresses.items() if address}
        return fields | {"messages": self._array("word", messages, "[2]")}

    def _add_overload(self, operator: Operator, overload: Overload, needs: Sequence[Need]) -> None:
        first_node, free = len(self._nodes), _free_attributes(operator)
        # Nodes that differ in free attributes alone are one.
        different = {(need.types, *(item for item in need.attributes if item[0] not in free)): need for need in needs}
        for need in different.values():
            self._add_node(operator, overload, need)
        types = operators.describe(operator, overload)
        # The release that has tensors of all these types.
        release = max([each.ort_release or (0, 0) for side in overload for each in side], default=(0, 0))[1]
        self._overloads.append(
            _struct(
                of=len(self._operators),
                first_node=first_node,
                node_count=len(different),
                first_release=release,
                types=_list([*map(str, (*types.input_types, *types.output_types))]),
                held=_list([str(c_api.type_number(element_type)) for element_type in overload.outputs]),
            )
        )

    def _add_node(self, operator: Operator, overload: Overload, need: Need) -> None:
        attributes = dict(need.attributes)
        numbers, functions = operators.words_of(operator, overload, attributes)
        words = [f"(void *){self._symbol(word) if index in functions else _number(word)}" for index, word in enumerate(numbers)]
        contents = [_value(attribute, attributes[attribute.name]) for attribute in operator.attributes]
        types = {} if need.types is None else {"types": self._array("int", [*map(str, need.types), "-1"])}
        values, state = self._array("struct value", contents), self._array("void *const", words)
        self._nodes.append(_struct(values=values, state=state, state_words=len(words), **types))

    def header(self) -> str:
        """Return the content of tables.h, in ASCII."""
        job = self._job
        # A processor that lacks something is left to the next part of the library.
        parts = ["RegisterCustomOps", *(f"quark_numba_register_{i}" for i in range(1, job.places))][job.place :]
        defined = "#define FIRST\n" * (job.place == 0)
        registers = [f"#define {name} {part}\n" for name, part in zip(("REGISTER", "NEXT"), parts, strict=False)]
        constants = {
            **{function.name: int(function) for function in c_api.OrtApi},
            **{name: i for i, name in enumerate(c_api.CUSTOM_OP_FUNCTIONS)},
            **{f"STATE_{name.upper()}": i for i, (name, _) in enumerate(context.STATE)},
            "FUNCTIONS": len(c_api.CUSTOM_OP_FUNCTIONS),
            "API_VERSION": c_api.API_VERSION,
            "CUSTOM_OP_VERSION": c_api.CUSTOM_OP_VERSION,
            "SHAPE_REFERENCE_RELEASE": c_api.SHAPE_REFERENCE_RELEASE[1],
            "ORT_FAIL": c_api.ORT_FAIL,
            "ANY_TYPE": c_api.ANY_TYPE,
            "ORT_OP_ATTR_INT": c_api.ORT_OP_ATTR_INT,
            "UINT8_TYPE": c_api.type_number(UINT8),
            "DOMAINS": len(self._domains),
            "FIRST_MINOR": c_api.FLOAT_QDQ_RELEASE[1] if job.has_qdq else 0,
            "MAX_ATTRIBUTES": max(len(operator.attributes) for operator in self._newest),
            "MAX_INPUTS": max(len(operator.inputs) for operator in self._newest),
            "MAX_OUTPUTS": max(len(operator.outputs) for operator in self._newest),
            "MAX_TYPES": max(len(operator.inputs) + len(operator.outputs) for operator in self._newest),
        }
        texts = {
            "FIRST_RELEASE": c_api.FIRST_RELEASE,
            "FLOAT_QDQ_RELEASE": ".".join(map(str, c_api.FLOAT_QDQ_RELEASE)),
            "REGISTERED": REGISTERED,
            "CPU": job.cpu,
            "COMMAND": COMMAND,
        }
        in_tensors = [element_type for element_type in ELEMENT_TYPES if element_type.has_tensors()]
        names = {c_api.type_number(each): each.name for each in in_tensors} | {c_api.ANY_TYPE: "?"}
        types = {each.number: c_api.type_number(each) for each in in_tensors}
        features = [
            _struct(**{field: f"{number}u" for field, number in place._asdict().items()}, name=_text(name))
            for name, place in job.checks.items()
        ]
        arrays = {
            "char *const TYPES": [_text(names.get(number, "")) for number in range(max(names) + 1)],
            "char *const DOMAIN_NAMES": [*map(_text, self._domains)],
            "char *const ENTRIES": [_text(text) for entry in NO_FUSIONS.items() for text in entry if job.has_qdq] + ["0"],
            "struct feature FEATURES": [*features, "{0}"],
            "uint8_t TYPE_OF_ATTRIBUTE": [str(types.get(number, c_api.ANY_TYPE)) for number in range(max(types) + 1)],
            "struct operator_ OPERATORS": self._operators,
            "struct node NODES": self._nodes or ["{0}"],
            "struct overload OVERLOADS": self._overloads,
        }
        return "".join(
            [
                "/* Written by quark_numba: the tables of one library. */\n",
                f"enum {_list([f'{name} = {number}' for name, number in constants.items()])};\nOVERLOAD;\n",
                defined,
                *registers,
                *(f"#define {name} {_text(text)}\n" for name, text in texts.items()),
                *(
                    f"extern word {name}({', '.join(['word'] * other_machines.count_arguments(address))});\n"
                    for name, address in self.functions.items()
                ),
                *self._arrays,
                *(f"static const {name}[] = {_list(items)};\n" for name, items in arrays.items()),
            ]
        )


def _typed_by(operator: Operator) -> tuple[int, int]:
    """Return (index, instead) for nodes without an attribute that gives the output's type. The output then has the type of
    input number `index`; -1 if there is no such input. If a node leaves that input out, the output has the type with the number
    `instead`; ANY_TYPE if it is unknown."""
    if not operator.takes_type:
        return -1, c_api.ANY_TYPE
    defaults = {attribute.name: attribute.default for attribute in operator.attributes}

    def type_with(inputs: list[Tensor | None]) -> ElementType | None:
        (y,) = operator.infer(inputs, defaults)
        return y.element_type

    def gives_type(index: int) -> bool:
        several = operator.types[operator.inputs[index].variable]
        unknown = [Tensor(None, None)] * len(operator.inputs)
        types = [type_with([*unknown[:index], Tensor(each, None), *unknown[index + 1 :]]) for each in several]
        return len(several) > 1 and [*several] == types

    index = next(filter(gives_type, range(len(operator.inputs))), -1)
    instead = type_with([None] * len(operator.inputs))
    return index, c_api.type_number(instead) if instead else c_api.ANY_TYPE


def _free_attributes(operator: Operator) -> tuple[str, ...]:
    """Return the names of the attributes of which nodes may have any values (``ort.nodes``)."""
    return getattr(operators.node_of(operator.family), "FREE_ATTRIBUTES", ())


def _takes_lists(operator: Operator) -> bool:
    return any(attribute.kind == "INTS" for attribute in operator.attributes)


def _attribute(attribute: Attribute, free: tuple[str, ...]) -> str:
    return _struct(
        name=_text(attribute.name),
        kind=attribute.kind,
        is_required=int(attribute.default is None),
        standard=_value(attribute, attribute.default),
        free=free.index(attribute.name) if attribute.name in free else -1,
    )


def _list(items: Sequence[str]) -> str:
    return f"{{{', '.join(items)}}}"


def _struct(**fields: str | int) -> str:
    """Return a struct of ``structures.h`` as C writes it. Fields that are not given are 0."""
    return _list([f".{name} = {value}" for name, value in fields.items()])


def _text(text: str | bytes) -> str:
    """Return a text as C writes it, in ASCII."""
    content = text.encode() if isinstance(text, str) else text
    return '"' + "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:03o}" for byte in content) + '"'


def _number(number: int) -> str:
    """Return an int64 as C writes it. The lowest has no decimal form."""
    return str(number) if abs(number) < 1 << 31 else f"(int64_t){number & (1 << 64) - 1:#x}u"


def _value(attribute: Attribute, value: Any) -> str:
    """Return the value of an attribute in C. None means that it is missing."""
    if value is None:
        return "{0}"
    if attribute.kind == "STRING":
        return _struct(text=_text(value))
    if attribute.kind == "FLOAT":
        (value,) = struct.unpack("<I", struct.pack("<f", value))
    elif attribute.kind != "INT":
        raise RuntimeError(f"attribute {attribute.name} is of the kind {attribute.kind}, which libraries lack")
    return _struct(number=_number(value))
