"""Model files: reading and writing them, and tensors that stay in files until their elements are needed."""
