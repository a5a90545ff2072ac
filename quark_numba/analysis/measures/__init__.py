"""Measures of the errors of tensors and outputs, as sums that add up over batches."""
