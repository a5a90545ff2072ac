"""ONNX schemas of the package's operators, made from their declarations: which are registered with onnx, and the errors of its
shape inference."""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import defs, helper, shape_inference

from ..catalog import OPERATORS
from ..compiling.lock import run_in_creation
from ..declaration import Attribute, Operator, Parameter, Shape, Tensor
from ..element_types import ElementType
from ..element_types.operands import find_any
from ..errors import counted

_PARAMETER = defs.OpSchema.FormalParameter
_OPTIONS = {
    "required": defs.OpSchema.FormalParameterOption.Single,
    "optional": defs.OpSchema.FormalParameterOption.Optional,
    "variadic": defs.OpSchema.FormalParameterOption.Variadic,
}


def register_schemas() -> None:
    """Register the operators of all dialects, and those that `optimize` writes, with ``onnx.checker`` and
    ``onnx.shape_inference``. They are the operators that ``quark-numba types`` prints in domains other than that of ONNX.

    The checker then refuses models with other element types, inputs or attributes. Shape inference infers the element types and
    shapes of outputs. It raises ``onnx.shape_inference.InferenceError``, in strict mode or not, for wrong element types, wrong
    shapes of inputs, wrong values of attributes, and an axis out of range, as far as they are known.

    Before onnx 1.19 schemas from Python have no inference functions. Then the type of y is known only with check_type and a
    zero point, and the shape of y never. Strict mode fails if a later node needs a type or shape that is not known.

    Any number of calls from any number of threads have the effect of one call. Schemas of these names that are registered
    already stay as they are.
    """
    run_in_creation(_register)


def _register() -> None:
    # When it is imported, it builds a table of all schemas by name. It fails if two domains have an operator of one name.
    importlib.import_module("onnx.reference.op_run")
    for operator in OPERATORS:
        if operator.domain and not defs.has(operator.name, operator.domain):
            defs.register_schema(schema(operator))
            # onnx 1.19 to 1.22 would release the inference functions after Python has ended, and crash or hang.
            atexit.register(_deregister, operator)


def _deregister(operator: Operator) -> None:
    if defs.has(operator.name, operator.domain):
        defs.deregister_schema(operator.name, operator.since_version, operator.domain)


def schema(operator: Operator) -> defs.OpSchema:
    """Return the schema of an operator, without registering it."""
    parameters = (*operator.inputs, *operator.outputs)
    users = {variable: [operand.name for operand in parameters if operand.variable == variable] for variable in operator.types}
    made = defs.OpSchema(
        operator.name,
        operator.domain,
        operator.since_version,
        operator.doc,
        inputs=[_parameter(parameter, fewest=not place) for place, parameter in enumerate(operator.inputs)],
        outputs=list(map(_parameter, operator.outputs)),
        type_constraints=[
            (variable, _type_strings(element_types), f"Element types of {', '.join(users[variable])}.")
            for variable, element_types in operator.types.items()
        ],
        attributes=list(map(_attribute, operator.attributes)),
    )
    if hasattr(made, "set_type_and_shape_inference_function"):
        made.set_type_and_shape_inference_function(lambda context: _infer(operator, context))
    return made


def _parameter(parameter: Parameter, fewest: int = 1) -> Any:
    return _PARAMETER(
        parameter.name,
        parameter.variable,
        parameter.doc,
        param_option=_OPTIONS[parameter.option],
        is_homogeneous=parameter.is_homogeneous,
        min_arity=fewest,  # of a variadic one
    )


def _attribute(attribute: Attribute) -> Any:
    name, kind, doc = attribute.name, attribute.kind, attribute.doc
    if attribute.default is None:
        return defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), doc, required=True)
    number = onnx.AttributeProto.AttributeType.Value(kind)
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, attribute.default, attr_type=number), doc)


def _type_strings(element_types: Iterable[ElementType]) -> list[str]:
    """Return the type strings of the element types that this version of onnx knows."""
    known = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return [f"tensor({known[element_type.number].lower()})" for element_type in element_types if element_type.number in known]


def _infer(operator: Operator, context: Any) -> None:
    """Set the inferred types and shapes of the outputs. Raise InferenceError if the node is not valid."""
    try:
        protos = [context.get_input_type(i) if context.has_input(i) else None for i in range(context.get_num_inputs())]
        if operator.most_inputs is not None and not operator.fewest_inputs <= len(protos) <= operator.most_inputs:
            expected = " or ".join(map(str, range(operator.fewest_inputs, operator.most_inputs + 1)))
            raise ValueError(f"it has {counted(len(protos), 'input')}; expected {expected}")
        operator.check_types([None if proto is None else _element_type(proto.tensor_type.elem_type) for proto in protos])
        inputs = [None if proto is None else Tensor(find_any(proto.tensor_type.elem_type), _shape(proto)) for proto in protos]
        outputs = operator.infer(inputs, _attributes(operator, context))
    except (TypeError, ValueError) as error:
        raise shape_inference.InferenceError(f"{operator.full_name}: {error}") from None
    for index, output in enumerate(outputs):
        if output.element_type:
            context.set_output_type(index, _type_proto(output, protos))


def _element_type(number: int) -> ElementType | str | None:
    """Return the element type of this number; its name if the package lacks it, and None if the type is not known."""
    return find_any(number) or (onnx.TensorProto.DataType.Name(number).lower() if number else None)


def _attributes(operator: Operator, context: Any) -> dict[str, Any]:
    """Return values for all attributes. Raise ValueError if an attribute is missing or of the wrong kind."""
    attributes = {}
    for attribute in operator.attributes:
        proto = context.get_attribute(attribute.name)
        if proto is None:
            continue
        kind = onnx.AttributeProto.AttributeType.Name(proto.type)
        if kind != attribute.kind:
            raise ValueError(f"attribute {attribute.name} is a {kind}; expected {attribute.kind}")
        value = helper.get_attribute_value(proto)
        attributes[attribute.name] = attribute.value(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return operator.values(attributes)


def _shape(proto: Any) -> Shape | None:
    if not proto.tensor_type.HasField("shape"):
        return None
    return [dimension.dim_value if dimension.HasField("dim_value") else None for dimension in proto.tensor_type.shape.dim]


def _type_proto(output: Tensor, inputs: list[Any]) -> onnx.TypeProto:
    """Return the type of an output as a TypeProto. If the output has the shape of an input, its dimensions keep their names."""
    assert output.element_type
    result = helper.make_tensor_type_proto(output.element_type.number, output.shape)
    for tensor in inputs:
        if tensor is not None and output.shape is not None and _shape(tensor) == output.shape:
            result.tensor_type.shape.CopyFrom(tensor.tensor_type.shape)
            break
    return result
