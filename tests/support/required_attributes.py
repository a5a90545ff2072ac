"""Values for the attributes of operators that have no default."""

PROGRAM = """region (float x0, float[1] x1, bfloat16 x2, float x3) => (float y) {
  v0 = quark_numba.QuantizeDequantizeLinear <axis: int = -1, saturate: int = 1> (x0, x1, x2)
  y = Add (v0, x3)
}"""

REQUIRED = {"program": PROGRAM, "hidden_size": 3, "form": "bipolar", "threshold": 2.0, "min_range": -1.0, "max_range": 1.0}
REQUIRED |= {"num_bits": 4, "lut_values_bitwidth": 8, "per_channel": 1, "channel_axis": 0, "input_rank": 4, "levels": 256}
REQUIRED |= {"kernel_shape": [3, 3]}
REQUIRED |= {f"{operand}_scale": 0.5 for operand in "xwrby"} | {f"{operand}_zero_point": 7 for operand in "xwrby"}
