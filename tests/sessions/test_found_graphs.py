"""Graphs for which sessions once differed from drop-in sessions: wrong numbers, other shapes, errors, or other last bits. The
rules of the comparison are in `compared_sessions`."""

import compared_sessions
import ml_dtypes
import numpy as np
import pytest
from smaller_graphs import text_of
from text_graphs import text_model, text_nodes

pytestmark = pytest.mark.compiled
# A Transpose back, and a convolution after it.
BACK = "back = Transpose <perm = [0, 3, 1, 2]> (q)  y = Conv (back, w2)"


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


def model(inputs, nodes, constants, outputs="y"):
    """Return a model of nodes with names. The outputs, separated by spaces, are float tensors."""
    outputs = ", ".join(f"float[] {name}" for name in outputs.split())
    made = text_model(f"({inputs}) => ({outputs}) {{ {nodes} }}", opset=17, **constants)
    name_nodes(made.graph)
    return made


def name_nodes(graph):
    for each in graph.node:
        each.name = f"{each.op_type}_{each.output[0]}"
        for attribute in each.attribute:
            name_nodes(attribute.g)


def assert_same(source, feeds, exact=True):
    comparison = compared_sessions.Comparison(source, source, feeds, exact)
    assert not comparison.found, "\n".join(["", *map(": ".join, comparison.found), text_of(source)])
    assert not comparison.alone, comparison.alone


# Convolutions with channels-last tensors between them, as tf2onnx writes them.


@pytest.mark.parametrize("operator", ["Add", "Mul", "PRelu"])
@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("width", [8, 1])
@pytest.mark.parametrize("channels", [8, 16, 20])
@pytest.mark.by_default(1)
def test_a_constant_between_transposes(channels, width, operator, dimensions):
    shape = (channels,) if dimensions == 1 else (6, width, channels)
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid(shape, 2)}
    nodes = f"a = Conv (x, w1)  t = Transpose <perm = [0, 2, 3, 1]> (a)  v = {operator} (t, c)  q = Pair (v)  {BACK}"
    source = model(f"float[1, 3, 6, {width}] x", nodes, constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 6, width), 3)})


@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["x first", "x last"])
@pytest.mark.parametrize(("channels", "width"), [(8, 8), (8, 1), (16, 16), (20, 8)])
@pytest.mark.by_default(1)
def test_a_second_variable_between_transposes(channels, width, operator, is_turned):
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "w3": grid((channels, 3, 1, 1), 2)}
    operands = "tb, ta" if is_turned else "ta, tb"
    nodes = f"""
        a = Conv (x, w1)  b = Conv (x, w3)
        ta = Transpose <perm = [0, 2, 3, 1]> (a)  tb = Transpose <perm = [0, 2, 3, 1]> (b)
        v = {operator} ({operands})  q = Pair (v)  {BACK}
    """
    source = model(f"float[1, 3, 6, {width}] x", nodes, constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 6, width), 3)})


def test_a_variable_that_has_its_channels_last_by_itself():
    """One input of a region goes through a Transpose, the other does not."""
    constants = {"w1": grid((8, 3, 1, 1)), "w2": grid((4, 8, 1, 1), 1)}
    nodes = f"a = Conv (x, w1)  t = Transpose <perm = [0, 2, 3, 1]> (a)  v = Add (t, other)  q = Pair (v)  {BACK}"
    source = model("float[1, 3, 8, 8] x, float[1, 8, 8, 8] other", nodes, constants | scale_and_zero_point("int8"))
    assert_same(source, {"x": grid((1, 3, 8, 8), 3), "other": grid((1, 8, 8, 8), 4)})


# Subgraphs of nodes, which take values of the graph around them.


ANY = "float[?, ?, ?, ?]"


def branches(nodes, other):
    """Return an If node of `flag` that gives `s`: the value `then` of these nodes, or a negated value."""
    return f"""s = If (flag) <then_branch: graph = then () => ({ANY} then) {{ {nodes} }},
        else_branch: graph = else () => ({ANY} else) {{ else = Neg ({other}) }}>"""


