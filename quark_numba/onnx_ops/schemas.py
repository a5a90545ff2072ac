"""OpSchemas of Quark's operators, made from the table of operators."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import defs, helper, shape_inference

from ..block_formats import BLOCK_FAULTS, BLOCK_OPERATORS, X_TYPES, BlockOperator, block_shape
from ..element_types import UINT8, ElementType, find
from ..granularity import FAULTS, loop_shape
from ..lock import creation_lock
from ..operators import DEFAULTS, INPUT_NAMES, OPERATOR_VERSIONS, QUANTIZED, Operand, OperatorVersion

# A shape of which a dimension, or all, may be unknown.
Shape = list[int | None]

QUARK_VERSIONS = tuple(version for version in OPERATOR_VERSIONS if version.domain)

# The element types of the inputs and the output, as type variables.
_VARIABLES: dict[Operand, str] = {"x": "T1", "scale": "T2", "y": "T3", "via": "T4"}

_DOCS = {
    "quantize": "y = saturate(x / y_scale + y_zero_point), with the scale and zero point of the whole tensor or of each "
    "index along `axis`. For integer types the quotient is rounded, half to even, before the zero point is added.",
    "dequantize": "y = (x - x_zero_point) * x_scale, with the scale and zero point of the whole tensor or of each index along "
    "`axis`.",
    "quantize_dequantize": "QuantizeLinear followed by DequantizeLinear with the same scale and zero point: x is rounded to "
    "the values that the type of the zero point has then. For integer types x / scale is rounded, half to even, the zero point "
    "added, the sum saturated, the zero point subtracted, and the difference multiplied by the scale.",
}
_X = {
    "quantize": "What to quantize.",
    "dequantize": "What to dequantize.",
    "quantize_dequantize": "What to quantize and dequantize.",
}
_SCALE = "A scalar, or one dimension with as many elements as x has along `axis`."
_BLOCKED_SCALE = f"{_SCALE} With `block_size`, x's shape but along `axis`, where there is one element a block."
_ZERO_POINT = {
    "quantize": "Of the shape of y_scale. Its type is that of y. Default: 0, uint8.",
    "dequantize": "Of the shape of x_scale and the type of x. Default: 0.",
    "quantize_dequantize": "Of the shape of scale, and of the quantized type.",
}
_ATTRIBUTES = {
    "axis": "The axis of a scale of one dimension or of blocks, -r..r-1 of an x of r dimensions.",
    "block_size": "How many elements along `axis` share a scale; the last block may be shorter. 0: not blocked.",
    "saturate": "0: float8 types give Inf for what is beyond their range, or NaN if they have no Inf.",
}


def register_schemas() -> None:
    """Make ExtendedQuantizeLinear, ExtendedDequantizeLinear, BFPQuantizeDequantize and MXQuantizeDequantize of com.amd.quark,
    VitisQuantizeLinear, VitisDequantizeLinear, BFPFixNeuron and MXFixNeuron of com.vai.quantize, and QuantizeDequantizeLinear
    of quark_numba, version 1, known to ``onnx.checker`` and ``onnx.shape_inference``.

    Models with other element types, inputs or attributes are refused by the checker then. Element type and shape of y are
    inferred, and wrong element types, wrong shapes of scale or zero point, wrong values of the attributes of block formats, and
    an axis out of range, as far as they are known, raise ``onnx.shape_inference.InferenceError``, in strict mode or not.

    Before onnx 1.19 schemas from Python have no inference functions. There the type of y is known with check_type only, and not
    without a zero point; its shape never is; strict mode fails where a later node needs what is not known.

    Any number of calls from any number of threads have the effect of one; schemas of these names that are registered already
    are left as they are.
    """
    with creation_lock:
        for made in (*map(schema, QUARK_VERSIONS), *map(block_schema, BLOCK_OPERATORS)):
            if not defs.has(made.name, made.domain):
                defs.register_schema(made)
                # onnx 1.19 to 1.22 would let go of the inference functions when Python is gone, and crash or hang.
                atexit.register(_deregister, made.name, made.domain)


def schema(version: OperatorVersion) -> defs.OpSchema:
    """The schema for a row of the table, not registered."""
    parameter = defs.OpSchema.FormalParameter
    x, scale, zero_point = INPUT_NAMES[version.operation]
    option = defs.OpSchema.FormalParameterOption.Single if version.via else defs.OpSchema.FormalParameterOption.Optional
    is_blocked = "block_size" in version.attributes
    doc = _DOCS[version.operation]
    if not version.via:
        doc += f"\n\nAMD Quark's documentation, {version.name.replace('Vitis', 'Extended')} - 1."
    made = defs.OpSchema(
        version.name,
        version.domain,
        version.since_version,
        doc,
        inputs=[
            parameter(x, _VARIABLES["x"], _X[version.operation]),
            parameter(scale, _VARIABLES["scale"], _BLOCKED_SCALE if is_blocked else _SCALE),
            parameter(
                zero_point, _VARIABLES[QUANTIZED[version.operation]], _ZERO_POINT[version.operation], param_option=option
            ),
        ],
        outputs=[parameter("y", _VARIABLES["y"], "Of the shape of x.")],
        type_constraints=[
            (variable, _type_strings(getattr(version, operand)), f"Element types of {operand}.")
            for operand, variable in _VARIABLES.items()
            if getattr(version, operand)
        ],
        attributes=[
            defs.OpSchema.Attribute(name, helper.make_attribute(name, DEFAULTS[name]), _ATTRIBUTES[name])
            for name in version.attributes
        ],
    )
    if hasattr(made, "set_type_and_shape_inference_function"):
        made.set_type_and_shape_inference_function(lambda context: _infer(version, context))
    return made


def block_schema(operator: BlockOperator) -> defs.OpSchema:
    """The schema of an operator of block formats, not registered."""
    parameter = defs.OpSchema.FormalParameter
    made = defs.OpSchema(
        operator.name,
        operator.domain,
        1,
        "y is x, rounded to a format whose elements share exponents, block by block along `axis`. See "
        f"quark_numba.{operator.function} for the attributes.",
        inputs=[parameter("x", "T", "What to round.")],
        outputs=[parameter("y", "T", "Of the shape of x.")],
        type_constraints=[("T", _type_strings(X_TYPES), "Element types of x and y.")],
        attributes=[
            defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")
            for name, default in operator.defaults.items()
        ],
    )
    if hasattr(made, "set_type_and_shape_inference_function"):
        made.set_type_and_shape_inference_function(lambda context: _infer_block(operator, context))
    return made


def _infer_block(operator: BlockOperator, context: Any) -> None:
    x = context.get_input_type(0) if context.get_num_inputs() else None
    number = x.tensor_type.elem_type if x else onnx.TensorProto.UNDEFINED
    row = find(number)
    if number and row not in X_TYPES:
        given = onnx.TensorProto.DataType.Name(number).lower()
        expected = " or ".join(row.name for row in X_TYPES)
        raise shape_inference.InferenceError(f"{operator.full_name}: x has element type {given}; expected {expected}")
    attributes: dict[str, Any] = {}
    for name, default in operator.defaults.items():
        attribute = context.get_attribute(name)
        kind = onnx.AttributeProto.STRING if isinstance(default, str) else onnx.AttributeProto.INT
        if attribute is not None and attribute.type != kind:
            given, expected = (onnx.AttributeProto.AttributeType.Name(each) for each in (attribute.type, kind))
            raise shape_inference.InferenceError(f"{operator.full_name}: attribute {name} is a {given}; expected {expected}")
        value = default if attribute is None else helper.get_attribute_value(attribute)
        attributes[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    axis = attributes.pop("axis")
    try:
        _, blocks = operator.make_format(row or X_TYPES[0], **attributes)
    except ValueError as error:
        raise shape_inference.InferenceError(f"{operator.full_name}: {error}") from None
    shape = _shape(x)
    if shape is not None:
        fault, _, _ = block_shape([2 if each is None else each for each in shape], axis, blocks.block)
        if fault:
            message = BLOCK_FAULTS[fault].format(axis=axis, x_shape=_text(shape))
            raise shape_inference.InferenceError(f"{operator.full_name}: {message}")
    if x:
        context.set_output_type(0, x)


def _deregister(name: str, domain: str) -> None:
    if defs.has(name, domain):
        defs.deregister_schema(name, 1, domain)


def _type_strings(rows: Iterable[ElementType]) -> list[str]:
    """Of those that this version of onnx knows."""
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return [f"tensor({names[row.number].lower()})" for row in rows if row.number in names]


def _infer(version: OperatorVersion, context: Any) -> None:
    inputs = [context.get_input_type(i) if context.has_input(i) else None for i in range(context.get_num_inputs())]
    if len(inputs) > 3:
        raise shape_inference.InferenceError(f"{version.full_name} has {len(inputs)} inputs; expected 2 or 3")
    has_zero_point = len(inputs) > 2 and context.has_input(2)
    inputs += [None] * (3 - len(inputs))
    x, _, zero_point = (find(each.tensor_type.elem_type) if each else None for each in inputs)
    _check_type(version, 0, inputs[0], version.x)
    _check_type(version, 1, inputs[1], version.scale)
    _check_type(version, 2, inputs[2], (x,) if x and version.operation == "dequantize" else version.quantized)
    attributes = {name: DEFAULTS[name] for name in ("axis", "block_size")}
    for name in version.attributes:
        attribute = context.get_attribute(name)
        if attribute is not None and attribute.type != onnx.AttributeProto.INT:
            given = onnx.AttributeProto.AttributeType.Name(attribute.type)
            raise shape_inference.InferenceError(f"{version.full_name}: attribute {name} is a {given}; expected INT")
        if attribute is not None and name in attributes:
            attributes[name] = attribute.i
    _check_shapes(version, [_shape(each) for each in inputs], **attributes)

    y: ElementType | None = version.y[0]  # of dequantize
    if version.operation == "quantize":
        y = zero_point if has_zero_point else UINT8
    if y:
        output = onnx.TypeProto()
        output.tensor_type.elem_type = y.number
        if inputs[0] and inputs[0].tensor_type.HasField("shape"):
            output.tensor_type.shape.CopyFrom(inputs[0].tensor_type.shape)
        context.set_output_type(0, output)


def _check_type(version: OperatorVersion, index: int, value: Any, allowed: Iterable[ElementType]) -> None:
    number = value.tensor_type.elem_type if value else onnx.TensorProto.UNDEFINED
    if number and number not in [row.number for row in allowed]:
        name = INPUT_NAMES[version.operation][index]
        given = onnx.TensorProto.DataType.Name(number).lower()
        expected = " or ".join(row.name for row in allowed)
        raise shape_inference.InferenceError(f"{version.full_name}: {name} has element type {given}; expected {expected}")


def _check_shapes(version: OperatorVersion, shapes: list[Shape | None], axis: int, block_size: int) -> None:
    x, scale, zero_point = shapes
    if x is None or scale is None or None in scale or (zero_point and None in zero_point):
        return
    if block_size and None in x:
        return
    # Any number that fits stands for a dimension of x that is not known.
    fits = scale[0] if scale else 1
    zero_point = scale if zero_point is None else zero_point
    fault, _ = loop_shape([fits if each is None else each for each in x], scale, zero_point, axis, block_size)
    if fault:
        names = dict(zip(("x", "scale", "zero_point"), INPUT_NAMES[version.operation], strict=True))
        texts = {"x_shape": _text(x), "scale_shape": _text(scale), "zero_point_shape": _text(zero_point)}
        message = FAULTS[fault].format(**names, **texts, axis=axis, block_size=block_size)
        raise shape_inference.InferenceError(f"{version.full_name}: {message}")


def _shape(value: Any) -> Shape | None:
    if value is None or not value.tensor_type.HasField("shape"):
        return None
    return [each.dim_value if each.HasField("dim_value") else None for each in value.tensor_type.shape.dim]


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if each is None else str(each) for each in shape) + "]"
