"""The models of the tests of stand-alone libraries, and the sessions that their outputs are compared with."""

import numpy as np
import onnxruntime

import quark_numba

# bfloat16, 16 and 32 bits with an LSTM, block formats, normalizations, QONNX's and MCT's operators, and float8 in uint8.
NAMES = (
    "textline_cls_bf16",
    "textline_cls_i32",
    "textline_cls_mx9",
    "textline_cls_bfp16",
    "tagger_u16",
    "style_xint8",
    "qonnx/cnn_w4a4",
    "mct/mct_lut",
    "nvidia/fp8_m",
)


def feeds_of(session):
    """Return random inputs; unknown dimensions are 2."""
    rng = np.random.default_rng(0)
    shapes = {each.name: [size if isinstance(size, int) else 2 for size in each.shape] for each in session.get_inputs()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def own_session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    quark_numba.register(options, backend="native")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
