"""Initializers that are also graph inputs: the default values of inputs that a session may be fed with. Results are those of
drop-in sessions of the model as written, to the last bit."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import session, session_options
from text_graphs import text_model

import quark_numba
from quark_numba.rewriting import constants
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

RNG = np.random.default_rng(11)
X = RNG.normal(size=(3, 4)).astype(np.float32)

# The parameters of an adapter of low rank, by default of rank 1 and 0.
DEFAULTS = {"a": np.zeros((4, 1), np.float32), "b": np.zeros((1, 4), np.float32)}
FED = {"a": RNG.normal(size=(4, 2)).astype(np.float32), "b": RNG.normal(size=(2, 4)).astype(np.float32)}


def with_inputs(made, **shapes):
    """Return the model with initializers as graph inputs, too, of these shapes."""
    for name, shape in shapes.items():
        (held,) = (each for each in made.graph.initializer if each.name == name)
        made.graph.input.append(helper.make_tensor_value_info(name, held.data_type, shape))
    return made


def adapted():
    """Return a model whose weights and the adapter to them are quantized."""
    text = """(float[n, 4] x) => (float[n, 4] y) {
        p = Pair (x, s, z)  v = Pair (w, s, z)  c = Pair (a, s, z)
        base = MatMul (p, v)  t = MatMul (p, c)  u = MatMul (t, b)  sum = Add (base, u)  y = Pair (sum, s, z)
    }"""
    weights = RNG.normal(size=(4, 4)).astype(np.float32)
    made = text_model(text, w=weights, s=np.float32(0.05), z=np.int8(1), **DEFAULTS)
    return with_inputs(made, a=[4, "r"], b=["r", 4])


def optimized_file(path):
    quark_numba.optimize(path, path.with_name("o.onnx"))
    return session(path.with_name("o.onnx"))


USES = {
    "optimize": optimized_file,
    "InferenceSession": lambda path: quark_numba.InferenceSession(path, session_options()),
    "bytes": lambda path: quark_numba.InferenceSession(path.read_bytes(), session_options()),
    "cache": lambda path: quark_numba.InferenceSession(path, session_options(), cache=path.parent / "cache"),
    "cache again": lambda path: quark_numba.InferenceSession(path, session_options(), cache=path.parent / "cache"),
    "as written": session,
}


def adapter(path):
    """Return an adapter with the values that are fed, which goes through a file."""
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in FED.items()})
    file.export_adapter(str(path))
    result = onnxruntime.LoraAdapter()
    result.Load(str(path))
    return result


def test_they_stay_inputs(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(adapted(), path)
    plain = session(path)
    expected = [plain.run(None, {"x": X, **feeds})[0].tobytes() for feeds in ({}, FED)]
    assert expected[0] != expected[1]
    active = adapter(tmp_path / "adapter")
    for name, create in USES.items():
        made = create(path)
        assert [each.name for each in made.get_inputs()] == ["x"], name
        assert [each.name for each in made.get_overridable_initializers()] == ["a", "b"], name
        options = onnxruntime.RunOptions()
        options.add_active_adapter(active)
        found = [made.run(None, {"x": X, **feeds})[0].tobytes() for feeds in ({}, FED)]
        assert found == expected, name
        assert made.run(None, {"x": X}, options)[0].tobytes() == expected[1], name


def test_they_are_constants_if_that_is_said(tmp_path, caplog):
    """What they are computed from is folded then, and a session refuses values for them."""
    path = tmp_path / "m.onnx"
    onnx.save(adapted(), path)
    expected = session(path).run(None, {"x": X})[0]
    for how in ({}, {"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}):
        kept = quark_numba.InferenceSession(path, session_options(), **how)
        assert len(kept.get_overridable_initializers()) == 2
        assert "are all initializers (1)" in caplog.text
        caplog.clear()
        made = quark_numba.InferenceSession(path, session_options(), keep_initializers_as_inputs=False, **how)
        assert not made.get_overridable_initializers()
        assert not caplog.text
        np.testing.assert_array_equal(made.run(None, {"x": X})[0], expected)
        with pytest.raises(Exception, match="Invalid input name"):
            made.run(None, {"x": X, **FED})


@pytest.mark.parametrize("keep", [True, False])
def test_only_what_nobody_can_feed_is_folded(keep):
    result = rewrite_model(adapted(), Settings(keep_initializers_as_inputs=keep))
    pairs = sum(node.op_type in ("QuantizeDequantizeLinear", "Region") for node in result.model.graph.node)
    assert pairs == 2 + keep  # of x, of the sum, and of a
    assert any(why == constants.INPUT for _, why in result.left) == keep


def test_in_models_of_ir_version_3_they_are_constants():
    """There all initializers have to be graph inputs, and ONNX Runtime takes no values for them."""
    made = adapted()
    names = {each.name for each in made.graph.input}
    made.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in made.graph.initializer
        if each.name not in names
    )
    made.ir_version = 3
    result = rewrite_model(made)
    assert not any(why == constants.INPUT for _, why in result.left)
    assert sum(node.op_type in ("QuantizeDequantizeLinear", "Region") for node in result.model.graph.node) == 2


def test_a_shape_that_is_fed_in_the_blocked_layout():
    """The blocked layout takes nothing from the default value of a shape that is fed."""
    text = """(float[1, 16, 4, 4] x) => (float[] y) {
        c = Conv <kernel_shape = [1, 1]> (x, w)  p = Pair (c, s, z)  r = Relu (p)
        t = Reshape (r, shape)  d = Conv <kernel_shape = [1, 1]> (t, w)  u = Pair (d, s, z)  v = Add (u, gain)  y = Relu (v)
    }"""
    weights = RNG.normal(size=(16, 16, 1, 1)).astype(np.float32)
    shape = np.array([1, 16, 4, 4])
    gain = np.ones((1, 16, 1, 1), np.float32)
    made = text_model(text, w=weights, s=np.float32(0.05), z=np.int8(1), shape=shape, gain=gain)
    with_inputs(made, shape=[4], gain=[1, 16, 1, 1])
    x = RNG.normal(size=(1, 16, 4, 4)).astype(np.float32)
    ours = quark_numba.InferenceSession(made.SerializeToString(), session_options())
    plain = session(made)
    for feeds in ({}, {"shape": np.array([1, 16, 2, 8]), "gain": gain * 3}, {"shape": np.array([4, 16, 2, 2])}):
        np.testing.assert_array_equal(ours.run(None, {"x": x, **feeds})[0], plain.run(None, {"x": x, **feeds})[0])
