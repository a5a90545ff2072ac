"""Which domains session options get: by what they have and ask for."""

import onnxruntime
import pytest
from onnx_models import one_node

import quark_numba
from quark_numba.ort import native
from quark_numba.ort.native import ALL_DOMAINS, REGISTERED, STANDARD_OPS, domains_to_add

DOMAINS = ["", "quark", "vai", "own"]
LIMIT = {"quark", "vai"}
HAS = {domain: f"quark_numba.has_domain.{domain}" for domain in DOMAINS}


@pytest.mark.parametrize(
    ("limit", "entries", "expected"),
    [
        ({}, [], ["quark", "vai", "own"]),
        ({}, [ALL_DOMAINS], ["quark", "vai", "own"]),
        ({}, [STANDARD_OPS], ["", "quark", "vai", "own"]),
        ({}, [REGISTERED, HAS["quark"], HAS["vai"], HAS["own"]], []),
        ({}, [REGISTERED, HAS["quark"], HAS["vai"], HAS["own"], STANDARD_OPS], [""]),
        ({}, [REGISTERED, STANDARD_OPS, *HAS.values()], []),
        ({}, [REGISTERED], []),  # as a library for programs outside of Python leaves the options
        ({}, [REGISTERED, STANDARD_OPS], [""]),
        (LIMIT, [], ["quark", "vai"]),
        (LIMIT, [STANDARD_OPS], ["", "quark", "vai"]),
        (LIMIT, [ALL_DOMAINS], ["quark", "vai", "own"]),
        (LIMIT, [HAS["quark"], HAS["vai"]], []),
        (LIMIT, [HAS["quark"], HAS["vai"], ALL_DOMAINS], ["own"]),
        (LIMIT, [HAS["quark"], HAS["vai"], ALL_DOMAINS, STANDARD_OPS], ["", "own"]),
        (LIMIT, [REGISTERED, ALL_DOMAINS, *HAS.values()], []),
    ],
)
def test_domains(limit, entries, expected):
    assert domains_to_add(DOMAINS, limit, entries.__contains__) == expected


@pytest.mark.compiled
def test_a_limited_library(monkeypatch):
    """It has the domains that it is limited to. `register` adds the others, also to options that have those."""
    monkeypatch.setattr(native.REGISTRY, "limit", frozenset({"com.amd.quark", "com.vai.quantize"}))
    others = one_node("quantize_dequantize", "int8", domain="quark_numba").SerializeToString()
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        options.register_custom_ops_library(quark_numba.get_library_path())
        assert native.entry(options, REGISTERED) is None
        onnxruntime.InferenceSession(one_node("quantize", "int8").SerializeToString(), options)
        with pytest.raises(Exception, match="quark_numba"):
            onnxruntime.InferenceSession(others, options)
    for each in (options, onnxruntime.SessionOptions()):
        for _ in range(2):
            assert quark_numba.register(each) == "native"
        onnxruntime.InferenceSession(others, each)
        assert native.entry(each, REGISTERED) == "native"
