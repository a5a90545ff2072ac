"""Which values of a parameter run by default."""

import pytest


def default_of(values, *default):
    """All of them, as pytest's parameters; those that are not in `default` are `full`."""
    missing = set(default) - set(values)
    assert not missing, missing
    return [value if value in default else pytest.param(value, marks=pytest.mark.full) for value in values]
