"""The family of QuantizeLinear, DequantizeLinear and operators like them. A scale and a zero point belong to a tensor, to an
index along an axis, or to a block."""
