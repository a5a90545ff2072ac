"""A model that Quark quantized, in plain ONNX Runtime with one more line, and in an optimized session."""

from pathlib import Path

import numpy as np
import onnxruntime

import quark_numba

models = Path(__file__).parent.parent / "tests" / "models"
model = models / "textline_cls_bf16.onnx"
x = np.load(models / "textline_cls_expected.npz")["x"]

session_options = onnxruntime.SessionOptions()
session_options.register_custom_ops_library(quark_numba.get_library_path())
as_written = onnxruntime.InferenceSession(model, session_options)

# The first session on a machine compiles the kernels. Later ones find them, and with cache=True the optimized model as well.
optimized = quark_numba.InferenceSession(model, cache=True)

(expected,) = as_written.run(None, {"x": x})
(scores,) = optimized.run(None, {"x": x})
print("largest difference between the two sessions:", np.abs(scores - expected).max())
print("the same classes:", (scores.argmax(-1) == expected.argmax(-1)).all())
