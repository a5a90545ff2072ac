"""Which domains session options get: by what they have and ask for."""

import onnxruntime
import pytest
from onnx_models import one_node

import quark_numba
from quark_numba.ort import native
from quark_numba.ort.native import ALL_DOMAINS, FLOAT_QDQ, REGISTERED, domains_to_add

DOMAINS = ["", "quark", "vai", "own"]
LIMIT = {"quark", "vai"}
HAS = {domain: f"quark_numba.has_domain.{domain}" for domain in DOMAINS}


@pytest.mark.parametrize(
    ("limit", "entries", "expected"),
    [
        ({}, [], ["quark", "vai", "own"]),
        ({}, [ALL_DOMAINS], ["quark", "vai", "own"]),
        ({}, [FLOAT_QDQ], ["", "quark", "vai", "own"]),
        ({}, [REGISTERED, HAS["quark"], HAS["vai"], HAS["own"]], []),
        ({}, [REGISTERED, HAS["quark"], HAS["vai"], HAS["own"], FLOAT_QDQ], [""]),
        ({}, [REGISTERED, FLOAT_QDQ, *HAS.values()], []),
        ({}, [REGISTERED], []),  # as a library for programs outside of Python leaves the options
        ({}, [REGISTERED, FLOAT_QDQ], [""]),
        (LIMIT, [], ["quark", "vai"]),
        (LIMIT, [FLOAT_QDQ], ["", "quark", "vai"]),
        (LIMIT, [ALL_DOMAINS], ["quark", "vai", "own"]),
        (LIMIT, [HAS["quark"], HAS["vai"]], []),
        (LIMIT, [HAS["quark"], HAS["vai"], ALL_DOMAINS], ["own"]),
        (LIMIT, [HAS["quark"], HAS["vai"], ALL_DOMAINS, FLOAT_QDQ], ["", "own"]),
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
        assert native.config_entry(options, REGISTERED) is None
        onnxruntime.InferenceSession(one_node("quantize", "int8").SerializeToString(), options)
        with pytest.raises(Exception, match="quark_numba"):
            onnxruntime.InferenceSession(others, options)
    for each in (options, onnxruntime.SessionOptions()):
        for _ in range(2):
            assert quark_numba.register(each) == "native"
        onnxruntime.InferenceSession(others, each)
        assert native.config_entry(each, REGISTERED) == "native"
