"""The declaration of the family's operator, `Region`: its inputs, its attributes with their texts, and the shape of y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import Attribute, Operator, Parameter, Tensor
from ..element_types import ELEMENT_TYPES, FLOAT32
from ..linear.versions import OWN_DOMAIN
from .calls import blocked_shape, check_inputs, check_layout, run_region
from .granularity import FAULTS, OPERAND
from .key import parse


def _infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    program, lanes = parse(attributes["program"]), attributes["lanes"]
    check_inputs(program, len(inputs))
    check_layout(program, lanes, attributes["channels"])
    shapes = []
    for number, (tensor, expected, role) in enumerate(zip(inputs, program.inputs, program.roles, strict=True)):
        found = tensor.element_type if tensor else None
        if found and found != expected.element_type:
            raise TypeError(f"input {number} has element type {found.name}; expected {expected.element_type.name}")
        if role == OPERAND:
            operand_shape = tensor.shape if tensor else None
            if lanes and operand_shape is not None:
                operand_shape = blocked_shape(operand_shape, lanes, number) or operand_shape
            shapes.append(operand_shape)
    if None in shapes:
        return [Tensor(FLOAT32, None)]
    shape: list[int | None] = []
    for axis in range(-max(len(operand) for operand in shapes if operand is not None), 0):
        lengths = {operand[axis] for operand in shapes if operand is not None and len(operand) >= -axis} - {1}
        known = lengths - {None}
        if len(known) > 1:
            raise ValueError(f"inputs have shapes {shapes}, which cannot be broadcast together")
        shape.append(known.pop() if known else None if lengths else 1)
    if lanes and len(shape) == 5:
        n, blocks, h, w, inner = shape
        shape = [n, None if blocks is None or inner is None else blocks * inner, h, w]
    return [Tensor(FLOAT32, shape)]


def _like(inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, list[str], dict[str, Any]]:
    """Return an operator of ONNX whose output has the shape of y: the Sum of the operands that broadcast."""
    roles = parse(attributes["program"]).roles
    return "Sum", [*dict.fromkeys(name for name, role in zip(inputs, roles, strict=True) if role == OPERAND)], {}


OPERATORS = (
    Operator(
        family="region",
        domain=OWN_DOMAIN,
        name="Region",
        operation="region",
        doc="Runs a program of elementwise steps on the inputs, which broadcast, and returns its last result.",
        types={"T1": ELEMENT_TYPES, "T2": (FLOAT32,)},
        inputs=(Parameter("x", "T1", "The inputs of the program, in order.", "variadic", is_homogeneous=False),),
        outputs=(Parameter("y", "T2", "The result, with the shape to which the inputs broadcast."),),
        attributes=(
            Attribute(
                "program",
                None,
                "A graph in ONNX's textual syntax. Its inputs are `float`, of any shape, or `float[1]`, of one element; zero "
                "points and inputs of Cast have their own element type instead of `float`. Each node takes inputs and results "
                "of nodes before it; the result of the last node is the output. Scales and zero points have one element, or "
                "the one dimension along `axis`, which is below 0, counted from the last.",
                "STRING",
            ),
            Attribute(
                "lanes",
                0,
                "The channels of a block, if tensors of four dimensions are in ONNX Runtime's layout for convolutions: "
                "(N, C, H, W) as (N, C / lanes, H, W, lanes), or with one channel. 0 in ONNX's layout.",
            ),
            Attribute("channels", 0, "If it is not 0, y is 0 in the channels from this one on. Only with `lanes`."),
        ),
        call=run_region,
        infer=_infer,
        faults=FAULTS,
        formats={"float32": FLOAT32},
        column="T2",
        like=_like,
        runs_on_gpus=True,
    ),
)
