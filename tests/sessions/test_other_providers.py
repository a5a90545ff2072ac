"""Sessions with execution providers other than the CPU provider. The plain build of ONNX Runtime has one that computes nothing,
so that all nodes run on the CPU. `tests/other_builds` has sessions with others."""

import logging

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from large_models import apart, is_large  # noqa: F401
from onnx_models import session, session_options
from other_providers import CPU, OTHERS, other_provider  # noqa: F401
from text_graphs import text_model

import quark_numba
from quark_numba.ort import native
from quark_numba.session.model_cache import ModelCache
from quark_numba.session.request import SessionRequest

pytestmark = [pytest.mark.compiled, pytest.mark.usefixtures("other_provider")]

X = np.random.default_rng(0).normal(0, 3, (2, 4)).astype(np.float32)
X.flat[:4] = -0.1, np.nan, np.inf, 1e-40
OURS = "p = Pair (x, s, z)"
ONNXS = "q = QuantizeLinear (p, s, z)  y = DequantizeLinear (q, s, z)"
# ONNX Runtime's CPU provider has no scales of bfloat16.
OF_BFLOAT16 = "h = Cast <to = 16> (x)  q = QuantizeLinear (h, b, z)  d = DequantizeLinear (q, b, z)  y = Cast <to = 1> (d)"


def model_of(nodes):
    """Return a model whose weight is quantized by Quark's operators, from the texts of its other nodes."""
    weight = np.random.default_rng(1).normal(0, 1, (4, 3)).astype(np.float32)
    scales = {"s": np.float32(0.125), "z": np.int8(3), "b": np.array(0.125, ml_dtypes.bfloat16)}
    text = f"(float[2, 4] x) => (float[2, 3] m) {{ {nodes}  v = Pair (w, s, z)  m = MatMul (y, v) }}"
    return text_model(text, opset=23, w=weight, **scales)


@pytest.fixture
def written(tmp_path):
    """Return a function that creates a session, and returns it with the operators that ONNX Runtime has got."""

    def create(source, providers, **named):
        path = tmp_path / "written.onnx"
        options = session_options("DISABLE_ALL")
        options.optimized_model_filepath = str(path)
        made = quark_numba.InferenceSession(source, options, providers, **named)
        return made, operators(path)

    return create


def operators(path):
    return {f"{node.domain}::{node.op_type}" for node in onnx.load(path).graph.node}


def is_standard(names):
    """Return whether all nodes are from ONNX's domain, and no node has the name of a quantization operator."""
    return not any("Quantize" in name or not name.startswith("::") for name in names)


def bits(made):
    (y,) = made.run(None, {"x": X})
    return y.tobytes()


@pytest.mark.parametrize(
    ("nodes", "named", "expected"),
    [
        (f"{OURS}  y = Relu (p)", {}, True),
        (f"{OURS}  {ONNXS}", {}, True),
        (f"{OURS}  {ONNXS}", {"qdq": "onnxruntime"}, False),
        (f"{OURS}  y = Relu (p)", {"operators": "custom"}, False),
        (f"{OURS}  y = Relu (p)", {"keep_quantized_weights": True}, True),
    ],
)
@pytest.mark.by_default(2)
def test_what_is_written(nodes, named, expected, written):
    source = model_of(nodes)
    made, found = written(source, OTHERS, **named)
    assert is_standard(found) is expected
    assert bits(made) == bits(session(source, level="DISABLE_ALL"))
    assert not is_standard(written(source, CPU, **named)[1])


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["CUDA", "CPU"], "standard"), (["OpenVINO", "CPU"], "custom"), (["CUDA", "OpenVINO"], "custom"), (["CPU"], "custom")],
)
def test_what_auto_means(names, expected):
    """The OpenVINO provider computes standard operators in its own arithmetic."""
    options, names = onnxruntime.SessionOptions(), [f"{name}ExecutionProvider" for name in names]
    assert SessionRequest(None, options, names).written_operators == expected
    assert SessionRequest(None, options, [(name, {}) for name in names]).written_operators == expected
    for each in ("custom", "standard"):
        assert SessionRequest(None, options, names, operators=each).written_operators == each


def onnxs_own(nodes):
    """Return a model of ONNX's own operators alone."""
    source = model_of(nodes)
    del source.graph.node[-3:-1]
    source.graph.node[-1].input[1] = "w"
    return source


@pytest.mark.parametrize(("qdq", "expected"), [("auto", False), ("float", True), ("onnxruntime", False)])
def test_models_of_onnxs_own_operators(qdq, expected, written):
    """Models of ONNX's own operators stay as they are: a provider may have integer operators."""
    source = onnxs_own("p = Relu (x)  " + ONNXS)
    made, found = written(source, OTHERS, qdq=qdq)
    assert is_standard(found) is expected
    assert expected or found == {f"::{node.op_type}" for node in source.graph.node}
    assert bits(made) == bits(session(source, level="DISABLE_ALL"))


