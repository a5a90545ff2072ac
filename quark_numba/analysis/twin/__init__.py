"""The float twin of a quantized model, and both as segments between its quantized tensors."""
