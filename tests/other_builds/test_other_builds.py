"""Builds of ONNX Runtime with execution providers other than the CPU provider, whose libraries may be missing.

`make_environment.sh` makes an environment for each build."""

import logging
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import session_options
from other_quantizers import expectation
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.catalog import OPERATORS
from quark_numba.element_types import BFLOAT16, FLOAT32, INT8, find
from quark_numba.ort import cuda, native
from quark_numba.ort.providers import CUDA, operators_for
from quark_numba.rewriting.onnx_runtime import casts_to, has_operator, runs

ALL = [name for name in onnxruntime.get_available_providers() if name != "AzureExecutionProvider"]
IS_OPENVINO = "OpenVINOExecutionProvider" in ALL

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(ALL == ["CPUExecutionProvider"], reason="no other providers; make_environment.sh makes environments"),
]

CPU = ["CPUExecutionProvider"]
PROVIDERS = pytest.mark.parametrize("providers", [None, CPU, ALL], ids=["default", "CPU", "all"])
only_cuda = pytest.mark.skipif(CUDA not in ALL, reason="needs the CUDA provider")
only_openvino = pytest.mark.skipif(not IS_OPENVINO, reason="needs the OpenVINO provider")
MODEL = MODELS / "textline_cls_bf16.onnx"


def expected_of(name):
    """Return the inputs of a model with their expected output."""
    expected = np.load(MODELS / "textline_cls_expected.npz")
    return expected["x"], expected[name]


def assert_near(session, name):
    x, y = expected_of(name)
    assert np.abs(session.run(None, {"x": x})[0] - y).max() < 2e-2


@PROVIDERS
@pytest.mark.parametrize("name", ["bf16", "fp16", "u32", "mxfp8", "bfp16"])
def test_sessions(name, providers):
    session = quark_numba.InferenceSession(MODELS / f"textline_cls_{name}.onnx", providers=providers)
    assert_near(session, name)
    assert not (IS_OPENVINO and providers is ALL) or session.get_providers() == ALL
    # ONNX Runtime raises an error where TensorRT's libraries are missing, and tries again only in a new session.
    for other in (CPU, providers and [each for each in providers if "Tensorrt" not in each]):
        session.set_providers(other)
        assert_near(session, name)


@pytest.mark.parametrize("name", ["bf16", "fp16", "u32"])
def test_standard_operators_on_the_cpu(name):
    """Standard operators on the CPU give every bit of drop-in sessions."""
    standard = quark_numba.optimize(MODELS / f"textline_cls_{name}.onnx", operators="standard")
    assert {node.domain for node in standard.graph.node} == {""}
    options = session_options("DISABLE_ALL")
    quark_numba.register(options)
    feeds = {"x": expected_of(name)[0]}
    expected = onnxruntime.InferenceSession(str(MODELS / f"textline_cls_{name}.onnx"), options, CPU).run(None, feeds)[0]
    made = onnxruntime.InferenceSession(standard.SerializeToString(), session_options("DISABLE_ALL"), CPU)
    assert made.run(None, feeds)[0].tobytes() == expected.tobytes()


@only_cuda
def test_operators_of_two_providers(monkeypatch):
    """With a driver, an operator is also registered for the CUDA provider. The CPU provider runs its own."""
    monkeypatch.setattr(cuda, "driver", lambda: SimpleNamespace())
    monkeypatch.setattr(native.REGISTRY, "_domains", {})
    options = session_options()
    quark_numba.register(options)
    structures = [each.is_on_gpu for each in native.REGISTRY._custom_ops.values()]
    session = onnxruntime.InferenceSession(str(MODEL), options, CPU)
    assert structures.count(True) > 100
    assert_near(session, "bf16")


@only_cuda
def test_sessions_without_a_driver(caplog):
    if cuda.driver():
        pytest.skip("this machine has a driver")
    assert operators_for([CUDA]) == "standard"
    assert native._providers() == [None]
    session = quark_numba.InferenceSession(MODEL, session_options(), CPU)
    assert_near(session, "bf16")
    assert not caplog.records


