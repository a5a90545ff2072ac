"""A model that onnx-ir cannot read is refused with the reason, at whatever level of the model that is."""

import numpy as np
import pytest
from onnx_models import model
from rewritten_models import floats

import quark_numba
from quark_numba import RandomData
from quark_numba.rewriting.optimize import rewrite_model

TWICE = ["a = Relu (x)", "a = Neg (x)", "y = Relu (a)"]
BRANCHES = "then_branch = then () => (m) { m = Relu (x) m = Neg (x) }, else_branch = other () => (k) { k = Neg (x) }"
MODELS = {
    "two nodes": (TWICE, "a"),
    "a constant and a node": (["w = Relu (x)", "y = Relu (w)"], "w"),
    "an input and a node": (["x = Relu (x)", "y = Relu (x)"], "x"),
    "in a branch": ([f"y = If (cond) <{BRANCHES}>"], "m"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_tensor_that_is_defined_twice(name):
    nodes, tensor = MODELS[name]
    constants = floats(w=np.arange(5000.0).reshape(50, 100))
    whole = model(nodes, [("x", "float32", [2]), ("cond", "bool", [])], ["y"], initializers=constants, domains=[])
    with pytest.raises(quark_numba.ModelError) as caught:
        quark_numba.analyze(whole, RandomData(1))
    reason = f"Output '{tensor}' is redeclared in the current graph scope"
    assert str(caught.value).startswith(f"not a valid model: {reason}")
    assert len(str(caught.value)) < 400
    result = rewrite_model(whole)
    assert result.model == whole
    ((_, text),) = result.left
    assert text.startswith(f"it has what onnx-ir cannot read: {reason}")
