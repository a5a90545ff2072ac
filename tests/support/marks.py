"""The values of a parameter that run by default."""

import pytest


def default_of(values, *default):
    """Return all values as parameters of pytest; values that are not in `default` are marked `full`."""
    missing = set(default) - set(values)
    assert not missing, missing
    return [value if value in default else pytest.param(value, marks=pytest.mark.full) for value in values]
