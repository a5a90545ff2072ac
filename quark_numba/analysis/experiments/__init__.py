"""Experiments of `analyze`: what the outputs or tensors would be if the model were quantized otherwise. A file each."""
