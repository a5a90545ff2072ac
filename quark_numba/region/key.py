"""The key of a kernel: a program of elementwise steps."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..block.granularity import MOST_ROWS, Blocks
from ..block.key import Key as BlockKey
from ..block.operators import FORMATS
from ..block.operators import QUARKS as BLOCK_OPERATORS
from ..element_types import BFLOAT16, FLOAT16, FLOAT32, ElementType, find
from ..fake_quantization.key import FORMS, select
from ..fake_quantization.key import Key as FakeKey
from ..fake_quantization.operators import FAKE_QUANTIZE as _FAKE_QUANTIZE
from ..linear.versions import VERSIONS

if TYPE_CHECKING:
    import onnx

# The step that quantizes and dequantizes: (x, scale, zero point) -> y.
(_PAIR,) = (version for version in VERSIONS if version.operation == "quantize_dequantize")
ROUND_TRIP = _PAIR.name

# The step of fake quantization: (x, parameters of the form...) -> y. The parameters are operands, which broadcast.
FAKE_QUANTIZE = _FAKE_QUANTIZE.name

# The steps that round to block formats, with the defaults of their attributes.
BLOCK_ROUND_TRIPS: Mapping[str, Mapping[str, Any]] = {
    operator.name: {attribute.name: attribute.default for attribute in operator.attributes} for operator in BLOCK_OPERATORS
}

# The domains of steps that are not operators of ONNX.
DOMAINS = {_PAIR.name: _PAIR.domain, **{operator.name: operator.domain for operator in (_FAKE_QUANTIZE, *BLOCK_OPERATORS)}}

# The operators of steps, with their numbers of operands and the defaults of their attributes (ONNX, opset 22).
UNARY: Mapping[str, Mapping[str, float]] = {
    **{name: {} for name in ("Abs", "Ceil", "Floor", "HardSwish", "Identity", "Neg", "Reciprocal", "Relu", "Sign", "Sqrt")},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
}
# The step that converts an input of another type to float32.
CAST = "Cast"
BINARY = ("Add", "Div", "Max", "Min", "Mul", "PRelu", "Sub")
OPERANDS = {
    **dict.fromkeys((CAST, *UNARY, *BLOCK_ROUND_TRIPS), (1, 1)),
    **dict.fromkeys(BINARY, (2, 2)),
    "Clip": (1, 3),
    ROUND_TRIP: (3, 3),
    FAKE_QUANTIZE: (1, 1 + max(len(form.parameters) for form in FORMS.values())),
}

# The limits of a program. A stream is an input of more than one element, and takes room on the stack of each thread.
MOST_INPUTS, MOST_STREAMS, MOST_STEPS = 48, 16, 64

# The element types of zero points: the operator's types of at least 4 bits. ONNX Runtime has no smaller types for inputs that
# may differ in type.
ZERO_POINTS = tuple(row for row in _PAIR.quantized if row.bits >= 4)


# The element types of inputs that may be cast.
CASTS = (FLOAT16, BFLOAT16)


class Input(NamedTuple):
    """An input of a program. `is_scalar`: it has one element."""

    element_type: ElementType
    is_scalar: bool


class Step(NamedTuple):
    """A step of a program. `operands` are numbers of values: the program's inputs come first, then the results of the steps.
    None is an omitted operand."""

    operator: str
    operands: tuple[int | None, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def axis(self) -> int:
        """The axis of a round trip's scales, or of blocks."""
        return int(dict(self.attributes)["axis"])

    @property
    def block_format(self) -> tuple[BlockKey, Blocks]:
        """The key and the blocks that the attributes of a step of BLOCK_ROUND_TRIPS select."""
        return FORMATS[self.operator](FLOAT32, **dict(self.attributes))

    @property
    def fake_key(self) -> FakeKey:
        """The key that the attributes of a step of fake quantization select."""
        return select(**dict(self.attributes))


