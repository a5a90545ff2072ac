"""The key of a kernel: a program of elementwise steps, its text and parser, its limits (inputs, steps, block size), and the
messages of programs that are refused."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..block.granularity import MAX_ROWS, Format
from ..block.key import Key as BlockKey
from ..block.operators import FORMATS
from ..element_types import BFLOAT16, FLOAT16, FLOAT32, ElementType, find
from ..fake_quantization.key import FORMS, select
from ..fake_quantization.key import Key as FakeKey
from .granularity import ONE_PARAMETER, OPERAND
from .step_operators import BLOCK_ROUND_TRIPS, CAST, FAKE_QUANTIZE, ROUND_TRIP, ROUND_TRIP_VERSION, STEP_OPERATORS

if TYPE_CHECKING:
    import onnx

# The limits of a program. A stream is an input of more than one element, and takes space on the stack of each thread. A block
# has to fit into a tile.
MAX_INPUTS, MAX_STREAMS, MAX_STEPS, MAX_BLOCK = 48, 16, 64, MAX_ROWS

# The element types of zero points: the operator's types of at least 4 bits. For inputs that may differ in type, ONNX Runtime
# does not support smaller types.
ZERO_POINTS = tuple(each for each in ROUND_TRIP_VERSION.quantized if each.bits >= 4)

# The element types of inputs that may be cast.
CASTS = (FLOAT16, BFLOAT16)


class Input(NamedTuple):
    """An input of a program. `is_scalar` tells whether it has one element."""

    element_type: ElementType
    is_scalar: bool


class Step(NamedTuple):
    """A step of a program. `operands` has the number of a value for each operand, or None for an omitted one. Values are
    numbered: first the program's inputs, then the results of its steps."""

    operator: str
    operands: tuple[int | None, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def present(self) -> list[int]:
        """The operands that are not omitted."""
        return [operand for operand in self.operands if operand is not None]

    @property
    def axis(self) -> int:
        """The axis along which the scales of a round trip, or blocks, lie."""
        return int(dict(self.attributes)["axis"])

    @property
    def block_format(self) -> tuple[BlockKey, Format]:
        """The key and the numbers of the format that the attributes of a step of BLOCK_ROUND_TRIPS select."""
        return FORMATS[self.operator](FLOAT32, **dict(self.attributes))

    @property
    def fake_key(self) -> FakeKey:
        """The key that the attributes of a step FAKE_QUANTIZE select."""
        return select(**dict(self.attributes))


class Program(NamedTuple):
    """Inputs and steps. A step has one result; the result of the last step is y. All values except zero points and inputs of
    Cast are float32. Results have the shape of y, to which the inputs broadcast as in ONNX."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """The name of the program's symbols, different for each program."""
        return f"region_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def text(self) -> str:
        """The program in the syntax of ``onnx.parser.parse_graph``."""
        names = [f"x{i}" for i in range(len(self.inputs))] + [f"v{i}" for i in range(len(self.steps) - 1)] + ["y"]
        types = ["float" if x.element_type is FLOAT32 else x.element_type.name for x in self.inputs]
        inputs = (f"{kind}{'[1]' * x.is_scalar} {name}" for kind, x, name in zip(types, self.inputs, names, strict=False))
        lines = []
        for step, name in zip(self.steps, names[len(self.inputs) :], strict=True):
            domain = STEP_OPERATORS[step.operator].domain
            operator = f"{domain}.{step.operator}" if domain else step.operator
            attributes = ", ".join(f"{key}: {_attribute(value)}" for key, value in step.attributes)
            operands = ", ".join('""' if operand is None else names[operand] for operand in step.operands)
            lines.append(f"  {name} = {operator} {f'<{attributes}> ' if attributes else ''}({operands})")
        return "\n".join([f"region ({', '.join(inputs)}) => (float y) {{", *lines, "}"])

    @property
    def roles(self) -> tuple[int, ...]:
        """The role of each input, as in ``granularity``: OPERAND, ONE_PARAMETER, or the axis of several parameters."""
        roles = dict(self.uses())
        return tuple(roles[number] for number in range(len(self.inputs)))

    @property
    def streams(self) -> list[int]:
        """The numbers of the inputs that have more than one element."""
        return [number for number, x in enumerate(self.inputs) if not x.is_scalar]

    @property
    def block_formats(self) -> dict[int, Format]:
        """The numbers of the format of each step of BLOCK_ROUND_TRIPS, by the number of the step."""
        return {number: step.block_format[1] for number, step in enumerate(self.steps) if step.operator in BLOCK_ROUND_TRIPS}

    @property
    def block_size(self) -> int:
        """The number of elements of a block, the same for all these steps, or 0 if there are none."""
        return next((each.block for each in self.block_formats.values()), 0)

    @property
    def block_axis(self) -> int:
        """The axis of the blocks, the same for all these steps. It is below 0, or 0 if there are none."""
        return next((self.steps[number].axis for number in self.block_formats), 0)

    def has_scalars(self, step: Step) -> bool:
        """Return whether the parameters of a step, which are inputs, have one element each."""
        return all(self.inputs[parameter].is_scalar for parameter in step.present[1:])

    def uses(self) -> Iterator[tuple[int, int]]:
        """Yield, for each use of an input, its number and its role there."""
        for step in self.steps:
            for index, operand in enumerate(step.operands):
                if operand is not None and operand < len(self.inputs):
                    role = OPERAND
                    if step.operator == ROUND_TRIP and index > 0:
                        role = ONE_PARAMETER if self.inputs[operand].is_scalar else step.axis
                    yield operand, role


@functools.cache
def parse(text: str) -> Program:
    """Return the program of a text. Raise ValueError if the text is not a program. The message names the step at fault."""
    from onnx import parser

    try:
        graph = parser.parse_graph(text)
    except parser.ParseError as error:
        raise ValueError(f"program is not in ONNX's textual syntax: {error}") from None
    index_of: dict[str, int] = {}
    inputs: list[Input] = []
    steps: list[Step] = []
    _refuse("program", _size_faults(graph))
    for value in graph.input:
        inputs.append(_input(value, index_of))
        index_of[value.name] = len(index_of)
    for node in graph.node:
        steps.append(_step(node, inputs, index_of))
        if node.output[0] in index_of:
            raise ValueError(f"program computes {node.output[0]} twice")
        index_of[node.output[0]] = len(index_of)
    program = Program(tuple(inputs), tuple(steps))
    _refuse("program", _use_faults(program, [*index_of], [value.name for value in graph.output]))
    return program


def _input(value: onnx.ValueInfoProto, index_of: Mapping[str, int]) -> Input:
    tensor = value.type.tensor_type
    element_type, dimensions = find(tensor.elem_type), [dimension.dim_value for dimension in tensor.shape.dim]
    if value.name in index_of:
        raise ValueError(f"program declares input {value.name} twice")
    if element_type is None:
        raise ValueError(f"program input {value.name} has an unknown element type, number {tensor.elem_type}")
    if dimensions not in ([], [1]):
        raise ValueError(f"program input {value.name} has shape {dimensions}; expected [1], or none")
    return Input(element_type, dimensions == [1])


def _step(node: onnx.NodeProto, inputs: list[Input], index_of: Mapping[str, int]) -> Step:
    from onnx import helper

    place = f"program step {', '.join(node.output)} = {f'{node.domain}::' if node.domain else ''}{node.op_type}"
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    _refuse(place, _node_faults(node, attributes, index_of))
    texts = {name: value.decode("utf-8", "replace") for name, value in attributes.items() if isinstance(value, bytes)}
    all_attributes = tuple(sorted({**STEP_OPERATORS[node.op_type].attributes, **attributes, **texts}.items()))
    step = Step(node.op_type, tuple(index_of.get(name) for name in node.input), all_attributes)
    try:
        faults = [*_format_faults(step), *_operand_faults(step, inputs, node.input)]
    except (TypeError, ValueError) as error:  # the attributes select no format
        raise ValueError(f"{place}: {error}") from None
    _refuse(place, faults)
    return step


def _refuse(place: str, faults: Iterable[str]) -> None:
    """Raise ValueError with the first fault, if there is one."""
    for fault in faults:
        raise ValueError(f"{place} {fault}")


def _size_faults(graph: onnx.GraphProto) -> Iterator[str]:
    streams = [x for x in graph.input if not x.type.tensor_type.shape.dim]
    sizes = {"inputs": (graph.input, MAX_INPUTS), "inputs of more than one element": (streams, MAX_STREAMS)}
    for what, (found, most) in {**sizes, "steps": (graph.node, MAX_STEPS)}.items():
        if len(found) > most:
            yield f"has {len(found)} {what}; expected at most {most}"
    if not graph.node:
        yield "has no steps"


def _node_faults(node: onnx.NodeProto, attributes: Mapping[str, Any], index_of: Mapping[str, int]) -> Iterator[str]:
    operator = STEP_OPERATORS.get(node.op_type)
    if operator is None or node.domain != operator.domain:
        yield f"is unknown; expected one of {', '.join(STEP_OPERATORS)}"
        return
    fewest, most, defaults = operator.fewest, operator.most, operator.attributes
    if len(node.output) != 1 or not fewest <= len(node.input) <= most or "" in node.input[:fewest]:
        yield f"has operands ({', '.join(node.input)}); expected {fewest}..{most}, and one output"
    for name, value in attributes.items():
        if name not in defaults or not isinstance(value, bytes if isinstance(defaults[name], str) else (int, float)):
            yield f"has an attribute {name} = {value!r}; expected {', '.join(defaults) or 'none'}"
    for name in node.input:
        if name and name not in index_of:
            yield f"has the operand {name}, which is no input or earlier result"


def _format_faults(step: Step) -> Iterator[str]:
    """Yield the faults of attributes. Raise TypeError or ValueError if they select no format."""
    if step.operator == FAKE_QUANTIZE:
        names, count = FORMS[step.fake_key.form].parameters, len(step.operands)
        if count != 1 + len(names) or None in step.operands:
            yield f"has {count} operands; expected x, {', '.join(names)}"
    if step.operator in BLOCK_ROUND_TRIPS:
        block, expected = step.block_format[1].block, f"an axis below 0, counted from the last one, and at most {MAX_BLOCK}"
        if step.axis >= 0 or block > MAX_BLOCK:
            yield f"has axis {step.axis} and block_size {block}; expected {expected}"


def _operand_faults(step: Step, inputs: list[Input], names: Sequence[str]) -> Iterator[str]:
    if step.operator == CAST:
        to = dict(step.attributes)["to"]
        if type(to) is not int or to != FLOAT32.number or step.present[0] >= len(inputs):
            yield f"is no Cast of an input to {FLOAT32.number}, float32"
    for index, operand in enumerate(step.operands):
        is_parameter = step.operator == ROUND_TRIP and index > 0
        if operand is None or operand >= len(inputs):
            if is_parameter:
                yield "has a scale or a zero point that is the result of a step; expected inputs"
            continue
        element_type, is_scalar = inputs[operand]
        if step.operator in BLOCK_ROUND_TRIPS and is_scalar:
            yield f"has the operand {names[index]} of one element; expected one without a shape"
        expected = ZERO_POINTS if is_parameter and index == 2 else CASTS if step.operator == CAST else (FLOAT32,)
        if element_type not in expected:
            known = ", ".join(element_type.name for element_type in expected)
            yield f"has the operand {names[index]} of element type {element_type.name}; expected {known}"
        if is_parameter and not is_scalar and step.axis >= 0:
            yield f"has several scales and axis {step.axis}; expected an axis below 0, counted from the last one"


def _use_faults(program: Program, names: list[str], outputs: list[str]) -> Iterator[str]:
    """Yield the faults of how values are used. An input has one role, such as a scale or an operand, and blocks have one size
    and lie along one axis."""
    used = {operand for step in program.steps for operand in step.operands}
    for number, name in enumerate(names[:-1]):
        if number not in used:
            yield f"does not use {name}"
    if outputs != names[-1:]:
        yield f"has outputs ({', '.join(outputs)}); expected {names[-1]}, the result of its last step"
    kinds = {(program.steps[number].axis, each.block) for number, each in program.block_formats.items()}
    if len(kinds) > 1:
        yield f"has blocks of several kinds, (axis, block_size) {sorted(kinds)}; expected one"
    roles = program.roles
    for operand, role in program.uses():
        if role != roles[operand]:
            yield f"uses {names[operand]} in two ways; expected an input for each"


def _attribute(value: float | str) -> str:
    """Return the type and value of an attribute in ONNX's textual syntax."""
    return f'string = "{value}"' if isinstance(value, str) else f"{type(value).__name__} = {value!r}"
