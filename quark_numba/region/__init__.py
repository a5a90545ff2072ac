"""The wing of regions: connected elementwise nodes of a model, run as one node in one pass over memory."""
