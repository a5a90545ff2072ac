"""The work of `optimize` grows with the number of nodes, outputs and functions, and not with its square."""

import itertools
import sys

import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import scale_and_zero_point

from quark_numba.rewriting.optimize import rewrite_model

DOMAIN = "com.amd.quark"


def pair(x, y):
    quantize = helper.make_node("ExtendedQuantizeLinear", [x, "scale", "zero_point"], [f"{y}_codes"], domain=DOMAIN, axis=0)
    dequantize = helper.make_node("ExtendedDequantizeLinear", [f"{y}_codes", "scale", "zero_point"], [y], domain=DOMAIN, axis=0)
    return [quantize, dequantize]


def outputs(count):
    """Return a model each of whose outputs is that of a pair."""
    names = [f"y{i}" for i in range(count)]
    nodes = [node for name in names for node in pair("x", name)]
    return model(
        nodes, [("x", "float32", [3])], [(name, "float32", [3]) for name in names], initializers=scale_and_zero_point()
    )


def functions(count):
    """Return a model that calls local functions, each with a pair."""
    names = ["x", *(f"v{i}" for i in range(count))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    inputs = ["x", "scale", "zero_point"]
    made = [helper.make_function("local", f"F{i}", inputs, ["y"], pair("x", "y"), opsets) for i in range(count)]
    calls = [
        helper.make_node(f"F{i}", [x, "scale", "zero_point"], [y], domain="local")
        for i, (x, y) in enumerate(itertools.pairwise(names))
    ]
    result = model(calls, [("x", "float32", [3])], [(names[-1], "float32", [3])], initializers=scale_and_zero_point())
    result.functions.extend(made)
    result.opset_import.append(helper.make_opsetid("local", 1))
    return result


def work(source):
    """Return the number of function calls, of Python and others, when a model is optimized. It does not depend on a clock."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        rewrite_model(source)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("of", [outputs, functions])
def test_work(of):
    rewrite_model(of(2))  # imports, and the answers that are kept
    few, more, most = (work(of(count)) for count in (20, 80, 140))
    assert most - more < 1.1 * (more - few)
