"""Where a quantized model's accuracy goes: the errors of its outputs and of each quantized tensor, against the float model."""
