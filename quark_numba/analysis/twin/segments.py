"""A quantized model in segments: sessions of the nodes between its quantized tensors, where a segment begins, its session's
options, and what is computed again after a change. This package rounds the tensors.

One set of sessions computes the quantized model, the float model and any mix of the two, and returns each tensor. After a
change only the downstream segments run again. Each session runs on one thread and fuses nothing, so ONNX Runtime computes each
value in its own node, and batches can run side by side."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.external_data_helper import uses_external_data

from ...declaration.reasons import NotRewrittenError
from ...element_types.tensors import from_tensor_proto
from ...errors import ModelError, errors_named
from ...models import model_files
from ...models.protos import in_memory, used_names
from ...rewriting.nodes import have_same_bits
from ...running import sessions
from ...running.inputs import inputs_of
from .float_twin import Twin
from .forms import Array
from .quantizers import Quantizer

Rounding = Callable[[Array], Array]

# The rounding function of each quantizer that rounds. All other quantizers pass their tensor on.
Config = Mapping[Quantizer, Rounding]


class StoppedError(Exception):
    """The work is not finished, because another batch failed or Ctrl-C was pressed."""


class Segment:
    """A session of connected nodes between quantized tensors; two sessions, float and quantized, if subgraphs quantize."""

    def __init__(self, inputs: list[str], outputs: list[str], session: Any, quantized: Any) -> None:
        self.inputs, self.outputs, self._session, self._quantized = inputs, outputs, session, quantized
        nodes = [*session.get_inputs(), *session.get_outputs()]
        self._numpy = all(sessions.dtype_of(value.type) is not None for value in nodes)

    def run(self, values: Mapping[str, Any], *, quantized: bool) -> list[Any]:
        session = self._quantized if quantized else self._session
        feeds = {name: values[name] for name in self.inputs}
        with errors_named("the model does not run", with_type=False):
            if self._numpy:
                return session.run(self.outputs, feeds)
            return sessions.run_on_values(session, self.outputs, feeds)


# A part of a model: nodes, or the quantizer of an activation.
Part = Segment | Quantizer


class Segments:
    """The parts of a model in the order of execution."""

    def __init__(self, twin: Twin, providers: Sequence[str] | None = None) -> None:
        self.twin = twin
        self.outputs = [output.name for output in twin.model.graph.output]
        # The rounded constants, which exist before parts run.
        self._weights = {name: each for each in twin.quantizers if each.kind == "weight" for name in each.ys}
        builder = _Builder(twin, providers)
        self.inputs = [model_input for model_input in builder.inputs if model_input.name not in builder.initializers]
        self._constants = builder.constant_outputs()
        self.parts = list(builder.parts())
        self._last_used = self._names_last_used()
        self.stopped = threading.Event()

    def _names_last_used(self) -> list[list[str]]:
        """Return for each part the names of the values that no later part needs."""
        last: dict[str, int] = {}
        for index, part in enumerate(self.parts):
            for name in (part.name, *part.ys) if isinstance(part, Quantizer) else (*part.inputs, *part.outputs):
                last[name] = index
        names: list[list[str]] = [[] for _ in self.parts]
        for name, index in last.items():
            if name not in self.outputs and name not in self._weights:
                names[index].append(name)
        return names

    # Runs.

    @property
    def quantized(self) -> dict[Quantizer, Rounding]:
        """The config in which every quantizer rounds, as in the quantized model."""
        return {quantizer: quantizer.apply for quantizer in self.twin.quantizers}

    def start(self, feed: Mapping[str, Array], config: Config) -> dict[str, Any]:
        """Return the values that exist before the first part runs."""
        values = _ValuesByName(self._weights, config)
        values.update(self._constants, **{model_input.name: feed[model_input.name] for model_input in self.inputs})
        return values

    def run(self, feed: Mapping[str, Array], config: Config, *, quantized: bool) -> dict[str, Any]:
        """Return the outputs. `quantized` says whether subgraphs are quantized."""
        values = self.start(feed, config)
        for index, part in enumerate(self.parts):
            self.advance(part, values, config, quantized=quantized)
            for name in self._last_used[index]:
                values.pop(name, None)
        return {name: values[name] for name in self.outputs}

    def advance(self, part: Part, values: MutableMapping[str, Any], config: Config, *, quantized: bool) -> None:
        if self.stopped.is_set():
            raise StoppedError
        if isinstance(part, Quantizer):
            y = _clipped(values[part.name], part)
            rounding = config.get(part)
            try:
                values.update(dict.fromkeys(part.ys, y if rounding is None else rounding(y)))
            except NotRewrittenError as error:
                raise ModelError(f"tensor {part.name}: {error}") from None
        else:
            values.update(zip(part.outputs, part.run(values, quantized=quantized), strict=True))

    def lockstep(
        self,
        feed: Mapping[str, Array],
        see: Callable[[Quantizer, Array, Array, Array], None],
        *,
        float_feed: Mapping[str, Array] | None = None,
        keep: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the outputs of the quantized model and of the float model, both computed part by part, or all values if `keep`
        is True. `see` takes three arrays for each rounded activation: the float model's tensor, and the quantized model's
        before and after rounding. The float model has the inputs of `float_feed`, if they differ."""
        config = self.quantized
        values, floats = self.start(feed, config), self.start(feed if float_feed is None else float_feed, {})
        for index, part in enumerate(self.parts):
            self.advance(part, values, config, quantized=True)
            self.advance(part, floats, {}, quantized=False)
            if isinstance(part, Quantizer):
                see(part, floats[part.ys[0]], _clipped(values[part.name], part), values[part.ys[0]])
            for name in () if keep else self._last_used[index]:
                values.pop(name, None)
                floats.pop(name, None)
        return values, floats

    def rerun(self, base: dict[str, Any], config: Config, changed: Iterable[Quantizer], *, quantized: bool) -> dict[str, Any]:
        """Return the outputs after a change of config. `base` holds all values before the change, and `changed` are the
        quantizers whose rounding differs. Only the parts downstream of the changed quantizers are computed."""
        pending = set(changed)
        new = _ValuesByName({name: quantizer for name, quantizer in self._weights.items() if quantizer in pending}, config)
        values = ChainMap[str, Any](new, base)  # base stays as it is: only the first map is written to
        for index, part in enumerate(self.parts):
            if isinstance(part, Quantizer):
                if part in pending or part.name in new:
                    self.advance(part, values, config, quantized=quantized)
                    y = new[part.ys[0]]
                    if isinstance(y, np.ndarray) and have_same_bits(y, base[part.ys[0]]):
                        for name in part.ys:
                            del new[name]
            elif any(name in new for name in part.inputs):
                self.advance(part, values, config, quantized=quantized)
            for name in self._last_used[index]:
                new.pop(name, None)
        return {name: values[name] for name in self.outputs}