# The captured value is the output of a region, of a convolution upstream of it, or of a pool downstream of it.
@pytest.mark.parametrize("captured", ["q", "a", "other", "pooled"])
@pytest.mark.parametrize("operator", ["If", "Loop", "Scan"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_captured_values(channels, operator, captured):
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "w3": grid((channels, 3, 1, 1), 2)}
    constants |= {"true": np.array(True), "two": np.array(2, np.int64), "eighth": np.float32(0.125)}
    constants |= {"zero": np.zeros((1, 1, 1, 1), np.float32), "rows": grid((2, channels, 1, 1), 4)}
    inner = {
        "If": branches(f"then = Mul ({captured}, eighth)", captured),
        "Loop": f"""s = Loop (two, true, zero)
            <body: graph = body (int64 i, bool go, {ANY} sum) => (bool again, {ANY} sum_out) {{
                again = Identity (go)  sum_out = Add (sum, {captured})
            }}>""",
        "Scan": f"""s = Scan (rows) <num_scan_inputs = 1, body: graph = body (float[?, ?, ?] row) => ({ANY} added) {{
            added = Add (row, {captured})
        }}>""",
    }[operator]
    nodes = f"""
        a = Conv (x, w1)  other = Conv (x, w3)  v = Add (a, other)  q = Pair (v)
        pooled = MaxPool <kernel_shape = [2, 2]> (q)  y = Conv (q, w2)  {inner}
    """
    inputs = "float[1, 3, 4, 4] x" + (", bool flag" if operator == "If" else "")
    source = model(inputs, nodes, constants | scale_and_zero_point("int8"), "y s")
    for flag in (True, False):
        assert_same(source, {"x": grid((1, 3, 4, 4), 3), "flag": np.array(flag)})


@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.by_default(1)
def test_a_region_in_a_branch(channels):
    """The region takes a value of the graph outside, and its output goes to a convolution outside."""
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid((channels, 1, 1), 2)}
    inner = branches("m = Mul (a, c)  then = Pair (m)", "q")
    nodes = f"a = Conv (x, w1)  r = Relu (a)  q = Pair (r)  {inner}  y = Conv (s, w2)"
    source = model("float[1, 3, 4, 4] x, bool flag", nodes, constants | scale_and_zero_point("int8"))
    for flag in (True, False):
        assert_same(source, {"x": grid((1, 3, 4, 4), 3), "flag": np.array(flag)})


# Numbers of channels that are not multiples of a block.


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("between", ["nothing", "Relu", "constants", "gate"])
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_one_input_that_is_not_finite(channels, name, value, between):
    """Channels of padding become NaN by Inf times 0, which must not reach other channels."""
    constants = {"w1": np.abs(grid((channels, 3, 1, 1))), "w2": np.abs(grid((4, channels, 1, 1), 1)) / 2, "c": np.float32(0.5)}
    steps = {
        "nothing": "q = Pair (a)",
        "Relu": "r = Relu (a)  q = Pair (r)",
        "constants": "m = Mul (a, c)  n = Add (m, c)  q = Pair (n)",
        "gate": "p = GlobalMaxPool (a)  g = Pair (p)  m = Add (a, g)  q = Pair (m)",
    }[between]
    nodes = f"a = Conv (x, w1)  {steps}  y = Conv (q, w2)"
    x = grid((1, 3, 4, 4), 3)
    x[0, 1, 2, 1] = value
    assert_same(model("float[1, 3, 4, 4] x", nodes, constants | scale_and_zero_point(name)), {"x": x})


# Dimensions that are known only in a run.


