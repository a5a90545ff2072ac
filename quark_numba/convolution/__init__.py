"""Family: convolutions of 8-bit codes."""