class _ValuesByName(dict[str, Any]):
    """Values by name. Weights are rounded, and read from files, each time that they are used: not all fit into memory."""

    def __init__(self, weights: Mapping[str, Quantizer], config: Config) -> None:
        super().__init__()
        self.weights, self.config = weights, config

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.weights

    def __missing__(self, name: str) -> Array:
        quantizer = self.weights[name]
        rounding = self.config.get(quantizer)
        if quantizer.floats is None or rounding == quantizer.apply:
            return quantizer.rounded
        weight = quantizer.weight
        return (weight if rounding is None else rounding(weight)).astype(quantizer.dtype, copy=False)


def _clipped(x: Array, quantizer: Quantizer) -> Array:
    return x if quantizer.clip is None else np.clip(x, *(x.dtype.type(end) for end in quantizer.clip))


class _Builder:
    """The builder of the parts of the float twin: quantizers, and segments of all other nodes."""

    def __init__(self, twin: Twin, providers: Sequence[str] | None) -> None:
        self.twin, self.graph, self.providers = twin, twin.model.graph, providers
        self.initializers = {initializer.name: initializer for initializer in self.graph.initializer}
        # Each segment has copies of the constant nodes that it uses.
        self.constants = {node.output[0]: node for node in self.graph.node if node.op_type == "Constant" and not node.domain}
        session = self._session_of_types()
        self.inputs = inputs_of(session)
        self.types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}

    def _session_of_types(self) -> Any:
        """Return a session that does not run. It has the types of all values, which the inputs of segments need."""
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self.twin.model)
        in_files = {tensor.name: tensor for tensor in tapped.graph.initializer if uses_external_data(tensor)}
        for values in (tapped.graph.initializer, tapped.graph.input):
            in_memory = [value for value in values if value.name not in in_files]
            del values[:]
            values.extend(in_memory)
        # For large tensors types are enough.
        tapped.graph.input.extend(
            helper.make_tensor_value_info(name, tensor.data_type, tensor.dims) for name, tensor in in_files.items()
        )
        present = {output.name for output in self.graph.output}
        names = dict.fromkeys(name for node in self.graph.node for name in node.output if name and name not in present)
        tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        return _session(tapped, "the model without its quantization nodes", any(node.domain for node in self.graph.node))

    def constant_outputs(self) -> dict[str, Array]:
        arrays = {}
        for output in self.graph.output:
            tensor = self.initializers.get(output.name)
            if output.name in self.constants:
                tensor = next((proto.t for proto in self.constants[output.name].attribute if proto.name == "value"), None)
            if tensor is not None:
                with errors_named("the model", with_type=False):
                    arrays[output.name] = from_tensor_proto(in_memory(tensor, self.twin.folder))
        return arrays

    def parts(self) -> Iterator[Part]:
        groups = self._groups()
        used_by: dict[str, set[int]] = {}
        for place, group in enumerate(groups):
            for name in [group.name] if isinstance(group, Quantizer) else self._used(group):
                used_by.setdefault(name, set()).add(place)
        for output in self.graph.output:
            used_by.setdefault(output.name, set()).add(-1)
        for place, group in enumerate(groups):
            if isinstance(group, Quantizer):
                yield group
            else:
                made = (name for index in group for name in self.graph.node[index].output if name)
                yield self._segment(group, [name for name in made if used_by.get(name, set()) - {place}])

    def _groups(self) -> list[Quantizer | list[int]]:
        """Return the parts: quantized activations, and segments as lists of node indices. A node joins the part that the last
        of its inputs comes from. If that is a quantizer, or if no input comes from a part, the node begins a new segment."""
        quantizers = {name: quantizer for quantizer in self.twin.quantizers for name in quantizer.ys}
        groups: list[Quantizer | list[int]] = []
        places: dict[str, int] = {}  # index of the group that each value comes from
        for index, node in enumerate(self.graph.node):
            quantizer = quantizers.get(node.output[0]) if node.output else None
            if quantizer is not None:
                if quantizer.kind == "activation" and quantizer.ys[0] not in places:
                    groups.append(quantizer)
                    places.update(dict.fromkeys(quantizer.ys, len(groups) - 1))
            elif not node.output or node.output[0] not in self.constants:
                last = max((places.get(name, -1) for name in used_names(node)), default=-1)
                group = groups[last] if last >= 0 else None
                if not isinstance(group, list):
                    last, group = len(groups), []
                    groups.append(group)
                group.append(index)
                places.update(dict.fromkeys(node.output, last))
        return groups

    def _used(self, group: list[int]) -> list[str]:
        """Return the names of the values from outside the segment that its nodes use, in the float twin or in the quantized
        model."""
        nodes = [node for index in group for node in (self.graph.node[index], self.twin.kept.get(index)) if node is not None]
        made = {name for node in nodes for name in node.output}
        return list(dict.fromkeys(name for node in nodes for name in used_names(node) if name not in made))

    def _segment(self, group: list[int], outputs: list[str]) -> Segment:
        used = self._used(group)
        inputs = [name for name in used if name not in self.initializers and name not in self.constants]
        has_two = any(index in self.twin.kept for index in group)

        def session_of(nodes: list[onnx.NodeProto]) -> Any:
            graph = helper.make_graph(
                [*(self.constants[name] for name in used if name in self.constants), *nodes],
                "segment",
                [onnx.ValueInfoProto(name=name, type=_type_proto(self.types[name])) for name in inputs],
                [helper.make_empty_tensor_value_info(name) for name in outputs],
                [self.initializers[name] for name in used if name in self.initializers],
            )
            model = self.twin.model
            segment = helper.make_model(graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4))
            name = f"the nodes {', '.join(node.name for node in nodes)}"
            has_own_operators = has_two or any(node.domain for node in nodes)
            options: Any = {"folder": self.twin.folder, "providers": self.providers}
            return _session(segment, name, has_own_operators, **options)

        session = session_of([self.graph.node[index] for index in group])
        if not has_two:
            return Segment(inputs, outputs, session, session)
        quantized = session_of([self.twin.kept.get(index, self.graph.node[index]) for index in group])
        return Segment(inputs, outputs, session, quantized)


def _type_proto(text: str) -> onnx.TypeProto:
    """Return the type that a text names, such as "tensor(float)", "seq(tensor(int64))" or "optional(...)"."""
    kind, _, inner = text.removesuffix(")").partition("(")
    result = onnx.TypeProto()
    if kind == "tensor":
        result.tensor_type.elem_type = onnx.TensorProto.DataType.Value(inner.upper())
    elif kind == "seq":
        result.sequence_type.elem_type.CopyFrom(_type_proto(inner))
    elif kind == "optional":
        result.optional_type.elem_type.CopyFrom(_type_proto(inner))
    else:
        raise ModelError(f"a value is a {text}; expected a tensor or a sequence of tensors")
    return result


def _session(model: onnx.ModelProto, name: str, has_own_operators: bool, **options: Any) -> Any:
    with model_files.session_source(model) as source:
        return sessions.create_session(source, name, has_own_operators=has_own_operators, threads=1, is_part=True, **options)
