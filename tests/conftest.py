import pytest

from quark_numba.dispatch import TABLE


def keys(operation):
    """A parameter for each kernel of the dispatch table: a new row of the table is tested without anyone remembering."""
    return [pytest.param(key, id=key.quantized.name) for key in TABLE if key.operation == operation]


def pytest_generate_tests(metafunc):
    for operation in ("quantize", "dequantize"):
        if f"{operation}_key" in metafunc.fixturenames:
            metafunc.parametrize(f"{operation}_key", keys(operation))
