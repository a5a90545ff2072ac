"""Dialects: the operators that a quantizer writes into models, a file for each quantizer. A dialect has names. What they mean it
says in terms of the wings."""
