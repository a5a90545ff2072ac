"""Groups of 8-bit nodes as integer operators of ONNX Runtime."""
