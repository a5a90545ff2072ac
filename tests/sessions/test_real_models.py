"""The models that Quark wrote (models/README.md) give the outputs of ONNX Runtime with Quark's own library."""

import numpy as np
import onnxruntime
import pytest
from onnx_models import session
from other_operators_oracle import HAS_SAME_TANHF
from paths import MODELS

from quark_numba import optimize

pytestmark = pytest.mark.compiled


@pytest.fixture(scope="module")
def expected():
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def tolerance(expected):
    """1e-5 if this CPU computes the float model like the CPU that made the expected outputs, else 1e-2."""
    float_model = onnxruntime.InferenceSession(MODELS / "textline_cls_float.onnx", providers=["CPUExecutionProvider"])
    difference = np.abs(float_model.run(None, {"x": expected["x"]})[0] - expected["float"]).max()
    return 1e-5 if difference < 1e-6 else 1e-2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("variant", "backend"),
    [(variant, "native") for variant in ("bf16", "fp16", "i32", "u32", "bfp16", "mx9", "mxfp8")]
    + [(variant, "extensions") for variant in ("i32", "u32", "bfp16", "mx9", "mxfp8")],
)
@pytest.mark.by_default(4)
def test_expected_outputs(variant, backend, threads, expected, tolerance):
    model = session(MODELS / f"textline_cls_{variant}.onnx", backend=backend, threads=threads, disable_quant_qdq="1")
    (y,) = model.run(None, {"x": expected["x"]})
    np.testing.assert_allclose(y, expected[variant], rtol=0, atol=tolerance)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", ["tagger_u16", "style_xint8", "style_bf16"])
@pytest.mark.by_default(1)
def test_expected_outputs_of_other_operators(name, optimized, threads, tolerance):
    """An optimized model has another layout of convolutions, with which one rounding to bfloat16 may flip, by a step of 2**-8.
    With another tanhf, some codes of LSTM layers are a step off."""
    with np.load(MODELS / f"{name}_expected.npz") as arrays:
        xs, expected = arrays["x"], arrays["y"]
    path = MODELS / f"{name}.onnx"
    source = optimize(path) if optimized else path
    model = session(source, threads=threads, disable_quant_qdq="1")
    y = np.stack([model.run(None, {"x": x})[0] for x in xs])
    allowed = tolerance
    if name == "tagger_u16":
        allowed = 0 if HAS_SAME_TANHF else 1e-3
    if name == "style_bf16" and optimized:
        allowed = max(allowed, 2**-7)
    np.testing.assert_allclose(y, expected, rtol=0, atol=allowed)
