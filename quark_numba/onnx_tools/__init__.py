"""Quark's operators for the tools of the onnx package: checker, shape inference, reference evaluator."""
