"""Operators that compare x with the entries of a table: thresholds that are counted, and values of which the nearest is taken.
A table may have a row for each channel."""
