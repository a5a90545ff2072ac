"""The wing of block formats: blocks of elements along an axis that share an exponent."""
