"""Convolutions and regions in ONNX Runtime's blocked layout (NCHWc)."""