def quantized(element_type, scale, axis=None):
    """Return the outputs of a session with the OpenVINO provider and of a drop-in session for the same values."""
    rng = np.random.default_rng(0)
    scales = np.resize(np.float32(scale), (8, 1))
    ties = (np.arange(-300, 300) + 0.5).astype(np.float32) * scales
    x = [[0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 65504, 65520, -65520]] * 8, ties
    x = [*x, *(np.nextafter(ties, np.float32(end)) for end in (-np.inf, np.inf)), rng.normal(0, 30, (8, 4000))]
    x.append(rng.integers(0, 2**32, (8, 4000), np.uint32).view(np.float32))
    x = np.concatenate([np.float32(each) for each in x], axis=1)
    attribute = "" if axis is None else f"<axis = {axis}>"
    text = f"q = ExtendedQuantizeLinear {attribute} (x, s, z)  y = ExtendedDequantizeLinear {attribute} (q, s, z)"
    dtype = find(element_type).dtype
    zero_point = np.zeros(np.shape(scale), dtype) if element_type.endswith("float16") else np.full(np.shape(scale), 5, dtype)
    model = text_model(f"(float[8, {x.shape[1]}] x) => (float[] y) {{ {text} }}", s=np.float32(scale), z=zero_point)
    options = session_options("DISABLE_ALL")
    quark_numba.register(options)
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options, CPU).run(None, {"x": x})[0]
    session = quark_numba.InferenceSession(model, session_options(), ALL)
    assert session.get_providers() == ALL
    return session.run(None, {"x": x})[0], expected


