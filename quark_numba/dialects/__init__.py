"""Dialects: the operators that quantizers write into models, with one file for each quantizer. A dialect lists the names of
operators, and expresses their meanings in terms of the families."""
