import numba
import pytest

from quark_numba.element_types import FLOAT32
from quark_numba.linear.key import select
from quark_numba.linear.versions import VERSIONS


def keys(operation):
    """Of what the Extended operators convert."""
    (version,) = [v for v in VERSIONS if v.operation == operation and v.domain == "com.amd.quark"]
    operands = [(FLOAT32, row, row) if operation == "quantize" else (row, row, FLOAT32) for row in version.quantized]
    each = [select(operation, x, FLOAT32, quantized, y) for x, quantized, y in operands]
    return [pytest.param(key, id=key.quantized.name) for key in each]


def pytest_generate_tests(metafunc):
    for operation in ("quantize", "dequantize"):
        if f"{operation}_key" in metafunc.fixturenames:
            metafunc.parametrize(f"{operation}_key", keys(operation))


def pytest_collection_modifyitems(items):
    if numba.config.DISABLE_JIT:
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason="NUMBA_DISABLE_JIT: of compiled code only"))
