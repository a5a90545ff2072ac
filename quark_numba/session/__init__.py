"""Sessions of optimized models, with convolutions and regions in ONNX Runtime's blocked layout."""
