"""The class of operators: a schema, how the operator is computed, and what its nodes mean (the operators themselves are in the
families' ``operators`` and in ``dialects``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..element_types import UINT8, ElementType
from .meaning import Meaning
from .schema import Overload, Schema, Tensor
from .standard_form import Builder

# An operator of ONNX: its name, its inputs and its attributes.
Like = tuple[str, Sequence[str], Mapping[str, Any]]


def code_type_of(element_type: ElementType, uint8_holds: ElementType | None) -> ElementType:
    """Return the element type of the codes in a tensor. A tensor of uint8 may hold codes of `uint8_holds`."""
    return uint8_holds if uint8_holds and element_type is UINT8 else element_type


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator(Schema):
    """A version of an operator: its schema, and what the package does with its nodes.

    Parameters
    ----------
    family : str
        The package of the operator. ``ort/nodes`` has a module of the same name, with the compute function.
    operation : str
        The family's name for the computation. Operators with the same computation have the same `operation`.
    call : callable
        ``call(*inputs, **attributes)`` with arrays, None for an omitted input, and values for all attributes. Returns an array,
        or a tuple of arrays if there are several outputs. It raises TypeError or ValueError.
    infer : callable
        ``infer(inputs, attributes)`` with a ``Tensor`` for each input, None for an omitted input, and values for all
        attributes. It returns a ``Tensor`` for each output, and raises ValueError for invalid attributes and shapes.
    faults : mapping of number to message
        The messages of the errors that a run may find. In a message, ``{NAME_shape}`` stands for the shape of the input NAME,
        and ``{NAME}`` for the value of the attribute NAME, an INT.
    formats : mapping of name to element type
        The number formats that the operator quantizes to or from, each with the element type of the tensors that hold it; None
        if no tensor does.
    select_format : callable, optional
        ``select_format(types, attributes)`` as `format_of`. Not set if the operator has only one format.
    column : str
        The type variable that the tables of the documentation have columns for. Their rows are formats.
    meaning : callable, optional
        ``meaning(inputs, attributes)`` with an ``Operand`` for each input, None for an omitted input, and values for all
        attributes. It returns the meaning of a node: ``Quantize``, ``Dequantize``, ``RoundTrip``, ``BlockRoundTrip``,
        ``DynamicQuantize`` or ``FakeQuantize``. It raises ValueError for invalid attributes. Not set if the nodes round inside
        their computation.
    standard_form : callable, optional
        ``standard_form(op, inputs, attributes)`` with a ``Builder``, an ``Operand`` for each input, None for an omitted input,
        and values for all attributes. It writes nodes of ONNX's standard operators that compute the same, and returns an
        ``Operand`` for each output. It raises ValueError for invalid attributes, and NotRewrittenError. Not set if there is no
        such form.
    like : callable, optional
        ``like(inputs, attributes)`` with the names of a node's inputs, and values for all attributes. It returns an operator of
        ONNX (name, inputs, attributes) whose output has the shape of y. Not set if y has the shape of the first input.
    attributes_of_shapes : callable, optional
        ``attributes_of_shapes(*shapes of inputs)``. It returns the attributes that follow from the shapes, among the attributes
        that are not always written.
    newer_name : str
        The name of the same operator in newer models, which the tables list instead. Empty if `name` is the newest one.
    uint8_holds : ElementType, optional
        The element type whose codes the operator finds in tensors of uint8. Models from before ONNX had the type write it so.
        Not set if uint8 means uint8.
    is_checked_at_load : bool
        Whether sessions call `infer` when they load a node, with the types and shapes known by then. This takes some time, so
        operators with hundreds of nodes in a model are checked in the run instead.
    runs_on_gpus : bool
        Whether the family has kernels for NVIDIA GPUs, and a module of its name in ``ort/gpu_nodes``.
    """

    family: str
    operation: str
    call: Callable[..., Any]
    infer: Callable[[Sequence[Tensor | None], Mapping[str, Any]], list[Tensor]]
    faults: Mapping[int, str]
    formats: Mapping[str, ElementType | None]
    select_format: Callable[[Sequence[str | None], Mapping[str, Any]], str] | None = None
    column: str = "T"
    meaning: Callable[[Sequence[Any], Mapping[str, Any]], Meaning[Any]] | None = None
    standard_form: Callable[[Builder[Any], Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None = None
    like: Callable[[Sequence[str], Mapping[str, Any]], Like] | None = None
    attributes_of_shapes: Callable[..., dict[str, Any]] | None = None
    newer_name: str = ""
    uint8_holds: ElementType | None = None
    is_checked_at_load: bool = False
    runs_on_gpus: bool = False

    def renamed(self, domain: str, name: str) -> Operator:
        """Return the same operator as older models name it."""
        return replace(self, domain=domain, name=name, newer_name=self.name)

    def format_of(self, types: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        """Return the name of a node's format, "?" if it is unknown. `types` has the name of each input's element type, None if
        it is unknown or the input is omitted."""
        return self.select_format(types, attributes) if self.select_format else next(iter(self.formats))

    @property
    def newest_name(self) -> str:
        return self.newer_name or self.name

    def with_code_types(self, overload: Overload) -> Overload:
        """Return an overload with the element types of the codes in its tensors."""
        return Overload(*(tuple(code_type_of(each, self.uint8_holds) for each in types) for types in overload))
