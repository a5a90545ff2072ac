"""The family of block formats: the elements of a block along an axis share an exponent or a scale."""
