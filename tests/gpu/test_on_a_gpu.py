"""Sessions on an NVIDIA GPU, with onnxruntime-gpu. Without a GPU they are skipped."""

import json
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import samples
from block_samples import values
from onnx_models import run, session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.ort import cuda
from quark_numba.ort.providers import CUDA, available, operators_for

CPU = "CPUExecutionProvider"
EXACT = (CUDA, {"use_tf32": "0"})


def has_gpu():
    library = CUDA in available() and cuda.driver()
    return bool(library) and library.cuInit(0) == 0


pytestmark = [pytest.mark.compiled, pytest.mark.skipif(not has_gpu(), reason="no GPU, or not onnxruntime-gpu")]


def session(model, *, provider=EXACT, level="ENABLE_ALL", **entries):
    options = session_options(level, **entries)
    quark_numba.register(options)
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    made = onnxruntime.InferenceSession(content, options, [provider, CPU], disable_fallback=True)
    assert made.get_providers()[0] == (provider if isinstance(provider, str) else provider[0])
    return made


def feeds_of(made, batch=2):
    rng = np.random.default_rng(0)
    shapes = {each: [length if isinstance(length, int) else batch for length in each.shape] for each in made.get_inputs()}
    return {each.name: rng.normal(size=shape).astype(np.float32) for each, shape in shapes.items()}


def assert_same(y, expected):
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(y), is_nan)
    np.testing.assert_array_equal(y.view(np.uint32)[~is_nan], expected.view(np.uint32)[~is_nan])


PAIR = "q = ExtendedQuantizeLinear <axis = 1> (x, s, z)  y = ExtendedDequantizeLinear <axis = 1> (q, s, z)"
BLOCKS = 'y = BFPQuantizeDequantize <axis = 1, bfp_method = "to_bfp", bit_width = 16, block_size = 8> (x)'


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_per_axis", [False, True])
def test_pairs(name, is_per_axis):
    scale = np.float32([0.1, 3, 7e-5, 1, 0.03]) if is_per_axis else np.float32(0.1)
    zero_point = np.zeros(scale.shape, quark_numba.element_types.find(name).dtype)
    x = np.resize(np.float32(samples.SPECIAL), (7, 5, 33, 3))
    model = text_model(f"(float[7, 5, 33, 3] x) => (float[] y) {{ {PAIR} }}", s=scale, z=zero_point)
    assert_same(session(model).run(None, {"x": x})[0], session(model, provider=CPU).run(None, {"x": x})[0])


def test_nodes_are_on_the_gpu(tmp_path):
    model = text_model(f"(float[2, 5] x) => (float[] y) {{ {PAIR} }}", s=np.float32(0.1), z=np.int8(0))
    options = session_options()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    quark_numba.register(options)
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, [EXACT, CPU])
    made.run(None, {"x": np.ones((2, 5), np.float32)})
    events = json.loads(Path(made.end_profiling()).read_text())
    nodes = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event["args"]]
    providers = {node["op_name"]: node["provider"] for node in nodes}
    assert providers["ExtendedQuantizeLinear"] == providers["ExtendedDequantizeLinear"] == CUDA
    assert sum("Memcpy" in node["op_name"] for node in nodes) == 2  # of x and y


def test_blocks():
    x = values((3, 37, 5), "float32")
    model = text_model(f"(float[3, 37, 5] x) => (float[] y) {{ {BLOCKS} }}")
    assert_same(session(model).run(None, {"x": x})[0], session(model, provider=CPU).run(None, {"x": x})[0])


@pytest.mark.parametrize("variant", ["bf16", "fp16", "u32", "i32", "a8w8", "bfp16", "mx9", "mxfp8"])
def test_models(variant):
    """The products of GPUs have other last bits; the model in standard operators has the same ones."""
    path = MODELS / f"textline_cls_{variant}.onnx"
    made = quark_numba.InferenceSession(path, session_options(), [EXACT, CPU])
    assert operators_for([CUDA]) == "cuda"
    feeds = feeds_of(made)
    y = made.run(None, feeds)[0]
    standard = quark_numba.optimize(path, operators="standard")
    expected = onnxruntime.InferenceSession(standard.SerializeToString(), session_options(), [EXACT, CPU]).run(None, feeds)[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3)
    np.testing.assert_allclose(session(path, disable_quant_qdq="1").run(None, feeds)[0], expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["tagger_u16", "qonnx/cnn_w4a4", "mct/mct_uniform", "nvidia/fp8_m", "style_bf16"])
def test_other_models(name):
    path = MODELS / f"{name}.onnx"
    made = quark_numba.InferenceSession(path, session_options(), [EXACT, CPU])
    feeds = feeds_of(made, 1)
    expected = quark_numba.InferenceSession(path, session_options(), [CPU]).run(None, feeds)[0]
    np.testing.assert_allclose(made.run(None, feeds)[0], expected, rtol=2e-2, atol=2e-2)


def test_io_binding_and_a_graph_of_cuda():
    """A CUDA graph replays the launches with the addresses of the tensors in the first run."""
    model = text_model(f"(float[64, 5] x) => (float[64, 5] y) {{ {PAIR} }}", s=np.float32(0.1), z=np.int8(0))
    options = session_options()
    quark_numba.register(options)
    provider = (CUDA, {"enable_cuda_graph": "1"})
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, [provider])
    expected = session(model, provider=CPU)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((64, 5), np.float32), "cuda", 0)
    y = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((64, 5), np.float32), "cuda", 0)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for seed in range(4):
        array = np.random.default_rng(seed).normal(0, 9, (64, 5)).astype(np.float32)
        x.update_inplace(array)
        made.run_with_iobinding(binding)
        assert_same(y.numpy(), expected.run(None, {"x": array})[0])


def test_sessions_in_threads():
    """Sessions in several threads, each with its own stream, give the same results."""
    model = text_model(f"(float[n, 5] x) => (float[n, 5] y) {{ {PAIR} }}", s=np.float32(0.1), z=np.int8(0))
    expected, wrong = session(model, provider=CPU), []

    def work(seed):
        made, rng = session(model), np.random.default_rng(seed)
        for rows in (1, 1000, 50_000) * 3:
            x = rng.normal(0, 9, (rows, 5)).astype(np.float32)
            if not np.array_equal(made.run(None, {"x": x})[0], expected.run(None, {"x": x})[0]):
                wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_shapes_are_refused():
    model = text_model(f"(float[n, 5] x, float[m] s) => (float[] y) {{ {PAIR} }}", z=np.zeros(5, np.int8))
    with pytest.raises(Exception, match=r"zero_point has shape \(5,\); expected the shape of scale, \(3,\)"):
        run(session(model), x=np.zeros((2, 5), np.float32), s=np.ones(3, np.float32))
