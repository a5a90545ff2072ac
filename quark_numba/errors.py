"""The package's own exceptions."""


class ModelError(Exception):
    """The model, or what it is to be run with, cannot be used; the message says why."""
