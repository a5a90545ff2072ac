"""Graphs for which sessions once differed from drop-in sessions: wrong numbers, other shapes, errors, or other last bits. The
rules of the comparison are in `compared_sessions`."""

import compared_sessions
import ml_dtypes
import numpy as np
import pytest
from generated_graphs import tensor
from onnx import TensorProto, helper

pytestmark = pytest.mark.compiled
QUARK = "com.amd.quark"
CHANNELS_LAST, CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def node(operator, inputs, output, **attributes):
    """Return a node. `inputs` is one string of names; _ stands for an omitted input."""
    inputs = ["" if each == "_" else each for each in inputs.split()]
    return helper.make_node(operator, inputs, [output], name=f"{operator}_{output}", **attributes)


def pair(x, y):
    """Return a pair of Quark's operators, through the element type of `zero_point`."""
    return [
        node("ExtendedQuantizeLinear", f"{x} scale zero_point", f"{y}_codes", domain=QUARK),
        node("ExtendedDequantizeLinear", f"{y}_codes scale zero_point", y, domain=QUARK),
    ]


def scale_and_zero_point(name):
    """Return a scale and a zero point of bfloat16, float16, int8, or for codes so fine that last bits show."""
    scale, dtype = {
        "bfloat16": (1, ml_dtypes.bfloat16),
        "float16": (1, np.float16),
        "int8": (0.125, np.int8),
        "fine": (2**-22, np.int32),
    }[name]
    return {"scale": np.float32(scale), "zero_point": np.zeros((), dtype)}


def grid(shape, seed=0):
    """Return numbers whose sums are exact in any order."""
    random = np.random.default_rng([np.size(shape), seed])
    return (random.integers(1, 5, shape) * random.choice([-0.25, 0.25], shape)).astype(np.float32)


def normal(shape, seed=0):
    return np.random.default_rng([np.size(shape), seed]).normal(0, 1, shape).astype(np.float32)