def test_onnxs_own_operators_that_onnx_runtime_lacks(written):
    source = onnxs_own(OF_BFLOAT16)
    made, found = written(source, OTHERS)
    assert is_standard(found)
    assert bits(made) == bits(session(source, level="DISABLE_ALL", qdq="float"))


def test_standard_operators_on_the_cpu(written):
    source = model_of(f"{OURS}  {ONNXS}")
    made, found = written(source, CPU, operators="standard")
    assert is_standard(found)
    assert bits(made) == bits(session(source, level="DISABLE_ALL"))


@pytest.mark.parametrize("kind", ["path", "bytes", "ModelProto", "files"])
def test_set_providers(kind, tmp_path, monkeypatch):
    """The model is made for the providers that a session gets."""
    source, path = model_of(f"{OURS}  {ONNXS}"), tmp_path / "m.onnx"
    (apart if kind == "files" else onnx.save)(source, path)
    given = {"ModelProto": source, "bytes": source.SerializeToString()}.get(kind, path)
    options, loaded = session_options("DISABLE_ALL"), tmp_path / "loaded.onnx"
    options.optimized_model_filepath = str(loaded)
    made = quark_numba.InferenceSession(given, options, OTHERS)
    source.graph.ClearField("node")  # which does not change the session
    first, found = bits(made), [is_standard(operators(loaded))]
    for providers in (CPU, OTHERS):
        made.set_providers(providers)
        assert bits(made) == first
        found.append(is_standard(operators(loaded)))
    assert found == [True, False, True]
    assert made.get_providers() == OTHERS


def test_cached_models(tmp_path, written):
    path = tmp_path / "m.onnx"
    onnx.save(model_of(f"{OURS}  y = Relu (p)"), path)
    for providers, named, entries in [(OTHERS, {}, 1), (CPU, {}, 2), (OTHERS, {}, 2), (OTHERS, {"operators": "custom"}, 3)]:
        made, found = written(path, providers, cache=tmp_path / "kept", **named)
        assert is_standard(found) is (providers == OTHERS and not named)
        assert len([*ModelCache(tmp_path / "kept").entries()]) == entries
        made.set_providers(CPU)
        assert bits(made) == bits(session(path, level="DISABLE_ALL"))


@pytest.mark.usefixtures("is_large")
def test_large_models(tmp_path, written):
    path = tmp_path / "m.onnx"
    apart(model_of(f"{OURS}  y = Relu (p)"), path)
    made, found = written(path, OTHERS)
    assert is_standard(found)
    assert bits(made) == bits(session(path, level="DISABLE_ALL"))


def test_initializers_as_inputs(written):
    source = model_of(f"{OURS}  y = Relu (p)")
    source.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4, 3]))
    made, found = written(source, OTHERS)
    assert is_standard(found)
    feeds = {"x": X, "w": np.float32([[1, 2, 3]] * 4)}
    expected = session(source, level="DISABLE_ALL").run(None, feeds)[0]
    assert made.run(None, feeds)[0].tobytes() == expected.tobytes()


def test_nodes_without_a_form(written, caplog, monkeypatch):
    """Nodes without a standard form stay, and run on the CPU."""
    source = model_of("p = MXQuantizeDequantize <block_size = 2> (x)  y = Relu (p)")
    operator = quark_numba.catalog.OPERATORS.find("com.amd.quark", "MXQuantizeDequantize")
    monkeypatch.setitem(operator.__dict__, "standard_form", None)
    with caplog.at_level(logging.WARNING):
        made, found = written(source, OTHERS)
    assert [name for name in found if not is_standard([name])] == ["com.amd.quark::MXQuantizeDequantize"]
    assert "1 node com.amd.quark::MXQuantizeDequantize: it has no standard form" in caplog.text
    assert bits(made) == bits(session(source, level="DISABLE_ALL"))
    caplog.clear()
    written(source, CPU)
    assert not caplog.text


def test_drop_in_sessions(caplog, monkeypatch, other_provider):  # noqa: F811
    """Drop-in sessions copy tensors to the CPU and back, for each node. A warning says so once per process."""
    monkeypatch.setattr(native.REGISTRY, "_has_warned", False)
    source = model_of(f"{OURS}  y = Relu (p)")
    content, options = source.SerializeToString(), session_options()
    quark_numba.register(options)
    with caplog.at_level(logging.WARNING):
        onnxruntime.InferenceSession(content, options, CPU)
        onnxruntime.InferenceSession(content, options)
        onnxruntime.InferenceSession(onnxs_own(ONNXS.replace("(p,", "(x,")).SerializeToString(), options, OTHERS)
        quark_numba.InferenceSession(source, providers=OTHERS, operators="custom")
        assert not caplog.text
        for _ in range(2):
            onnxruntime.InferenceSession(content, options, [(each, {}) for each in OTHERS])
    (record,) = caplog.records
    assert OTHERS[0] in record.getMessage()
    assert 'operators="standard"' in record.getMessage()
