"""Operators that quantizers write and that neither ONNX Runtime nor this package can run, with the reasons."""

from __future__ import annotations

from .qonnx import CHANNELS_LAST
from .qonnx import DOMAINS as _QONNX

_COMPILER_STEP = "it is a step of FINN's or hls4ml's compiler, and no exporter writes it"
_CHANNELS_LAST_STEP = (
    "only optimize and quark_numba.InferenceSession rewrite it, and only if it has one output and the rank of its x is known"
)
_EXPORTER_STEP = "it is a step of ModelOpt's exporter, which replaces it before it writes a model"
_AIMET = "it holds the address of an object in the process that made it; export QuantizeLinear and DequantizeLinear from AIMET"

_MQBENCH = "it is a step of MQBench's export; its convert_deploy writes QuantizeLinear (BackendType.ONNX_QNN) or FakeQuantize"

_REASONS = {
    **{
        (domain, name): reason
        for domain in _QONNX
        for name, reason in {
            "QuantLSTMCell": "nothing says what it computes but the code of Brevitas; export the layer without it",
            **dict.fromkeys(("QuantAvgPool2d", "XnorPopcountMatMul", "Im2Col", "MaxPoolNHWC"), _COMPILER_STEP),
            **dict.fromkeys(("GenericPartition", "DebugMarker"), _COMPILER_STEP),
        }.items()
    },
    **{(CHANNELS_LAST, name): _CHANNELS_LAST_STEP for name in ("Conv", "BatchNormalization", "MaxPool")},
    **{(domain, "QcQuantizeOp"): _AIMET for domain in ("aimet.customop.cpu", "aimet.customop.cuda", "aimet.customop")},
    **{
        ("", name): _MQBENCH
        for name in (
            *("FixedPerTensorAffine", "FixedPerChannelAffine", "LearnablePerTensorAffine", "FakeQuantizeTqtAffine"),
            *("FakeQuantizeLearnablePerchannelAffine", "FakeQuantizeDSQPertensor", "FakeQuantizeDSQPerchannel"),
            *("FPEmuOp_per_tensor", "FPEmuOp_per_channel"),
        )
    },
    **{("trt", f"TRT_{name}"): _EXPORTER_STEP for name in ("FP4QDQ", "INT4QuantizeLinear", "INT4DequantizeLinear")},
}


def reason(domain: str, name: str) -> str | None:
    """Return why an operator cannot run anywhere, or None if nothing is known of it. ONNX's own domain is "" or "ai.onnx"."""
    return _REASONS.get(("" if domain == "ai.onnx" else domain, name))
