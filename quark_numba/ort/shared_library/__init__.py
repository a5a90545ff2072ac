"""A shared library that ONNX Runtime can load, and which calls a function of this process. It is made without a compiler."""