class Program(NamedTuple):
    """Inputs and steps. A step has one result; the result of the last step is y. All values but zero points and inputs of Cast
    are float32. Results have y's shape, to which the inputs broadcast as in ONNX."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """A name for symbols, different for each program."""
        return f"region_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def text(self) -> str:
        """The program in the syntax of ``onnx.parser.parse_graph``."""
        names = [f"x{i}" for i in range(len(self.inputs))] + [f"v{i}" for i in range(len(self.steps) - 1)] + ["y"]
        types = ["float" if x.element_type is FLOAT32 else x.element_type.name for x in self.inputs]
        inputs = (f"{kind}{'[1]' * x.is_scalar} {name}" for kind, x, name in zip(types, self.inputs, names, strict=False))
        lines = []
        for step, name in zip(self.steps, names[len(self.inputs) :], strict=True):
            operator = f"{DOMAINS[step.operator]}.{step.operator}" if step.operator in DOMAINS else step.operator
            attributes = ", ".join(f"{key}: {_attribute(value)}" for key, value in step.attributes)
            operands = ", ".join('""' if operand is None else names[operand] for operand in step.operands)
            lines.append(f"  {name} = {operator} {f'<{attributes}> ' if attributes else ''}({operands})")
        return "\n".join([f"region ({', '.join(inputs)}) => (float y) {{", *lines, "}"])

    @property
    def axes(self) -> tuple[int | None, ...]:
        """The role of each input: None for an operand, which broadcasts. For a scale or zero point, the axis of y along which
        its one dimension lies, counted from the last, which is -1; or 0 if it has one element."""
        axes = dict(self.uses())
        return tuple(axes[number] for number in range(len(self.inputs)))

    @property
    def block_numbers(self) -> list[int]:
        """The numbers of the steps of BLOCK_ROUND_TRIPS. All of them have the same block size and axis."""
        return [number for number, step in enumerate(self.steps) if step.operator in BLOCK_ROUND_TRIPS]

    @property
    def block_steps(self) -> list[Step]:
        """These steps."""
        return [self.steps[number] for number in self.block_numbers]

    @property
    def blocks(self) -> list[Blocks]:
        """Their blocks."""
        return [blocks for _, blocks in (step.block_format for step in self.block_steps)]

    def uses(self) -> Iterator[tuple[int, int | None]]:
        """Yield, for each use of an input, its number and its role there, as in `axes`."""
        for step in self.steps:
            for index, operand in enumerate(step.operands):
                if operand is None or operand >= len(self.inputs):
                    continue
                axis: int | None = None
                if step.operator == ROUND_TRIP and index:
                    axis = 0 if self.inputs[operand].is_scalar else step.axis
                yield operand, axis


@functools.cache
def parse(text: str) -> Program:
    """Return the program of a text. Raises ValueError, which names the step at fault."""
    from onnx import parser

    try:
        graph = parser.parse_graph(text)
    except parser.ParseError as error:
        raise ValueError(f"program is not in ONNX's textual syntax: {error}") from None
    streams = [x for x in graph.input if not x.type.tensor_type.shape.dim]
    for what, given, most in (
        ("inputs", graph.input, MOST_INPUTS),
        ("inputs of more than one element", streams, MOST_STREAMS),
        ("steps", graph.node, MOST_STEPS),
    ):
        if len(given) > most:
            raise ValueError(f"program has {len(given)} {what}; expected at most {most}")
    if not graph.node:
        raise ValueError("program has no steps")
    numbers: dict[str, int] = {}
    inputs = []
    for value in graph.input:
        element_type = find(value.type.tensor_type.elem_type)
        if element_type is None or value.name in numbers:
            raise ValueError(f"program has an input {value.name} that is there twice, or of no known element type")
        dimensions = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        if dimensions not in ([], [1]):
            raise ValueError(f"program has an input {value.name} of shape {dimensions}; expected [1], or none")
        numbers[value.name] = len(numbers)
        inputs.append(Input(element_type, dimensions == [1]))
    steps = []
    for node in graph.node:
        steps.append(_step(node, inputs, numbers))
        if node.output[0] in numbers:
            raise ValueError(f"program gives {node.output[0]} twice")
        numbers[node.output[0]] = len(numbers)
    used = {operand for step in steps for operand in step.operands}
    for name, number in list(numbers.items())[:-1]:
        if number not in used:
            raise ValueError(f"program does not use {name}")
    if [value.name for value in graph.output] != [next(reversed(numbers))]:
        raise ValueError("program has other outputs than what its last step gives")
    program = Program(tuple(inputs), tuple(steps))
    _check_uses(program, list(numbers))
    return program


# The defaults of the attributes of steps.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **UNARY,
    **BLOCK_ROUND_TRIPS,
    ROUND_TRIP: {"axis": 0, "saturate": 1},
    FAKE_QUANTIZE: {"form": "", "rounding_mode": "ROUND"},
    CAST: {"to": FLOAT32.number},
}


def _step(node: onnx.NodeProto, inputs: list[Input], numbers: dict[str, int]) -> Step:
    from onnx import helper

    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    where = f"program step {', '.join(node.output)} = {operator}"
    fewest, most = OPERANDS.get(node.op_type, (0, 0))
    if not most or node.domain != DOMAINS.get(node.op_type, ""):
        raise ValueError(f"{where} is unknown; expected one of {', '.join(OPERANDS)}")
    if len(node.output) != 1 or not fewest <= len(node.input) <= most or "" in node.input[:fewest]:
        raise ValueError(f"{where} has operands ({', '.join(node.input)}); expected {fewest}..{most}, and one output")
    defaults: Mapping[str, Any] = _DEFAULTS.get(node.op_type, {})
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    for name, value in attributes.items():
        if isinstance(value, bytes) and isinstance(defaults.get(name), str):
            attributes[name] = value.decode("utf-8", "replace")
        elif name not in defaults or isinstance(defaults[name], str) or not isinstance(value, (int, float)):
            raise ValueError(f"{where} has an attribute {name} = {value!r}; expected {', '.join(defaults) or 'none'}")
    for name in node.input:
        if name and name not in numbers:
            raise ValueError(f"{where} has the operand {name}, which nothing before it gives")
    step = Step(
        node.op_type,
        tuple(numbers[name] if name else None for name in node.input),
        tuple(sorted((dict(defaults) | attributes).items())),
    )
    if step.operator == FAKE_QUANTIZE:
        try:
            form = FORMS[step.fake_key.form]
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if len(step.operands) != 1 + len(form.parameters) or None in step.operands:
            raise ValueError(f"{where} has {len(step.operands)} operands; expected x, {', '.join(form.parameters)}")
    if step.operator in BLOCK_ROUND_TRIPS:
        try:
            _, blocks = step.block_format
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        if step.axis >= 0 or blocks.block > MOST_ROWS:
            raise ValueError(
                f"{where} has axis {step.axis} and block_size {blocks.block}; expected an axis below 0, counted from the last "
                f"one, and at most {MOST_ROWS}"
            )
    to = dict(step.attributes).get("to")
    if step.operator == CAST and (type(to) is not int or to != FLOAT32.number or (step.operands[0] or 0) >= len(inputs)):
        raise ValueError(f"{where} is no cast of an input to {FLOAT32.number}, float32")
    for index, operand in enumerate(step.operands):
        if operand is None or operand >= len(inputs):
            if operand is not None and step.operator == ROUND_TRIP and index:
                raise ValueError(f"{where} has a scale or a zero point that is the result of a step; expected inputs")
            continue
        element_type, is_scalar = inputs[operand]
        if step.operator in BLOCK_ROUND_TRIPS and is_scalar:
            raise ValueError(f"{where} has the operand {node.input[index]}, of one element")
        is_zero_point = step.operator == ROUND_TRIP and index == 2
        allowed = ZERO_POINTS if is_zero_point else CASTS if step.operator == CAST else (FLOAT32,)
        if element_type not in allowed:
            raise ValueError(f"{where} has the operand {node.input[index]} of element type {element_type.name}")
        if step.operator == ROUND_TRIP and index and not is_scalar and step.axis >= 0:
            raise ValueError(f"{where} has several scales, and no axis below 0, counted from the last one")
    return step


def _check_uses(program: Program, names: list[str]) -> None:
    """Raise ValueError if an input has several roles, such as a scale and an operand, or scales along two axes; or if there are
    blocks of several sizes or along several axes."""
    kinds = {(step.axis, step.block_format[1].block) for step in program.block_steps}
    if len(kinds) > 1:
        raise ValueError(f"program has blocks of several kinds, (axis, block_size) {sorted(kinds)}; expected one")
    axes = program.axes
    for operand, axis in program.uses():
        if axis != axes[operand]:
            raise ValueError(f"program uses {names[operand]} in two ways; expected an input for each")


def _attribute(value: float | str) -> str:
    """Return the type and value of an attribute in ONNX's textual syntax."""
    return f'string = "{value}"' if isinstance(value, str) else f"{type(value).__name__} = {value!r}"
