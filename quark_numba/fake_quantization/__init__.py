"""The family of operators that round floats to the values of a format, without codes in between. They differ in what describes
the format: a scale and a number of bits, a range, a threshold, or the parts of a float format."""
