"""A shared library that leads ONNX Runtime into this process, made without a compiler."""
