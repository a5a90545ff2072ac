"""The wing of instance normalization, as a unit that computes in bfloat16 does it."""