@only_openvino
@pytest.mark.parametrize("element_type", ["int8", "uint16", "uint32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1, 0.1, np.geomspace(0.1, 9, 8)], ids=["1", "0.1", "per axis"])
def test_openvino(element_type, scale):
    """The nodes stay operators of this package, which the CPU provider runs, so every bit is the same."""
    y, expected = quantized(element_type, scale, None if np.ndim(scale) == 0 else 0)
    assert np.array_equal(y, expected, equal_nan=True)
    assert np.array_equal(np.signbit(y), np.signbit(expected))


@only_openvino
@pytest.mark.parametrize("element_type", ["int8", "uint8", "uint16"])
def test_codes_with_openvino(element_type):
    """Quantize and dequantize nodes that are not adjacent run with the OpenVINO provider."""
    zero_point = np.array(5, element_type)
    text = "q = ExtendedQuantizeLinear (x, s, z)  r = Reshape (q, n)  y = ExtendedDequantizeLinear (r, s, z)  c = Identity (q)"
    number = find(element_type).number
    model = text_model(f"(float[2, 40] x) => (float[] y) {{ {text} }}", s=np.float32(0.5), z=zero_point, n=np.array([80]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", number, [2, 40]))
    x = np.random.default_rng(0).normal(0, 90, (2, 40)).astype(np.float32)
    x.flat[:5] = np.nan, np.inf, -np.inf, 0.25, 0.75
    options = session_options("DISABLE_ALL")
    quark_numba.register(options)
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options, CPU).run(None, {"x": x})
    for y, right in zip(quark_numba.InferenceSession(model, session_options(), ALL).run(None, {"x": x}), expected, strict=True):
        assert np.array_equal(y, right)


@only_openvino
def test_a_model_that_openvino_refuses(caplog):
    """ONNX Runtime gives the provider, as one part, nodes on both sides of a node that the CPU provider runs."""
    text = "h = MatMul (x, w)  p = Pair (h, s, z)  m = MatMul (p, w)  y = MatMul (m, h)"
    weight = np.random.default_rng(1).normal(0, 1, (4, 4)).astype(np.float32)
    scale = {"s": np.float32(0.3), "z": np.int8(0)}
    model = text_model(f"(float[4, 4] x) => (float[4, 4] y) {{ {text} }}", w=weight, **scale)
    options = session_options()
    with caplog.at_level(logging.WARNING):
        session = quark_numba.InferenceSession(model, options, ALL)
    assert session.get_providers() == CPU
    assert "runs on the CPU provider alone" in caplog.text
    x = weight[::-1].copy()
    expected = quark_numba.InferenceSession(model, session_options(), CPU).run(None, {"x": x})[0]
    assert session.run(None, {"x": x})[0].tobytes() == expected.tobytes()
    session.set_providers(ALL)
    assert session.get_providers() == CPU


@PROVIDERS
def test_cached_models(providers, tmp_path):
    for _ in range(2):
        session = quark_numba.InferenceSession(MODEL, providers=providers, cache=tmp_path)
        assert_near(session, "bf16")
        session.set_providers(CPU)
        assert_near(session, "bf16")


@PROVIDERS
def test_optimized_models(providers, tmp_path):
    """The OpenVINO provider needs shapes, which sessions write."""
    quark_numba.optimize(MODEL, tmp_path / "m.onnx")
    assert_near(quark_numba.InferenceSession(tmp_path / "m.onnx", providers=providers), "bf16")


@pytest.mark.parametrize("qdq", ["auto", "float"])
def test_drop_in_sessions(qdq):
    if qdq == "float" and IS_OPENVINO:
        pytest.skip('the release is older than qdq="float"')
    options = onnxruntime.SessionOptions()
    quark_numba.register(options, qdq=qdq)
    assert_near(onnxruntime.InferenceSession(str(MODEL), options, CPU if IS_OPENVINO else ALL), "bf16")


@PROVIDERS
def test_operators_of_onnx(providers):
    """With other providers, nodes of ONNX's own operators stay as they are."""
    x, _ = expected_of("bf16")
    ours = quark_numba.InferenceSession(MODELS / "textline_cls_a8w8.onnx", providers=providers).run(None, {"x": x})[0]
    theirs = onnxruntime.InferenceSession(str(MODELS / "textline_cls_a8w8.onnx"), providers=providers).run(None, {"x": x})[0]
    assert np.abs(ours - theirs).max() < 0.1


@pytest.mark.parametrize("name", ["qonnx/cnn_w4a4", "nvidia/fp8_m"])
def test_models_of_other_quantizers(name):
    feeds, expected = expectation(MODELS / f"{name}.onnx")
    outputs = quark_numba.InferenceSession(MODELS / f"{name}.onnx", providers=ALL).run(None, feeds)
    for y, y_of_vendor in zip(outputs, expected, strict=True):
        assert np.abs(y - y_of_vendor).max() < 0.1 * max(1, np.abs(y_of_vendor).max())


def test_what_the_cpu_provider_has():
    assert has_operator("", "Conv")
    assert not has_operator("", "Konv")
    for name in ("QuantizeLinear", "DequantizeLinear"):
        operator = OPERATORS.find("", name)
        assert runs(operator, "", INT8, FLOAT32)
        assert runs(operator, "com.microsoft", find("int4"), None)
        assert not runs(operator, "", INT8, BFLOAT16)
        assert not runs(operator, "", find("float4e2m1"), None)
    assert casts_to(BFLOAT16)
    assert not casts_to(find("float6e2m3"))


def test_providers_by_name(terminal, tmp_path):
    np.savez(tmp_path / "x.npz", x=expected_of("u32")[0])
    words = [MODELS / "textline_cls_u32.onnx", "--data", tmp_path / "x.npz", "--providers"]
    if not IS_OPENVINO:  # the libraries of CUDA are missing, or there is no GPU
        assert "CUDAExecutionProvider did not start" in terminal.error("evaluate", *words, "cuda")
        return
    assert terminal.report("run", *words, "openvino")["providers"] == ALL
    on_cpu = terminal.report("evaluate", *words, "cpu")["outputs"][0]["sqnr_db"]
    for command in ("evaluate", "analyze"):
        assert abs(terminal.report(command, *words, "openvino")["outputs"][0]["sqnr_db"] - on_cpu) < 0.1


def test_the_command(terminal, tmp_path):
    package = "onnxruntime-openvino" if IS_OPENVINO else "onnxruntime-gpu"
    assert package in terminal.report("info")["onnxruntime"]
    np.savez(tmp_path / "x.npz", x=expected_of("bf16")[0])
    assert terminal.report("run", MODEL, "--data", tmp_path / "x.npz", "--optimize")
    terminal.text("optimize", MODEL, tmp_path / "m.onnx")
    assert terminal.report("analyze", tmp_path / "m.onnx", "--data", tmp_path / "x.npz")
