"""The family of instance normalization, with the bits of a hardware unit that computes in bfloat16."""
