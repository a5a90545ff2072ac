"""The smallest part of a graph that still shows a finding, and its text."""

import onnx
from generated_graphs import used_names

import quark_numba


def smallest(names, part_of, shows):
    """Return the smallest part that shows a finding, or None if only the whole graph does. Nodes are cut off at the end of the
    graph, then at the beginning. `names` has the values that may be the output, the first ones preferred, and
    ``part_of(fed, output)`` a part that is fed with some values, or None."""

    def part_that_shows(fed, output):
        part = part_of(fed, output)
        return part if part and shows(part) else None

    parts = ((name, part_that_shows([], name)) for name in names)
    output, best = next(((name, part) for name, part in parts if part), (None, None))
    fed = []
    for value in reversed([name for name in names if output and name != output]):
        if part := part_that_shows([*fed, value], output):
            best, fed = part, [*fed, value]
    return best


def cut(model, fed, outputs):
    """Return a model with only what computes some of its values. Both are ValueInfoProtos: `fed` become inputs, and `outputs`
    the outputs."""
    result = with_outputs(model, outputs)
    needed, nodes, fed_names = {each.name for each in outputs}, [], {each.name for each in fed}
    for node in reversed(result.graph.node):
        if not needed.isdisjoint(set(node.output) - fed_names):
            nodes.append(node)
            needed.update(used_names([node]))
    _fill(result.graph, "node", nodes[::-1])
    _fill(result.graph, "input", [each for each in (*result.graph.input, *fed) if each.name in needed])
    _fill(result.graph, "initializer", [each for each in result.graph.initializer if each.name in needed])
    return result


def with_outputs(model, outputs):
    """Return a copy of a model with other outputs."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _fill(result.graph, "output", outputs)
    return result


def text_of(model):
    """Return the model in ONNX's textual syntax, without the contents of large tensors."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    lines = []
    for tensor in list(result.graph.initializer):
        array = quark_numba.from_tensor_proto(tensor)
        content = f" = {array.tolist()}" if array.size < 9 else ""
        lines.append(f"# {tensor.name}: {array.dtype}{list(array.shape)}{content}")
    del result.graph.initializer[:]
    return "\n".join([onnx.printer.to_text(result), *lines])


def _fill(graph, field, content):
    graph.ClearField(field)
    getattr(graph, field).extend(content)
