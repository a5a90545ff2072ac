"""Experiments of `analyze`, one file each: the errors of outputs or tensors if the model were quantized differently."""