def model(nodes, inputs, outputs, constants, opset=17):
    """Return a model. `inputs` gives the declared shapes by name, and [] for a flag."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if shape else TensorProto.BOOL, shape)
        for name, shape in inputs.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    initializers = [tensor(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(QUARK, 1)]
    return helper.make_model(
        helper.make_graph(nodes, "graph", infos, outputs, initializers), opset_imports=opsets, ir_version=10
    )


def assert_same(source, feeds, exact=True):
    comparison = compared_sessions.Comparison(source, source, feeds, exact)
    assert not comparison.found, "\n".join(["", *map(": ".join, comparison.found), compared_sessions.text_of(source)])
    assert not comparison.alone, comparison.alone


# Convolutions with channels-last tensors between them, as tf2onnx writes them.


@pytest.mark.parametrize("operator", ["Add", "Mul", "PRelu"])
@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("width", [8, 1])
@pytest.mark.parametrize("channels", [8, 16, 20])
def test_a_constant_between_transposes(channels, width, operator, dimensions):
    shape = (channels,) if dimensions == 1 else (6, width, channels)
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid(shape, 2)}
    nodes = [
        node("Conv", "x w1", "a"),
        node("Transpose", "a", "t", perm=CHANNELS_LAST),
        node(operator, "t c", "v"),
        *pair("v", "q"),
        node("Transpose", "q", "back", perm=CHANNELS_FIRST),
        node("Conv", "back w2", "y"),
    ]
    source = model(nodes, {"x": [1, 3, 6, width]}, ["y"], constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 6, width), 3)})


@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["x first", "x last"])
@pytest.mark.parametrize(("channels", "width"), [(8, 8), (8, 1), (16, 16), (20, 8)])
def test_a_second_variable_between_transposes(channels, width, operator, is_turned):
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "w3": grid((channels, 3, 1, 1), 2)}
    nodes = [
        node("Conv", "x w1", "a"),
        node("Conv", "x w3", "b"),
        node("Transpose", "a", "ta", perm=CHANNELS_LAST),
        node("Transpose", "b", "tb", perm=CHANNELS_LAST),
        node(operator, "tb ta" if is_turned else "ta tb", "v"),
        *pair("v", "q"),
        node("Transpose", "q", "back", perm=CHANNELS_FIRST),
        node("Conv", "back w2", "y"),
    ]
    source = model(nodes, {"x": [1, 3, 6, width]}, ["y"], constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 6, width), 3)})


def test_a_variable_that_has_its_channels_last_by_itself():
    """One input of a region goes through a Transpose, the other does not."""
    constants = {"w1": grid((8, 3, 1, 1)), "w2": grid((4, 8, 1, 1), 1)}
    nodes = [
        node("Conv", "x w1", "a"),
        node("Transpose", "a", "t", perm=CHANNELS_LAST),
        node("Add", "t other", "v"),
        *pair("v", "q"),
        node("Transpose", "q", "back", perm=CHANNELS_FIRST),
        node("Conv", "back w2", "y"),
    ]
    source = model(nodes, {"x": [1, 3, 8, 8], "other": [1, 8, 8, 8]}, ["y"], constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 8, 8), 3), "other": grid((1, 8, 8, 8), 4)})


# Subgraphs of nodes, which take values of the graph around them.


def then_and_else(nodes, other, y):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in (y, "else")]
    return {
        "then_branch": helper.make_graph(nodes, "then", [], infos[:1]),
        "else_branch": helper.make_graph([node("Neg", other, "else")], "else", [], infos[1:]),
    }


def loop_body(captured):
    infos = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9))]
    nodes = [node("Identity", "go", "again"), node("Add", f"sum {captured}", "sum_out")]
    sums = [helper.make_tensor_value_info(name, 1, [None] * 4) for name in ("sum", "sum_out")]
    outputs = [helper.make_tensor_value_info("again", 9, []), sums[1]]
    return helper.make_graph(nodes, "body", [*infos, sums[0]], outputs)


def scan_body(captured):
    infos = [helper.make_tensor_value_info("row", 1, [None] * 3), helper.make_tensor_value_info("added", 1, [None] * 4)]
    return helper.make_graph([node("Add", f"row {captured}", "added")], "body", infos[:1], infos[1:])


# The captured value is the output of a region, of a convolution upstream of it, or of a pool downstream of it.
@pytest.mark.parametrize("captured", ["q", "a", "other", "pooled"])
@pytest.mark.parametrize("operator", ["If", "Loop", "Scan"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
def test_captured_values(channels, operator, captured):
    constants = {
        "w1": grid((channels, 3, 1, 1)),
        "w2": grid((4, channels, 1, 1), 1),
        "w3": grid((channels, 3, 1, 1), 2),
        "true": np.array(True),
        "two": np.array(2, np.int64),
        "eighth": np.float32(0.125),
        "zero": np.zeros((1, 1, 1, 1), np.float32),
        "rows": grid((2, channels, 1, 1), 4),
    }
    inner = {
        "If": [node("If", "flag", "s", **then_and_else([node("Mul", f"{captured} eighth", "then")], captured, "then"))],
        "Loop": [node("Loop", "two true zero", "s", body=loop_body(captured))],
        "Scan": [node("Scan", "rows", "s", body=scan_body(captured), num_scan_inputs=1)],
    }[operator]
    nodes = [
        node("Conv", "x w1", "a"),
        node("Conv", "x w3", "other"),
        node("Add", "a other", "v"),
        *pair("v", "q"),
        node("MaxPool", "q", "pooled", kernel_shape=[2, 2]),
        node("Conv", "q w2", "y"),
        *inner,
    ]
    inputs = {"x": [1, 3, 4, 4]} | ({"flag": []} if operator == "If" else {})
    source = model(nodes, inputs, ["y", "s"], constants | scale_and_zero_point("int8"))
    for flag in (True, False):
        assert_same(source, {"x": grid((1, 3, 4, 4), 3), "flag": np.array(flag)})


@pytest.mark.parametrize("channels", [16, 20])
def test_a_region_in_a_branch(channels):
    """The region takes a value of the graph outside, and its output goes to a convolution outside."""
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid((channels, 1, 1), 2)}
    branches = then_and_else([node("Mul", "a c", "m"), *pair("m", "then")], "q", "then")
    nodes = [
        node("Conv", "x w1", "a"),
        node("Relu", "a", "r"),
        *pair("r", "q"),
        node("If", "flag", "b", **branches),
        node("Conv", "b w2", "y"),
    ]
    source = model(nodes, {"x": [1, 3, 4, 4], "flag": []}, ["y"], constants | scale_and_zero_point("int8"))
    for flag in (True, False):
        assert_same(source, {"x": grid((1, 3, 4, 4), 3), "flag": np.array(flag)})


# Numbers of channels that are not multiples of a block.


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("between", ["nothing", "Relu", "constants", "gate"])
@pytest.mark.covering
def test_one_input_that_is_not_finite(channels, name, value, between):
    """Channels of padding become NaN by Inf times 0, which must not reach other channels."""
    constants = {"w1": np.abs(grid((channels, 3, 1, 1))), "w2": np.abs(grid((4, channels, 1, 1), 1)) / 2, "c": np.float32(0.5)}
    steps = {
        "nothing": [*pair("a", "q")],
        "Relu": [node("Relu", "a", "r"), *pair("r", "q")],
        "constants": [node("Mul", "a c", "m"), node("Add", "m c", "n"), *pair("n", "q")],
        "gate": [node("GlobalMaxPool", "a", "p"), *pair("p", "g"), node("Add", "a g", "m"), *pair("m", "q")],
    }[between]
    nodes = [node("Conv", "x w1", "a"), *steps, node("Conv", "q w2", "y")]
    x = grid((1, 3, 4, 4), 3)
    x[0, 1, 2, 1] = value
    assert_same(model(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants | scale_and_zero_point(name)), {"x": x})


# Dimensions that are known only in a run.


@pytest.mark.parametrize(("one", "other"), [(1, 3), (3, 1), (1, 1), (3, 3)])
@pytest.mark.parametrize("is_laid_out", [False, True], ids=["inputs", "convolutions"])
@pytest.mark.parametrize("added", ["template", "search", "q"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
def test_batches_that_broadcast(one, other, is_laid_out, added, channels):
    constants = {f"w{k}": grid((channels, channels, 1, 1), k) for k in range(3)}
    first = [node("Conv", "template w1", "t"), node("Conv", "search w2", "s")] if is_laid_out else []
    names = ["t", "s"] if is_laid_out else ["template", "search"]
    added = dict(zip(["template", "search"], names, strict=True)).get(added, added)
    nodes = [
        *first,
        node("Add", " ".join(names), "v"),
        *pair("v", "q"),
        node("Conv", "q w0", "c"),
        node("Add", f"c {added}", "y"),
    ]
    inputs = {"template": ["A", channels, 8, 8], "search": ["B", channels, 8, 8]}
    source = model(nodes, inputs, ["y"], constants | scale_and_zero_point("int8"))
    assert_same(source, {"template": grid((one, channels, 8, 8)), "search": grid((other, channels, 8, 8), 1)})


@pytest.mark.parametrize("declared", [[1, 16, "h", "w"], ["n", 16, "h", "w"], ["n", "c", "h", "w"]], ids=str)
@pytest.mark.parametrize("other", [(1, 16, 1, 6), (1, 16, 6, 1), (1, 16, 1, 1), (1, 1, 6, 6), (2, 16, 6, 6)], ids=str)
@pytest.mark.covering
def test_lengths_that_broadcast(declared, other):
    """The dimensions of the second value have other names than those of the first, and may be 1 in a run."""
    constants = {"w1": grid((16, 3, 1, 1)), "w2": grid((4, 16, 1, 1), 1)}
    second = [f"{each}2" if isinstance(each, str) else other[axis] for axis, each in enumerate(declared)]
    for operands in ("other a", "a other"):
        nodes = [node("Conv", "x w1", "a"), node("Add", operands, "v"), *pair("v", "q"), node("Conv", "q w2", "y")]
        inputs = {"x": ["n", 3, "h", "w"], "other": second}
        source = model(nodes, inputs, ["y"], constants | scale_and_zero_point("int8"))
        assert_same(source, {"x": grid((1, 3, 6, 6), 2), "other": grid(other, 3)})


# Patterns that ONNX Runtime fuses. The last bits are those of its fused nodes if regions leave the patterns to it.

GELU = {
    "torch": [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x f", "m"),
        node("Mul", "m half", "v"),
    ],
    "half first": [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x half", "m"),
        node("Mul", "m f", "v"),
    ],
    "product": [
        node("Mul", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "f"),
        node("Mul", "x f", "m"),
        node("Mul", "m half", "v"),
    ],
}
QUICK_GELU = {
    "QuickGelu": [node("Mul", "x factor", "d"), node("Sigmoid", "d", "s"), node("Mul", "x s", "v")],
    "Silu": [node("Sigmoid", "x", "s"), node("Mul", "x s", "v")],
    "HardSwish": [
        node("Add", "x three", "a"),
        node("Clip", "a zero six", "b"),
        node("Mul", "x b", "m"),
        node("Div", "m six", "v"),
    ],
}
_CENTERED = [node("ReduceMean", "x", "mean", axes=[-1]), node("Sub", "x mean", "d")]
_REST = [
    node("ReduceMean", "p", "variance", axes=[-1]),
    node("Add", "variance epsilon", "e"),
    node("Sqrt", "e", "s"),
    node("Div", "d s", "n"),
    node("Mul", "n gamma", "g"),
    node("Add", "g beta", "v"),
]
LAYER_NORM = {
    "Pow": [*_CENTERED, node("Pow", "d two", "p"), *_REST],
    "Mul": [*_CENTERED, node("Mul", "d d", "p"), *_REST],
    "simplified": [
        node("Pow", "x two", "p"),
        node("ReduceMean", "p", "variance", axes=[-1]),
        node("Add", "variance epsilon", "e"),
        node("Sqrt", "e", "s"),
        node("Div", "x s", "n"),
        node("Mul", "n gamma", "v"),
    ],
}
PATTERNS = GELU | QUICK_GELU | {f"LayerNorm {name}": nodes for name, nodes in LAYER_NORM.items()}
NUMBERS = {"root": 2**0.5, "one": 1, "half": 0.5, "factor": 1.702, "three": 3, "zero": 0, "six": 6, "two": 2, "epsilon": 1e-5}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ["fine", "float16", "bfloat16"])
@pytest.mark.parametrize("place", ["behind", "before", "both"])
@pytest.mark.covering
def test_patterns_that_onnx_runtime_fuses(pattern, name, place):
    """The pattern is between MatMuls, and has quantization nodes before it, behind it, or both."""
    constants = {"w1": normal((24, 24)) / 5, "w2": normal((24, 24), 1) / 5, "gamma": normal(24, 2), "beta": normal(24, 3)}
    constants |= {key: np.float32(value) for key, value in NUMBERS.items()}
    before = [node("MatMul", "in w1", "i"), *(pair("i", "x") if place != "behind" else [node("Identity", "i", "x")])]
    behind = [*(pair("v", "q") if place != "before" else [node("Identity", "v", "q")]), node("MatMul", "q w2", "y")]
    nodes = [*before, *PATTERNS[pattern], *behind]
    used = {each for one in nodes for each in one.input}
    constants = {key: value for key, value in (constants | scale_and_zero_point(name)).items() if key in used}
    source = model(nodes, {"in": [2, 40, 24]}, ["y"], constants)
    scales = np.geomspace(0.01, 100, 40, dtype=np.float32)[:, None]
    assert_same(source, {"in": scales * normal((2, 40, 24), 4)}, exact=False)


@pytest.mark.parametrize("dimensions", ["scalar", "channel", "full rank"])
@pytest.mark.parametrize("operators", ["Mul", "Add", "Mul Add", "Add Relu", "Sub", "Div"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
def test_constants_that_onnx_runtime_folds_into_weights(channels, operators, dimensions):
    shape = {"scalar": (), "channel": (channels, 1, 1), "full rank": (1, channels, 1, 1)}[dimensions]
    constants = {"w1": normal((channels, 3, 3, 3)), "b": normal(channels), "c": normal(shape, 1) + np.float32(3)}
    constants |= {"w2": normal((4, channels, 1, 1), 1)} | scale_and_zero_point("fine")
    nodes, last = [node("Conv", "x w1 b", "v0")], "v0"
    for k, operator in enumerate(operators.split(), 1):
        nodes.append(node(operator, last if operator == "Relu" else f"{last} c", f"v{k}"))
        last = f"v{k}"
    nodes += [*pair(last, "q"), node("Conv", "q w2", "y")]
    assert_same(model(nodes, {"x": [1, 3, 6, 6]}, ["y"], constants), {"x": normal((1, 3, 6, 6))}, exact=False)


# Outputs of regions that several nodes take, and values that several regions take.


@pytest.mark.parametrize("channels", [16, 20, 5])
@pytest.mark.parametrize("outputs", [["y"], ["y", "q"], ["y", "a"], ["y", "r", "q2"]], ids=str)
def test_two_regions_of_one_value(channels, outputs):
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid((channels, 1, 1), 2)}
    nodes = [
        node("Conv", "x w1", "a"),
        *pair("a", "q"),
        node("Relu", "q", "r"),
        *pair("r", "q1"),
        node("Mul", "q c", "m"),
        *pair("m", "q2"),
        node("Concat", "q1 q2", "both", axis=1),
        node("MaxPool", "q2", "p", kernel_shape=[1, 1]),
        node("Add", "p q1", "s"),
        *pair("s", "q3"),
        node("Conv", "q3 w2", "y"),
    ]
    source = model(nodes, {"x": ["n", 3, "h", "w"]}, [*outputs, "both"], constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((2, 3, 5, 4), 3)})
