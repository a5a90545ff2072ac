"""Dialects: the operators that a quantizer writes into models, a file for each quantizer. A dialect has names, and
says in terms of the wings what they mean."""
