"""Measures of how far tensors and outputs are off, as sums that add up over batches."""
