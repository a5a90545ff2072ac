"""What ONNX Runtime's CPU provider has, against ONNX Runtime's list of kernels, where that is safe."""

from collections import defaultdict

import onnxruntime
import processes
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state
from paths import MODELS

from quark_numba.catalog import OPERATORS
from quark_numba.element_types import ELEMENT_TYPES, FLOAT16, FLOAT32
from quark_numba.linear.versions import VERSIONS
from quark_numba.rewriting.onnx_runtime import casts_to, has_operator, runs

# In other builds the list may end the process.
PLAIN = {"CPUExecutionProvider", "AzureExecutionProvider"}

NAMES = {"float32": "float", "float64": "double"}


@pytest.fixture(scope="module")
def kernels():
    """The types of each operator's kernels, by domain and name."""
    if not PLAIN.issuperset(onnxruntime.get_available_providers()):
        pytest.skip("a build with other providers")
    types = defaultdict(set)
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            types[kernel.domain, kernel.op_name].update(*kernel.type_constraints.values())
    return types


def has(types, *element_types):
    return all(f"tensor({NAMES.get(each.name, each.name)})" in types for each in element_types)


def test_casts(kernels):
    for element_type in ELEMENT_TYPES:
        assert casts_to(element_type) == has(kernels["", "Cast"], element_type), element_type.name


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft"])
def test_quantize_and_dequantize(kernels, domain):
    """ONNX Runtime casts float16 to float32 before a node that has kernels for float32 only."""
    versions = [each for each in VERSIONS if not each.domain]
    for name, codes, scale in {(v.name, codes, scale) for v in versions for codes in v.quantized for scale in v.scale}:
        operator = OPERATORS.find("", name)
        types = kernels[domain.removeprefix("ai.onnx"), name]
        expected = has(types, codes, scale) or (scale is FLOAT16 and has(types, codes, FLOAT32))
        assert runs(operator, domain, codes, scale) == expected, (name, codes.name, scale.name)
        assert runs(operator, domain, codes, None) == has(types, codes)


def test_operators():
    for domain in ("", "ai.onnx", "com.microsoft"):
        assert has_operator(domain, "QuantizeLinear")
        assert not has_operator(domain, "Quantize")
    assert not has_operator("com.amd.quark", "QuantizeLinear")


@pytest.mark.slow
def test_nothing_asks_for_the_list():
    """It ends the process in builds with providers whose libraries are missing."""
    code = f"""
import os, signal
from onnxruntime.capi import onnxruntime_pybind11_state
onnxruntime_pybind11_state.get_all_opkernel_def = lambda: os.kill(os.getpid(), signal.SIGTERM)
import quark_numba
from quark_numba.cli import inventory
model = {str(MODELS / "textline_cls_a8w8.onnx")!r}
assert inventory.quantization_nodes(model)
for qdq in ("auto", "onnxruntime"):
    quark_numba.optimize(model, qdq=qdq)
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr
