"""An overload of an operator, as it is registered with ONNX Runtime: the kernels of its nodes, which nodes share one, the
checks when a model is loaded, and the types of its outputs."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiling.lifetimes import keep_alive
from ..compiling.memory import release_compiler
from . import c_api, cached_nodes
from .c_api import Description, InferredTensor, OrtApi, OrtCustomOp, text_at
from .cached_nodes import Node, NodeKernel

# What is imported inside of functions is not needed by a process that finds all its kernels kept.
if TYPE_CHECKING:
    from ..declaration import Operator, Overload
    from ..element_types import ElementType

_dimensions = itertools.count()

# The attributes of a node, which tell kernels apart.
Attributes = tuple[tuple[str, Any], ...]


class Need(NamedTuple):
    """What the kernel of a node needs: an overload of an operator, by the names of element types, and all attributes."""

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    types: tuple[int, ...] | None  # the ONNXTensorElementDataType of each input, if the overload does not say it


def need_of(operator: Operator, overload: Overload, attributes: Attributes, types: tuple[int, ...] | None = None) -> Need:
    """Return the Need of nodes of an overload."""
    inputs, outputs = (tuple(element_type.name for element_type in side) for side in overload)
    return Need(operator.domain, operator.name, inputs, outputs, attributes, types)


def make_structure(description: Description, provider: str | None, functions: Mapping[str, int], python: int) -> OrtCustomOp:
    """Return a new OrtCustomOp for an execution provider, or for the CPU provider if that is None. `functions` has the
    addresses of the functions of ``callbacks``, and `python` is the address of a record PYTHON."""
    arrays = "input_types", "output_types", "input_characteristics", "output_characteristics"
    return keep_alive(
        OrtCustomOp(
            version=c_api.CUSTOM_OP_VERSION,
            **{name: address for name, address in functions.items() if name in c_api.CUSTOM_OP_FUNCTIONS},
            CreateKernelV2=functions["create"],
            # ONNX Runtime ignores the types in attributes when it chooses an overload.
            InferOutputShapeFn=functions["infer"] if description.infers else None,
            name=text_at(description.name.encode()),
            provider=text_at(provider.encode()) if provider else None,
            input_count=len(description.input_types),
            output_count=len(description.output_types),
            is_homogeneous=description.is_homogeneous,
            **{name: c_api.words_at(tuple(getattr(description, name))) for name in arrays},
            python=python,
        )
    )


@dataclass(eq=False)
class CustomOp:
    """An overload of an operator, as registered with ONNX Runtime."""

    api: int
    release: tuple[int, ...]
    description: Description
    structure: OrtCustomOp
    instead: str  # "", or the entry of options because of which no kernels are created
    is_on_gpu: bool
    # Nodes that are alike share a kernel. There are few, and they are never freed.
    kernels: dict[Attributes, NodeKernel] = field(default_factory=dict)

    @functools.cached_property
    def declared(self) -> tuple[Operator, Overload]:
        from ..catalog import OPERATORS
        from . import operators

        (operator,) = (known for known in OPERATORS.newest(self.description.domain) if known.name == self.description.name)
        return operator, operators.overloads(operator, self.release)[self.description.number]

    def create_kernel(self, info: int) -> int:
        """Compile the kernel of an OrtKernelInfo's node, so that its first run does not have to, and return the address of the
        node's state. Raise TypeError or ValueError if the node is invalid."""
        kernel = self._find_or_compile(self._read(info))
        # This is early enough: ONNX Runtime reads these functions only when a node runs or is destroyed.
        self.structure.KernelComputeV2 = kernel.compute
        if kernel.destroy:
            self.structure.KernelDestroy = kernel.destroy
        return self._prepare(kernel, info) if kernel.prepare else kernel.state

    def need_of(self, info: int) -> Need:
        """Return what an OrtKernelInfo's node needs. Raise TypeError or ValueError if the node is invalid."""
        from . import operators

        operator, overload = self.declared
        node = self._read(info)
        self._check(node)
        operators.state_of(operator, overload, node.attributes, compiles=False)  # raises ValueError if an attribute is invalid
        types = None if operator.is_homogeneous else tuple(number for number, _ in node.inputs or ())
        return need_of(operator, overload, node.attribute_items, types)

    def infer_outputs(self, context: int, thread: int) -> None:
        """Set the types and shapes of outputs in an OrtShapeInferContext. The API sets type and shape together, so if the rank
        of x is unknown, neither is set. `thread` is the one that loads the model."""
        from ..declaration import Tensor
        from .loading import is_undeclared

        operator, _ = self.declared
        known = [c_api.read_inferred_input(self.api, context, index) for index in range(len(operator.inputs))]
        x = known[0]
        if x is None or not x.shape:
            return
        inputs = [tensor and Tensor(_element_type(tensor.number), tensor.shape or None) for tensor in known]
        attributes = {each.name: c_api.read_inferred_attribute(self.api, context, each) for each in operator.attributes}
        for index, output in enumerate(operator.infer(inputs, attributes)):
            has_any_type = self.description.output_types[index] == c_api.ANY_TYPE
            if has_any_type and not is_undeclared(thread, operator.domain, operator.name):
                continue
            if output.element_type and output.shape:
                shape = [*output.shape]
                names = x.names if shape == x.shape else [b""] * len(shape)
                # The name of a dimension that has neither size nor name, and that may differ from all others.
                own = (b"" if size is not None else b"unknown_of_quark_numba_%d" % next(_dimensions) for size in shape)
                names = [name or new for name, new in zip(names, own, strict=True)]
                inferred = InferredTensor(c_api.type_number(output.element_type), shape, names)
                c_api.set_inferred_output(self.api, context, index, inferred)

    def _read(self, info: int) -> Node:
        """Return what is known of an OrtKernelInfo's node."""
        description, get_type = self.description, OrtApi.KernelInfo_GetOutputTypeInfo
        return Node(
            self.release,
            description.domain,
            description.name,
            description.number,
            {attribute[0]: c_api.read_attribute(self.api, info, *attribute) for attribute in description.attributes},
            c_api.read_inputs(self.api, info) if description.is_checked else None,
            [
                c_api.read_tensor(self.api, get_type, info, index)[0] if number == c_api.ANY_TYPE else None
                for index, number in enumerate(description.output_types)
            ],
        )

    def _check(self, node: Node) -> None:
        """Check the types and shapes of inputs, as far as they are known, and the types of outputs of any type: a tensor of
        another type may have too little memory. Raise TypeError or ValueError if one is invalid."""
        from ..declaration import Tensor
        from ..element_types import UINT8, names

        operator, overload = self.declared
        inputs = []
        for index, (number, shape) in enumerate(node.inputs or ()):
            element_type = _element_type(number)
            if element_type is None:
                raise TypeError(f"input {index} is not a tensor of an element type that {operator.full_name} takes")
            inputs.append(Tensor(element_type, shape))
        if node.inputs is not None:
            operator.infer(inputs, node.attributes)
        for index, declared in enumerate(node.outputs):
            allowed = [overload.outputs[index], UINT8]
            if declared is not None and declared not in map(c_api.type_number, allowed):
                raise TypeError(f"{operator.outputs[index].name} is declared as another type; expected {names(allowed)}")

    def _find_or_compile(self, node: Node) -> NodeKernel:
        """Return a cached kernel, or the kernel of all nodes with this operator, these types and attributes."""
        if not self.is_on_gpu and (kept := cached_nodes.find(node, self.api)):
            return kept
        self._check(node)
        items = node.attribute_items
        if items not in self.kernels:
            self.kernels[items] = self._compile(node.attributes)
        if not self.is_on_gpu:
            cached_nodes.keep(node, *self.declared)
        return self.kernels[items]

    def _compile(self, attributes: Mapping[str, Any]) -> NodeKernel:
        from . import operators

        operator, overload = self.declared
        make = operators.gpu_state_of if self.is_on_gpu else operators.state_of
        state = keep_alive(make(operator, overload, attributes))
        state["api"], state["has_shape_reference"] = self.api, c_api.has_shape_reference(self.release)
        state["messages"] = c_api.texts_at(operators.messages_of(operator))
        functions = operators.node_functions(operator.family, self.is_on_gpu)
        release_compiler()
        return NodeKernel(int(state.ctypes.data), *functions)

    def _prepare(self, kernel: NodeKernel, info: int) -> int:
        """Return the address of a node's state, as the family's `prepare` does: the address of the kernel's state, or of a
        state for this node alone."""
        constants = c_api.read_constants(self.api, info, len(self.description.input_types))
        words = [word for pair in constants for word in pair]
        prepare = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)(kernel.prepare)
        address = prepare(kernel.state, (c_int64 * len(words))(*words))
        if not address:
            raise MemoryError("not enough memory for the weights")
        return int(address)


def _element_type(number: int) -> ElementType | None:
    """Return the element type of an ONNXTensorElementDataType, or None if the package does not have it."""
    from ..element_types import ELEMENT_TYPES

    return next((element_type for element_type in ELEMENT_TYPES if c_api.type_number(element_type) == number), None)
