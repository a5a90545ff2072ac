"""The nodes of sessions with the CUDA provider: what ``nodes`` has, for kernels on a GPU.

There is a module for each family whose operators run there. It contains

- ``STATE``, the dtype of a node's state, from ``launching.state_dtype``, and ``select``, as in ``nodes``;
- ``kernel(overload, selection)``, which returns the DeviceKernel of what ``select`` returned. It raises
  ValueError if there is no kernel for it;
- ``compute(state_address, context_address)``, which ONNX Runtime calls in each run. All tensors are in the memory of the GPU.
  It starts the kernel, and does not wait for it.
"""
