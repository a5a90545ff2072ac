"""The family of the LSTM layer that computes with 16-bit codes."""