@pytest.mark.parametrize(("one", "other"), [(1, 3), (3, 1), (1, 1), (3, 3)])
@pytest.mark.parametrize("is_laid_out", [False, True], ids=["inputs", "convolutions"])
@pytest.mark.parametrize("added", ["template", "search", "q"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_batches_that_broadcast(one, other, is_laid_out, added, channels):
    constants = {f"w{k}": grid((channels, channels, 1, 1), k) for k in range(3)}
    first = "t = Conv (template, w1)  s = Conv (search, w2)" if is_laid_out else ""
    names = ["t", "s"] if is_laid_out else ["template", "search"]
    added = dict(zip(["template", "search"], names, strict=True)).get(added, added)
    nodes = f"{first}  v = Add ({', '.join(names)})  q = Pair (v)  c = Conv (q, w0)  y = Add (c, {added})"
    inputs = f"float[A, {channels}, 8, 8] template, float[B, {channels}, 8, 8] search"
    source = model(inputs, nodes, constants | scale_and_zero_point("int8"))
    assert_same(source, {"template": grid((one, channels, 8, 8)), "search": grid((other, channels, 8, 8), 1)})


@pytest.mark.parametrize("declared", [[1, 16, "h", "w"], ["n", 16, "h", "w"], ["n", "c", "h", "w"]], ids=str)
@pytest.mark.parametrize("other", [(1, 16, 1, 6), (1, 16, 6, 1), (1, 16, 1, 1), (1, 1, 6, 6), (2, 16, 6, 6)], ids=str)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_lengths_that_broadcast(declared, other):
    """The dimensions of both values have different names, and those of the second may be 1 in a run."""
    constants = {"w1": grid((16, 3, 1, 1)), "w2": grid((4, 16, 1, 1), 1)}
    second = [f"{each}2" if isinstance(each, str) else other[axis] for axis, each in enumerate(declared)]
    for operands in ("other, a", "a, other"):
        nodes = f"a = Conv (x, w1)  v = Add ({operands})  q = Pair (v)  y = Conv (q, w2)"
        inputs = f"float[n, 3, h, w] x, float[{', '.join(map(str, second))}] other"
        source = model(inputs, nodes, constants | scale_and_zero_point("int8"))
        assert_same(source, {"x": grid((1, 3, 6, 6), 2), "other": grid(other, 3)})


# Patterns that ONNX Runtime fuses. The last bits are those of its fused nodes if regions leave the patterns to it.

_CENTERED = "mean = ReduceMean <axes = [-1]> (x)  d = Sub (x, mean)"
_DEVIATION = "variance = ReduceMean <axes = [-1]> (p)  e = Add (variance, epsilon)  s = Sqrt (e)"
_SCALED = "n = Div (d, s)  g = Mul (n, gamma)  v = Add (g, beta)"
PATTERNS = {
    "torch": "d = Div (x, root)  e = Erf (d)  f = Add (e, one)  m = Mul (x, f)  v = Mul (m, half)",
    "half first": "d = Div (x, root)  e = Erf (d)  f = Add (e, one)  m = Mul (x, half)  v = Mul (m, f)",
    "product": "d = Mul (x, root)  e = Erf (d)  f = Add (e, one)  m = Mul (x, f)  v = Mul (m, half)",
    "QuickGelu": "d = Mul (x, factor)  s = Sigmoid (d)  v = Mul (x, s)",
    "Silu": "s = Sigmoid (x)  v = Mul (x, s)",
    "HardSwish": "a = Add (x, three)  b = Clip (a, zero, six)  m = Mul (x, b)  v = Div (m, six)",
    "LayerNorm Pow": f"{_CENTERED}  p = Pow (d, two)  {_DEVIATION}  {_SCALED}",
    "LayerNorm Mul": f"{_CENTERED}  p = Mul (d, d)  {_DEVIATION}  {_SCALED}",
    "LayerNorm simplified": f"p = Pow (x, two)  {_DEVIATION}  n = Div (x, s)  v = Mul (n, gamma)",
}
NUMBERS = {"root": 2**0.5, "one": 1, "half": 0.5, "factor": 1.702, "three": 3, "zero": 0, "six": 6, "two": 2, "epsilon": 1e-5}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ["fine", "float16", "bfloat16"])
@pytest.mark.parametrize("place", ["behind", "before", "both"])
@pytest.mark.covering
@pytest.mark.slow
def test_patterns_that_onnx_runtime_fuses(pattern, name, place):
    """The pattern is between MatMuls, and has quantization nodes before it, after it, or both."""
    constants = {"w1": normal((24, 24)) / 5, "w2": normal((24, 24), 1) / 5, "gamma": normal(24, 2), "beta": normal(24, 3)}
    constants |= {key: np.float32(value) for key, value in NUMBERS.items()}
    before, behind = ("Identity" if place == other else "Pair" for other in ("behind", "before"))
    nodes = f"i = MatMul (in, w1)  x = {before} (i)  {PATTERNS[pattern]}  q = {behind} (v)  y = MatMul (q, w2)"
    constants |= scale_and_zero_point(name)
    used = {each for one in text_nodes(nodes) for each in one.input}
    constants = {key: value for key, value in constants.items() if key in used}
    source = model("float[2, 40, 24] in", nodes, constants)
    scales = np.geomspace(0.01, 100, 40, dtype=np.float32)[:, None]
    assert_same(source, {"in": scales * normal((2, 40, 24), 4)}, exact=False)


@pytest.mark.parametrize("dimensions", ["scalar", "channel", "full rank"])
@pytest.mark.parametrize("operators", ["Mul", "Add", "Mul Add", "Add Relu", "Sub", "Div"])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.covering
@pytest.mark.slow
def test_constants_that_onnx_runtime_folds_into_weights(channels, operators, dimensions):
    shape = {"scalar": (), "channel": (channels, 1, 1), "full rank": (1, channels, 1, 1)}[dimensions]
    constants = {"w1": normal((channels, 3, 3, 3)), "b": normal(channels), "c": normal(shape, 1) + np.float32(3)}
    constants |= {"w2": normal((4, channels, 1, 1), 1)} | scale_and_zero_point("fine")
    steps, last = "v0 = Conv (x, w1, b)", "v0"
    for k, operator in enumerate(operators.split(), 1):
        steps += f"  v{k} = {operator} ({last if operator == 'Relu' else f'{last}, c'})"
        last = f"v{k}"
    nodes = f"{steps}  q = Pair ({last})  y = Conv (q, w2)"
    assert_same(model("float[1, 3, 6, 6] x", nodes, constants), {"x": normal((1, 3, 6, 6))}, exact=False)


# Outputs of regions that several nodes take, and values that several regions take.


@pytest.mark.parametrize("channels", [16, 20, 5])
@pytest.mark.parametrize("outputs", ["y", "y q", "y a", "y r q2"])
@pytest.mark.by_default(1)
def test_two_regions_of_one_value(channels, outputs):
    constants = {"w1": grid((channels, 3, 1, 1)), "w2": grid((4, channels, 1, 1), 1), "c": grid((channels, 1, 1), 2)}
    nodes = """
        a = Conv (x, w1)  q = Pair (a)  r = Relu (q)  q1 = Pair (r)
        m = Mul (q, c)  q2 = Pair (m)
        both = Concat <axis = 1> (q1, q2)  p = MaxPool <kernel_shape = [1, 1]> (q2)
        s = Add (p, q1)  q3 = Pair (s)  y = Conv (q3, w2)
    """
    source = model("float[n, 3, h, w] x", nodes, constants | scale_and_zero_point("int8"), f"{outputs} both")
    assert_same(source, {"x": grid((2, 3, 5, 4), 3)})
