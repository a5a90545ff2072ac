"""Draw the first layer of a model that Quark quantized, as written and optimized: before_and_after.svg, for the front page.

The longest way through the layer is a row from left to right. What computes weights and constants stands above or below the
node that takes them. Each node of the optimized model stands below the nodes that it replaces, and is as wide as they are."""

import argparse
from itertools import pairwise
from pathlib import Path

import onnx
from onnx.numpy_helper import to_array

import quark_numba

HERE = Path(__file__).parent
MODEL = HERE.parent / "tests" / "models" / "textline_cls_bf16.onnx"
DRAWING = HERE / "before_and_after.svg"
# The output of the first hard-swish in both models.
LAST = "hardswish_0.tmp_0_DequantizeLinear_Output"

# The text and the color of a box, by the end of the operator's name.
LOOKS = {"DequantizeLinear": ("DQ", "#f7dcc4"), "QuantizeLinear": ("Q", "#f2b8a0"), "Region": ("Region", "#a8d5a2")}
STEP = 0.62  # from a row of boxes to the next
ARROW = {"arrowstyle": "->", "color": "#555555", "linewidth": 0.8}

Place = tuple[float, float]


def nodes_before(model: onnx.ModelProto, tensor: str) -> list[onnx.NodeProto]:
    """Return the nodes that a tensor is computed from, in their order, without constants."""
    wanted, found = {tensor}, []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output) and node.op_type != "Constant":
            found.append(node)
            wanted.update(node.input)
    return found[::-1]


def longest_way(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes on the longest way to the last of sorted nodes."""
    by_output = {node.output[0]: node for node in nodes}
    ways: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        ways[node.output[0]] = max((ways[name] for name in node.input if name in by_output), key=len, default=[]) + [node]
    return ways[nodes[-1].output[0]]


def places(nodes: list[onnx.NodeProto], way: list[onnx.NodeProto]) -> dict[str, Place]:
    """Return the place of each node by its output. The way is the row 0, and each of its nodes a column. What leads to it is
    below the middle of the nodes that take it or, if that place is taken, above."""
    found: dict[str, Place] = {node.output[0]: (column, 0.0) for column, node in enumerate(way)}
    for node in reversed([node for node in nodes if node not in way]):
        users = [found[other.output[0]] for other in nodes if node.output[0] in other.input]
        column = sum(x for x, _ in users) / len(users)
        side = STEP if any(y > 0 for _, y in users) else -STEP
        if (column, side) in found.values() and all(y == 0 for _, y in users):
            side = STEP
        found[node.output[0]] = column, users[0][1] + side
    return found


def look_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Return the text and the color of a node's box."""
    return next((look for name, look in LOOKS.items() if node.op_type.endswith(name)), (node.op_type, "#c9d7ea"))


def box(axis, left: float, right: float, y: float, text: str, color: str) -> None:
    import matplotlib.pyplot as plt

    shape = (left - 0.36, y - 0.19), right - left + 0.72, 0.38
    axis.add_patch(plt.Rectangle(*shape, facecolor=color, edgecolor="#555555", linewidth=0.7, zorder=2))
    axis.text((left + right) / 2, y, text, ha="center", va="center", fontsize=8, zorder=3)


def arrow(axis, start: Place, end: Place, style: str = "arc3") -> None:
    axis.annotate("", end, start, arrowprops=ARROW | {"connectionstyle": style, "shrinkA": 0, "shrinkB": 0}, zorder=1)


def name_of(model: onnx.ModelProto, tensor: str) -> str:
    """Return a scalar's value, or else the last part of a tensor's name."""
    value = next((to_array(each) for each in model.graph.initializer if each.name == tensor), None)
    for node in model.graph.node:
        if node.op_type == "Constant" and tensor in node.output:
            value = to_array(node.attribute[0].t)
    return f"{value.item():g}" if value is not None and value.size == 1 else tensor.rpartition("_")[2]


def draw_written(axis, model: onnx.ModelProto, nodes: list[onnx.NodeProto], way: list[onnx.NodeProto]) -> None:
    found = places(nodes, way)
    for node in nodes:
        x, y = found[node.output[0]]
        box(axis, x, x, y, *look_of(node))
        known = [found[name] for name in node.input if name in found]
        for from_x, from_y in known:
            if from_y != y:  # from above or below
                side = 0.19 if from_y > y else -0.19
                arrow(axis, (from_x, from_y - side), (x, y + side))
            elif x - from_x > 1:  # past the nodes between
                arrow(axis, (from_x, y + 0.19), (x, y + 0.19), "arc3,rad=-0.2")
            else:
                arrow(axis, (from_x + 0.36, y), (x - 0.36, y))
        if not known and node is way[0]:
            arrow(axis, (x - 1, y), (x - 0.36, y))
            axis.text(x - 1.05, y, node.input[0], ha="right", va="center", fontsize=8)
        elif not known:
            axis.text(x + 0.42, y, name_of(model, node.input[0]), ha="left", va="center", fontsize=8, style="italic")


def draw_optimized(axis, way: list[onnx.NodeProto], written: list[onnx.NodeProto], y: float) -> None:
    columns = {node.output[0]: column for column, node in enumerate(written)}
    ends = [-1, *(columns[node.output[0]] for node in way)]
    for node, (before, end) in zip(way, pairwise(ends), strict=True):
        text, color = look_of(node)
        replaced = " ".join(look_of(each)[0] for each in written[before + 1 : end + 1])
        box(axis, before + 1, end, y, text if text == replaced else f"{text}: {replaced}", color)
        arrow(axis, (before + (0 if before < 0 else 0.36), y), (before + 0.64, y))
    axis.text(-1.05, y, written[0].input[0], ha="right", va="center", fontsize=8)


def main() -> None:
    import matplotlib.pyplot as plt

    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    plt.rcParams |= {"svg.hashsalt": "quark_numba", "svg.fonttype": "none"}
    before = onnx.load(MODEL)
    after = quark_numba.optimize(before)
    written, optimized = (nodes_before(model, LAST) for model in (before, after))
    way = longest_way(written)
    low = -4.6 * STEP
    figure, axis = plt.subplots(figsize=(9, 3.1), layout="constrained")
    draw_written(axis, before, written, way)
    draw_optimized(axis, longest_way(optimized), way, low)
    title = "The first layer {}: {} of {} nodes{}"
    for y, text, nodes, model, legend in (
        (2.7 * STEP, "as Quark wrote it", written, before, " (Q: quantize, DQ: dequantize)"),
        (low + STEP, "in quark_numba.InferenceSession", optimized, after, ""),
    ):
        axis.text(-1.3, y, title.format(text, len(nodes), len(model.graph.node), legend), fontsize=9)
    axis.set_xlim(-1.4, len(way) - 0.4)
    axis.set_ylim(low - 0.4, 2.7 * STEP + 0.4)
    axis.set_axis_off()
    figure.savefig(DRAWING, metadata={"Date": None})


if __name__ == "__main__":
    main()
