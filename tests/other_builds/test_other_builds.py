"""Builds of ONNX Runtime with other execution providers than the CPU's, whose libraries may be missing.

`make_environment.sh` makes an environment for each build."""

import numpy as np
import onnxruntime
import pytest
from other_quantizers import expectation
from paths import MODELS

import quark_numba
from quark_numba.catalog import OPERATORS
from quark_numba.element_types import BFLOAT16, FLOAT32, INT8, find
from quark_numba.rewriting.onnx_runtime import casts_to, has_operator, runs

ALL = [name for name in onnxruntime.get_available_providers() if name != "AzureExecutionProvider"]
IS_OPENVINO = "OpenVINOExecutionProvider" in ALL

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(ALL == ["CPUExecutionProvider"], reason="no other providers; make_environment.sh makes environments"),
]

CPU = ["CPUExecutionProvider"]
PROVIDERS = pytest.mark.parametrize("providers", [None, CPU, ALL], ids=["default", "CPU", "all"])
MODEL = MODELS / "textline_cls_bf16.onnx"


def expected_of(name):
    """Return the inputs of a model with their expected output."""
    expected = np.load(MODELS / "textline_cls_expected.npz")
    return expected["x"], expected[name]


def assert_near(session, name):
    x, y = expected_of(name)
    assert np.abs(session.run(None, {"x": x})[0] - y).max() < 2e-2


@PROVIDERS
@pytest.mark.parametrize("name", ["bf16", "u32", "mxfp8"])
def test_sessions(name, providers):
    session = quark_numba.InferenceSession(MODELS / f"textline_cls_{name}.onnx", providers=providers)
    assert_near(session, name)


@PROVIDERS
def test_kept_models(providers, tmp_path):
    for _ in range(2):
        session = quark_numba.InferenceSession(MODEL, providers=providers, cache=tmp_path)
        assert_near(session, "bf16")
        session.set_providers(CPU)
        assert_near(session, "bf16")


@PROVIDERS
def test_optimised_models(providers, tmp_path):
    """OpenVINO's provider needs shapes, which sessions write."""
    quark_numba.optimize(MODEL, tmp_path / "m.onnx")
    assert_near(quark_numba.InferenceSession(tmp_path / "m.onnx", providers=providers), "bf16")


@pytest.mark.parametrize("standard_ops", [False, True])
def test_drop_in_sessions(standard_ops):
    if standard_ops and IS_OPENVINO:
        pytest.skip("the release is older than standard_ops")
    options = onnxruntime.SessionOptions()
    quark_numba.register(options, standard_ops=standard_ops)
    assert_near(onnxruntime.InferenceSession(str(MODEL), options, CPU if IS_OPENVINO else ALL), "bf16")


@PROVIDERS
def test_operators_of_onnx(providers):
    """With other providers these nodes are theirs."""
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


def test_the_command(terminal, tmp_path):
    package = "onnxruntime-openvino" if IS_OPENVINO else "onnxruntime-gpu"
    assert package in terminal.report("info")["onnxruntime"]
    np.savez(tmp_path / "x.npz", x=expected_of("bf16")[0])
    assert terminal.report("run", MODEL, "--data", tmp_path / "x.npz", "--optimize")
    terminal.text("optimize", MODEL, tmp_path / "m.onnx")
    assert terminal.report("analyze", tmp_path / "m.onnx", "--data", tmp_path / "x.npz")
