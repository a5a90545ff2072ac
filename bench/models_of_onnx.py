"""Models in ONNX's own operators, as onnxruntime.quantization writes them, and the float models that they were made from."""

import logging
import warnings
from functools import lru_cache
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
from architectures import architecture
from labels import FLOAT, ONNX_RUNTIME, SESSION
from measuring import MODELS as TESTED
from measuring import classifier_inputs, random_inputs
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

ALL_OURS = "session_in_float"
CONTENDERS = (FLOAT, ONNX_RUNTIME, SESSION, ALL_OURS)
MODELS = ("classifier", "residual_network", "text_detector", "mobile_network", "dense_layers", "transformer")

# The types of activations and weights; the last have their lowest opset.
TYPES = {
    "uint8": (QuantType.QUInt8, QuantType.QUInt8, 17),
    "int8": (QuantType.QInt8, QuantType.QInt8, 17),
    "a8w8": (QuantType.QUInt8, QuantType.QInt8, 17),
    "a16w8": (QuantType.QUInt16, QuantType.QInt8, 21),
    "a16w16": (QuantType.QUInt16, QuantType.QInt16, 21),
    "a8w4": (QuantType.QUInt8, QuantType.QInt4, 21),
    "a16w4": (QuantType.QUInt16, QuantType.QInt4, 21),
    "float8": (QuantType.QFLOAT8E4M3FN, QuantType.QFLOAT8E4M3FN, 19),
}

# onnxruntime.quantization fails with some models in float8.
_WITHOUT_FLOAT8 = ("classifier", "transformer")
NAMES = [f"{model}/{name}" for model in MODELS for name in TYPES if name != "float8" or model not in _WITHOUT_FLOAT8]


class _Batch(CalibrationDataReader):
    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


@lru_cache
def quantized(name: str) -> onnx.ModelProto:
    """Return a model by its name in `NAMES`."""
    model, _, types = name.partition("/")
    activations, weights, opset = TYPES[types]
    before = onnx.ModelProto()
    before.CopyFrom(_without_batch_normalization(model))
    before.opset_import[0].version = max(opset, before.opset_import[0].version)
    before.ir_version = 10
    # ONNX Runtime's float8 needs the mean and the deviation of each tensor.
    method = CalibrationMethod.Distribution if types == "float8" else CalibrationMethod.MinMax
    logging.disable(logging.WARNING)  # it recommends to optimize the model first, which is done
    try:
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of its statistics
            path = f"{folder}/model.onnx"
            quantize_static(
                before, path, _Batch(inputs(name)), activation_type=activations, weight_type=weights, calibrate_method=method
            )
            return onnx.load(path)
    finally:
        logging.disable(logging.NOTSET)


@lru_cache
def float_model(model: str) -> onnx.ModelProto:
    return onnx.load(TESTED / "textline_cls_float.onnx") if model == "classifier" else architecture(model)


def inputs(name: str) -> dict[str, np.ndarray]:
    model = name.partition("/")[0]
    return classifier_inputs() if model == "classifier" else random_inputs(float_model(model))


@lru_cache
def _without_batch_normalization(model: str) -> onnx.ModelProto:
    """Return a float model as one quantizes it: with constants folded, and batch normalization in the convolutions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(float_model(model).SerializeToString(), options)
        return onnx.load(options.optimized_model_filepath)
