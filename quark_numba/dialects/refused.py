"""Operators that quantizers write and that neither ONNX Runtime nor this package can run, with the reasons."""

from __future__ import annotations

import itertools

from .qonnx import CHANNELS_LAST
from .qonnx import DOMAINS as _QONNX

_COMPILER_STEP = "it is a step of FINN's or hls4ml's compiler, and no exporter writes it"
_CHANNELS_LAST_STEP = (
    "only optimize and quark_numba.InferenceSession rewrite it, and only if it has one output and the rank of its x is known"
)
_EXPORTER_STEP = "it is a step of ModelOpt's exporter, which replaces it before it writes a model"
_AIMET = "it holds the address of an object in the process that made it; export QuantizeLinear and DequantizeLinear from AIMET"
_LSTM = "nothing says what it computes but the code of Brevitas; export the layer without it"
_MQBENCH = "it is a step of MQBench's export; its convert_deploy writes QuantizeLinear (BackendType.ONNX_QNN) or FakeQuantize"

# For each reason: the domains, and the names of operators there.
_REFUSED = {
    _LSTM: (_QONNX, "QuantLSTMCell"),
    _COMPILER_STEP: (_QONNX, "QuantAvgPool2d XnorPopcountMatMul Im2Col MaxPoolNHWC GenericPartition DebugMarker"),
    _CHANNELS_LAST_STEP: ((CHANNELS_LAST,), "Conv BatchNormalization MaxPool"),
    _AIMET: (("aimet.customop.cpu", "aimet.customop.cuda", "aimet.customop"), "QcQuantizeOp"),
    _MQBENCH: (
        ("",),
        "FixedPerTensorAffine FixedPerChannelAffine LearnablePerTensorAffine FakeQuantizeTqtAffine "
        "FakeQuantizeLearnablePerchannelAffine FakeQuantizeDSQPertensor FakeQuantizeDSQPerchannel "
        "FPEmuOp_per_tensor FPEmuOp_per_channel",
    ),
    _EXPORTER_STEP: (("trt",), "TRT_FP4QDQ TRT_INT4QuantizeLinear TRT_INT4DequantizeLinear"),
}
_REASONS = {key: why for why, (domains, names) in _REFUSED.items() for key in itertools.product(domains, names.split())}


def reason(domain: str, name: str) -> str | None:
    """Return the reason why an operator cannot run anywhere, or None if no reason is known. ONNX's own domain is "" or
    "ai.onnx"."""
    return _REASONS.get(("" if domain == "ai.onnx" else domain, name))
