"""Draw the first layer of a model that Quark quantized, as written and optimised: before_and_after.svg, for the front page."""

import argparse
from pathlib import Path

import onnx

import quark_numba

HERE = Path(__file__).parent
MODEL = HERE.parent / "tests" / "models" / "textline_cls_bf16.onnx"
DRAWING = HERE / "before_and_after.svg"
# What the first hard-swish of both models gives.
LAST = "hardswish_0.tmp_0_DequantizeLinear_Output"

COLORS = {"Quantize": "#f2b8a0", "Dequantize": "#f7dcc4", "Region": "#a8d5a2", "": "#c9d7ea"}


def nodes_before(model: onnx.ModelProto, tensor: str) -> list[onnx.NodeProto]:
    """Return the nodes that a tensor is computed from, in their order, without constants."""
    wanted, found = {tensor}, []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output) and node.op_type != "Constant":
            found.append(node)
            wanted.update(node.input)
    return found[::-1]


def places(nodes: list[onnx.NodeProto]) -> list[tuple[int, int]]:
    """Return a column and a row for each node: inputs are to the left, and the longest way is the first row."""
    columns: dict[str, int] = {}
    for node in nodes:
        columns[node.output[0]] = 1 + max((columns.get(name, -1) for name in node.input), default=-1)
    for node in reversed(nodes):  # each as far to the right as what uses it allows
        users = [columns[other.output[0]] for other in nodes if node.output[0] in other.input]
        columns[node.output[0]] = min(users) - 1 if users else columns[node.output[0]]
    spine, name = set(), nodes[-1].output[0]
    while name:
        spine.add(name)
        node = next(each for each in nodes if each.output[0] == name)
        known = [each for each in node.input if each in columns]
        name = min(known, key=lambda each: (-columns[each], node.input[:].index(each))) if known else ""
    taken: dict[int, int] = {}
    result = []
    for node in nodes:
        name = node.output[0]
        column = columns[name]
        row = 0 if name in spine else taken.setdefault(column, 0) + 1
        taken[column] = max(taken.get(column, 0), row)
        result.append((column, row))
    return result


def label_of(node: onnx.NodeProto) -> str:
    for name, short in (("DequantizeLinear", "Dequantize"), ("QuantizeLinear", "Quantize")):
        if node.op_type.endswith(name):
            return short
    return node.op_type


def draw(axis, nodes: list[onnx.NodeProto], per_line: int) -> None:
    """Draw nodes in lines of so many columns."""
    found = places(nodes)
    heights = [0] * (1 + max(column for column, _ in found) // per_line)
    for column, row in found:
        heights[column // per_line] = max(heights[column // per_line], row + 1)
    where = {}
    for node, (column, row) in zip(nodes, found, strict=True):
        line = column // per_line
        x, y = where[node.output[0]] = column % per_line, -(sum(heights[:line]) + 0.4 * line + row)
        label = label_of(node)
        box = {"boxstyle": "round,pad=0.35", "facecolor": COLORS.get(label, COLORS[""])}
        box |= {"edgecolor": "#555555", "linewidth": 0.6}
        axis.text(x, y, label, ha="center", va="center", fontsize=7.5, bbox=box, zorder=2)
        arrow = {"arrowstyle": "->", "color": "#777777", "linewidth": 0.7, "shrinkA": 22, "shrinkB": 24}
        for name in node.input:
            if name in where and where[name][0] < x:
                axis.annotate("", (x, y), where[name], arrowprops=arrow, zorder=1)
            elif name in where:  # it is in the line above
                axis.annotate("", (x, y), (x - 0.8, y), arrowprops=arrow, zorder=1)
                axis.annotate("", (per_line - 0.2, where[name][1]), where[name], arrowprops=arrow | {"shrinkB": 0}, zorder=1)
    axis.set_xlim(-0.8, per_line - 0.2)
    axis.set_ylim(-sum(heights) - 0.4 * len(heights) + 1, 0.6)
    axis.set_axis_off()


def main() -> None:
    import matplotlib.pyplot as plt

    argparse.ArgumentParser(description=__doc__).parse_args()
    plt.rcParams |= {"svg.hashsalt": "quark_numba", "svg.fonttype": "none"}
    before = onnx.load(MODEL)
    after = quark_numba.optimize(before)
    figure, axes = plt.subplots(2, 1, figsize=(9, 3.2), height_ratios=[4.4, 1], layout="constrained")
    for axis, model, title in zip(axes, (before, after), ("as Quark wrote it", "in quark_numba.InferenceSession"), strict=True):
        nodes = nodes_before(model, LAST)
        draw(axis, nodes, 8)
        axis.set_title(f"The first layer {title}: {len(nodes)} nodes of {len(model.graph.node)}", fontsize=9, loc="left")
    figure.savefig(DRAWING, metadata={"Date": None})


if __name__ == "__main__":
    main()
