"""The family of regions: connected elementwise nodes of a model that run as one node, in one pass over memory."""
