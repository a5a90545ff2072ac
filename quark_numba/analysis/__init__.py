"""Where a quantized model's accuracy goes: what its outputs, and each of its quantized tensors, are off the float model's."""
