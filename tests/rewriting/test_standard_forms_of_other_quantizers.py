"""Models of other quantizers, and of Quark's other operators, as they are, in ONNX's standard operators."""

import numpy as np
import onnx
import pytest
import samples
from onnx_models import feeds_of, session
from oracle import assert_same_bits
from other_quantizers import expectation, models_of
from paths import MODELS
from standard_models import in_standard_operators, plain_session
from text_graphs import text_model

from quark_numba import optimize

pytestmark = pytest.mark.compiled

PATHS = models_of("qonnx", "mct", "nvidia", "channels_last")
PATHS += [MODELS / f"{name}.onnx" for name in ("style_bf16", "style_xint8")]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.by_default(2)
def test_models(path):
    """They have the bits of drop-in sessions, on the vendors' inputs and on random ones. QONNX's models list their parameters
    as inputs. No runtime has QONNX's operators with channels on the last axis, which are rewritten for both sessions."""
    source = onnx.load(path)
    drop_in = optimize(source) if path.parent.name == "channels_last" else source
    standard = in_standard_operators(source, keep_initializers_as_inputs=False)
    sessions = plain_session(standard), session(drop_in, level="DISABLE_ALL", threads=1, qdq="float")
    feeds = feeds_of(sessions[0], 2)
    fed = [feeds, {name: 100 * x for name, x in feeds.items()}]
    if path.parent != MODELS:
        fed.append(expectation(path)[0])
    for each in fed:
        for actual, expected in zip(*(made.run(None, each) for made in sessions), strict=True):
            assert_same_bits(actual, expected)
            assert not np.all(np.isnan(expected))


@pytest.mark.parametrize("is_constant", [True, False])
def test_scales_that_are_exponents(is_constant):
    """The uint8 tensors of TensorRT hold the exponents of powers of two: computed scales, and constants."""
    x = samples.SPECIAL[: len(samples.SPECIAL) // 2 * 2].reshape(-1, 2)
    w = np.random.default_rng(0).integers(0, 255, x.shape, np.uint8)
    quantized = "q, s = trt.TRT_MXFP8DynamicQuantize <axis = 1, block_size = 2, output_dtype = 17> (x)"
    if is_constant:
        quantized = "q = Cast <to = 17> (x)  s = Identity (w)"
    nodes = (
        f"{quantized}  y = trt.TRT_MXFP8DequantizeLinear <axis = 1, block_size = {2 - is_constant}, output_dtype = 1> (q, s)"
    )
    source = text_model(f"(float[{len(x)}, 2] x) => (float[{len(x)}, 2] y) {{ {nodes} }}", opset=23, w=w)
    if not is_constant:
        source.graph.output.append(onnx.helper.make_tensor_value_info("q", 17, x.shape))
    standard = in_standard_operators(source)
    assert is_constant or "Gather" in {node.op_type for node in standard.graph.node}
    actual, expected = (
        made.run(["y"], {"x": x})[0]
        for made in (plain_session(standard), session(source, level="DISABLE_ALL", threads=1, qdq="float"))
    )
    assert_same_bits(actual, expected)
