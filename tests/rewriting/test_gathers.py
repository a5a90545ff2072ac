"""With kept codes, dequantize nodes move after the Gather that takes rows of their constants."""

import numpy as np
import pytest
from onnx_models import model
from rewritten_models import DQ, assert_rewritten, assert_same_values, constant, floats, operators, pair

from quark_numba import to_tensor_proto
from quark_numba.element_types import find
from quark_numba.rewriting.gathers import MOVED
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

TABLE = np.random.default_rng(50).normal(0, 2, (5, 6, 7)).astype(np.float32)


def table_model(scale, gather_axis=0, axis=0, indices=((0, -1), (4, 2)), others=(), outputs=("y",)):
    nodes = [*pair("t", "q", "d", ["s", "z"], axis=axis), f"g = Gather <axis = {gather_axis}> (d, i)", "y = Add (g, x)"]
    initializers = [*floats(t=TABLE, s=scale), constant("z", np.ones(np.shape(scale)), np.int8)]
    feeds = {"i": np.array(indices, np.int64), "x": np.float32(1)}
    values = [("i", "int64", np.shape(indices)), ("x", "float32", [])]
    return model([*nodes, *others], values, outputs, initializers=initializers), feeds


CASES = [
    (0.25, 0, 0, ((0, -1), (4, 2))),
    (0.25, 1, 0, 3),
    (0.25, -1, 0, (6, 0, 0)),
    (np.linspace(0.1, 1, 6), 0, 1, ((0, -1), (4, 2))),
    (np.linspace(0.1, 1, 7), 0, -1, 3),
    (np.linspace(0.1, 1, 7), 1, 2, ((5,),)),
]


@pytest.mark.parametrize(("scale", "gather_axis", "axis", "indices"), CASES)
def test_rows_of_codes_are_gathered(scale, gather_axis, axis, indices):
    before, feeds = table_model(scale, gather_axis, axis, indices)
    result = assert_rewritten(before, ["Gather", DQ, "Add"], feeds, keep_quantized_weights=True)
    assert result.done[f"com.amd.quark::{DQ}", MOVED] == 1
    assert result.left[f"com.amd.quark::{DQ}", "its codes are kept"] == 1
    assert operators(rewrite_model(before).model) == ["Gather", "Add"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale": np.linspace(0.1, 1, 5), "axis": 0},
        {"scale": np.linspace(0.1, 1, 5), "gather_axis": 1, "axis": 0, "indices": (1, 2)},
        {"scale": 0.25, "others": ["r = Relu (d)"], "outputs": ("y", "r")},
        {"scale": 0.25, "outputs": ("y", "d")},
    ],
    ids=["scales along the axis", "scales before the axis", "another user", "an output"],
)
def test_what_stays(arguments):
    before, feeds = table_model(**arguments)
    result = rewrite_model(before, Settings(keep_quantized_weights=True))
    assert not any(what == MOVED for _, what in result.done)
    assert_same_values(before, result.model, feeds)


def test_types_that_gather_lacks():
    nodes = ["d = DequantizeLinear (t, s)", "y = Gather (d, i)"]
    codes = to_tensor_proto(np.arange(6).astype(find("float8e4m3fn").dtype), "t")
    before = model(nodes, [("i", "int64", [2])], ["y"], initializers=[codes, *floats(s=0.5)])
    assert_rewritten(
        before, ["Dequantize", "Gather"], {"i": np.array([1, 5])}, keep_quantized_weights=True, qdq="float", session_qdq="float"
    )


def test_indices_from_the_table_stay():
    """The constant may also be what another Gather takes as its indices."""
    nodes = [f"d = com.amd.quark.{DQ} (t, s)", "c = Cast <to = 7> (d)", "y = Gather (x, c)"]
    before = model(nodes, [("x", "float32", [3])], ["y"], initializers=[constant("t", [1, 0], np.uint8), *floats(s=1)])
    assert operators(rewrite_model(before, Settings(keep_quantized_weights=True)).model) == [DQ, "Cast", "Gather"]
