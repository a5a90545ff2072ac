"""The wing of QuantizeLinear and its kin: one scale and zero point for a tensor, for each index of an axis, or for each
block."""
