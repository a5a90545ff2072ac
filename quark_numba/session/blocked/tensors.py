"""The layout of each tensor of a graph while its nodes are rewritten, some of them on blocks of channels: where tensors are
reordered, and the reasons why they are not in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, shape_inference

from ...declaration.reasons import NotRewrittenError, require, stays_if
from ...element_types import FLOAT32
from ...element_types.tensors import from_tensor_proto, to_tensor_proto
from ...errors import errors_ignored
from ...linear.versions import OWN_DOMAIN
from ...models import model_files
from ...models.protos import attributes_of, nodes, used_names
from ...rewriting.stand_ins import StandIns
from .arrays import NCHWC
from .grids import grids_of

# Initializers of at most this many elements may be shapes, on which other shapes depend.
_MAX_ELEMENTS = 128

# The operators between numbers and codes.
QUANTIZE, DEQUANTIZE = (OWN_DOMAIN, "Quantize"), (OWN_DOMAIN, "Dequantize")

# ONNX Runtime reorders only tensors whose number of channels is a multiple of this.
ALIGNMENT = 4
NOT_ALIGNED = f"ONNX Runtime reorders only numbers of channels that are multiples of {ALIGNMENT}"


class NotInBlocksError(NotRewrittenError):
    """The error if no input of a node is in blocks. Nodes that need all inputs in blocks raise it too. Users see this reason
    only for regions, which need one input in blocks."""

    def __init__(self) -> None:
        super().__init__("no input is in blocks")


class Blocked(NamedTuple):
    """A tensor in blocks.

    `name` is its name, and `channels` the number of channels before padding. `has_zeros` says whether the padding is known to
    be 0. `is_number` says whether no element can be NaN."""

    name: str
    channels: int
    has_zeros: bool
    is_number: bool = False


class BlockedTensors:
    """The nodes written so far, and the layout of each tensor.

    `tensors` are the tensors in blocks, by the name of the same tensor in ONNX's layout. `grids` are those of tensors in ONNX's
    layout, by name. `codes` are the tensors in blocks of the codes of some of these, and `offered` those that would have to be
    quantized. `convolutions` are the nodes
    ``IntegerConv``, by the name of their output. `uses` counts the uses of each name. `constants` are the initializers that
    are not graph inputs, which may be in files of `folder`. `nodes` and `new_constants` are the result. With a folder, new
    constants are written to a file there."""

    def __init__(self, model: onnx.ModelProto, lanes: int, folder: str | None) -> None:
        graph = model.graph
        self.lanes, self._folder = lanes, folder
        self.shapes = _inferred_shapes(model)
        self.shapes |= {value.name: shape for value in (*graph.value_info, *graph.input) if (shape := _dimensions(value))}
        inputs = {value.name for value in graph.input}
        self.constants = {value.name: value for value in graph.initializer if value.name not in inputs}
        self.grids = grids_of(graph.node, self.number)
        self.codes: dict[str, str] = {}
        self.offered: dict[str, str] = {}
        self.convolutions: dict[str, onnx.NodeProto] = {}
        self.uses = Counter(name for node in graph.node for name in used_names(node))
        self.uses.update(value.name for value in graph.output)
        self.tensors: dict[str, Blocked] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.new_constants: list[onnx.TensorProto] = []
        self._causes: dict[str, str] = {}  # for a tensor that is not in blocks, the first node of its branch that was left out
        self._producers = {name: node for node in graph.node for name in node.output}
        self._plain: set[str] = set()  # names of the tensors in blocks that exist in ONNX's layout as well
        self._constants_in_blocks: dict[tuple[str, str], str] = {}
        names = [name for node in nodes(graph) for name in (node.name, *node.input, *node.output)]
        names += [value.name for value in (*graph.input, *graph.initializer)]
        self._new = "_" * (1 + max(map(len, names), default=0))  # no name of the graph is that long
        self._count = 0

    def reorder_output(self, name: str) -> None:
        """Append a reorder to ONNX's layout if a tensor exists only in blocks."""
        tensor = self.tensors.get(name)
        if tensor and name not in self._plain:
            self._plain.add(name)
            self.append("ReorderOutput", [tensor.name], name, channels=tensor.channels)

    def append_unchanged(self, node: onnx.NodeProto, error: NotRewrittenError) -> str:
        """Append the node unchanged, in ONNX's layout. Return the reason, with the cause upstream if no input is in blocks."""
        reason, cause = error.reason, f"{node.op_type}: {error.reason}"
        if isinstance(error, NotInBlocksError):
            cause = next((self._causes[name] for name in node.input if name in self._causes), "")
            reason = f"{reason} ({cause})" if cause else reason
        if cause:
            self._causes |= dict.fromkeys(node.output, cause)
        for name in used_names(node):
            self.reorder_output(name)
        self.nodes.append(node)
        return reason

    def in_blocks(self, name: str, channels: int, *, zeros: bool = False) -> str:
        """Return the name of a tensor in blocks. Append a reorder if it is not in blocks yet or, with `zeros`, if its padding
        may not be 0. Raise NotRewrittenError if ONNX Runtime does not reorder so many channels."""
        tensor = self.tensors.get(name)
        if tensor and (tensor.has_zeros or not zeros):
            return tensor.name
        stays_if(channels % ALIGNMENT, NOT_ALIGNED)
        if tensor:
            self.reorder_output(name)
        reordered = Blocked(self._name(), channels, True)
        transpose = self._producers.get(name)
        is_transpose = transpose is not None and (transpose.domain, transpose.op_type) == ("", "Transpose")
        if transpose and is_transpose and attributes_of(transpose).get("perm") == [0, 3, 1, 2]:
            self.append("ReorderInput", [transpose.input[0]], reordered.name, channels_last=1)
        else:
            self.append("ReorderInput", [name], reordered.name)
        if not tensor:
            self._plain.add(name)
        self.tensors[name] = reordered
        return reordered.name

    def already_in_blocks(self, name: str) -> Blocked:
        """Return a tensor that is in blocks already. Raise NotInBlocksError if it is not."""
        if name not in self.tensors:
            raise NotInBlocksError
        return self.tensors[name]

    def channels(self, name: str) -> int:
        """Return the number of channels of a tensor or a constant. Raise NotRewrittenError if the number is not known, if a
        tensor is not known to have four dimensions, or if a constant has more than four."""
        if name in self.tensors:
            return self.tensors[name].channels
        if name in self.constants:
            dims = self.constants[name].dims
            stays_if(len(dims) > 4, "a constant has more than four dimensions")
            return dims[-3] if len(dims) > 2 else 1
        shape = require(self.shapes.get(name), "the shape of an input is not known")
        stays_if(len(shape) != 4, "an input does not have four dimensions")
        return require(shape[1], "the number of channels is not known")

    def array(self, name: str) -> NDArray[Any]:
        """Return the value of a constant."""
        return from_tensor_proto(self.constants[name], self._folder or "")

    def dims_of_weights(self, node: onnx.NodeProto) -> Sequence[int]:
        """Return the shape of a convolution's weights. Raise NotRewrittenError unless weights and bias are constants, and the
        weights float32 of four dimensions."""
        parameters = node.input[1:]
        are_constants = len(parameters) in (1, 2) and all(name in self.constants for name in parameters)
        stays_if(not are_constants, "its weights are not constants")
        weights = self.constants[parameters[0]]
        is_float32 = weights.data_type == FLOAT32.number
        stays_if(not is_float32 or len(weights.dims) != 4, "its weights are not float32, or do not have four dimensions")
        return weights.dims

    def number(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant of one element, or None for any other tensor."""
        return self.array(name) if name in self.constants and np.prod(self.constants[name].dims) == 1 else None

    def add_constant(self, array: NDArray[Any]) -> str:
        """Return the name of a new constant."""
        name = self._name()
        tensor = to_tensor_proto(np.ascontiguousarray(array), name)
        if self._folder is not None:
            tensor = model_files.appended(tensor, self._folder, "blocked.onnx.data")
        self.new_constants.append(tensor)
        return name

    def _name(self) -> str:
        self._count += 1
        return f"{self._new}{self._count}"

    def append(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        node = helper.make_node(operator, inputs, [output], f"{operator} of {output}", domain=NCHWC, **attributes)
        self.nodes.append(node)

    def replace(
        self, node: onnx.NodeProto, inputs: list[str], domain: str, channels: int | Sequence[int], has_zeros: bool
    ) -> onnx.NodeProto:
        """Return a new node that computes the same on blocks. It is appended to the nodes. `channels` is the number of channels
        of the output, or of each output."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        counts = [channels] if isinstance(channels, int) else channels
        names = [self._name() for _ in counts]
        copy.input[:], copy.output[:], copy.domain = inputs, names, domain
        self.nodes.append(copy)
        for output, name, count in zip(node.output, names, counts, strict=True):
            self.tensors[output] = Blocked(name, count, has_zeros or count % self.lanes == 0)
        return copy

    def keep_codes(self, output: str, codes: str, channels: int) -> None:
        """Note the tensor of the codes of an output, in blocks. A node is appended that dequantizes them; it remains if another
        node uses its output."""
        numbers = self._convert(DEQUANTIZE, output, codes)
        self.codes[output] = codes
        self.tensors[output] = Blocked(numbers, channels, channels % self.lanes == 0, is_number=True)

    def offer_codes(self, output: str) -> None:
        """Append a node that quantizes an output to its codes, if it is on a grid. The node remains if another node uses the
        codes."""
        if output in self.grids:
            self.offered[output] = self._convert(QUANTIZE, output, self.tensors[output].name)

    def _convert(self, kind: tuple[str, str], of: str, x: str) -> str:
        """Append a node that turns x, a tensor in blocks, to codes or to numbers of a grid. Return the name of its output."""
        domain, operator = kind
        scale, zero_point = self.grids[of]
        parameters = [self.add_constant(np.array(scale, np.float32)), self.add_constant(np.array(zero_point, np.uint8))]
        result = self._name()
        self.nodes.append(helper.make_node(operator, [x, *parameters], [result], domain=domain))
        return result

    def constant(self, name: str, use: str, make: Callable[[NDArray[Any]], NDArray[Any]]) -> str:
        """Return the name of a constant as `make` rearranges it. `make` is called once for each `use`."""
        key = name, use
        if key not in self._constants_in_blocks:
            self._constants_in_blocks[key] = self.add_constant(make(self.array(name)))
        return self._constants_in_blocks[key]


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, list[int | None] | None]:
    """Return the shapes that onnx infers, by name, or no shapes if onnx fails. ONNX Runtime does not know the shapes of the
    results of regions. A conversion to onnx_ir, to use the inference of the passes, would take more than twice as long."""
    skeleton = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    graph = skeleton.graph
    graph.name = "shapes"
    graph.input.extend(model.graph.input)
    inputs = {proto.name for proto in model.graph.input}
    for proto in model.graph.initializer:
        if proto.name in inputs:
            continue  # sessions may be fed with another shape
        if np.prod(proto.dims) <= _MAX_ELEMENTS:
            graph.initializer.append(proto)
        else:
            graph.input.append(helper.make_tensor_value_info(proto.name, proto.data_type, proto.dims))
    graph.node.extend(StandIns().nodes(model.graph.node, {}))
    for node in graph.node:
        if (node.domain, node.op_type) == ("com.microsoft", "FusedConv"):
            node.domain, node.op_type = "", "Conv"
            kept = [proto for proto in node.attribute if not proto.name.startswith("activation")]
            del node.attribute[:]
            node.attribute.extend(kept)
    with errors_ignored():
        inferred = shape_inference.infer_shapes(skeleton, data_prop=True).graph
        return {proto.name: _dimensions(proto) for proto in inferred.value_info}
    return {}


def _dimensions(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """Return the dimensions of a value, with None for an unknown one, or None if the rank is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [dimension.dim_value if dimension.dim_value > 0 else None for dimension in tensor.shape.dim]
