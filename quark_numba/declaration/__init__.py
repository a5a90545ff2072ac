"""The declaration of an operator: its types, inputs and attributes, how it is computed, and what its nodes mean.

Registration with ONNX Runtime, schemas, the reference evaluator, the optimizer, the command and the tables of the documentation
read the declarations. None of them knows an operator by name."""

from .meaning import Affine, AnyOperand, BlockRoundTrip, Dequantize, DynamicQuantize, FakeQuantize, Meaning, Quantize, RoundTrip
from .operator import Operator
from .schema import Attribute, Kind, Option, Overload, Parameter, Shape, Tensor, known, shape_text
from .standard_form import Builder

__all__ = [
    "Affine",
    "AnyOperand",
    "Attribute",
    "BlockRoundTrip",
    "Builder",
    "Dequantize",
    "DynamicQuantize",
    "FakeQuantize",
    "Kind",
    "Meaning",
    "Operator",
    "Option",
    "Overload",
    "Parameter",
    "Quantize",
    "RoundTrip",
    "Shape",
    "Tensor",
    "known",
    "shape_text",
]
