"""Operators that compare x with the entries of a table: thresholds that are counted, and values of which the nearest is taken.
A table may have a row for each channel.

Comparisons, sums and Gather of ONNX have the same bits, but take 3 to 150 times as long, as each entry or the whole table is a
pass over memory of its own."""
