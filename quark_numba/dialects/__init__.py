"""Dialects: the operators that a quantizer writes into models, a file for each quantizer. A dialect has names, and
says in terms of the families what they mean."""
