"""Every float32 is quantized to every type of up to 16 bits, and compared with casts of numpy and ml_dtypes. Every code of the
type is dequantized.

`pytest -m exhaustive` takes one or two minutes a type on two processors. The result of a type is kept in exhaustive.json. Later
runs skip the type as long as the sources of its kernels stay the same. Without the marker, the inputs are a sample.
"""

import ast
import datetime
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
import oracle
import pytest
import samples
from marks import sizes
from rich.console import Console
from rich.progress import track

from quark_numba import dequantize, quantize
from quark_numba.compiling.sources import sources
from quark_numba.linear import kernels
from quark_numba.linear.versions import types

pytestmark = pytest.mark.compiled

RESULTS = Path(__file__).with_name("exhaustive.json")
VERSIONS = ("numba", "numpy", "ml_dtypes")

# 1, a scale that is not a binary fraction, one whose mantissa is all ones, a subnormal scale, and one whose products overflow.
SCALES = np.array([1, 0.1, np.nextafter(np.float32(2), np.float32(0)), 3e-39, 1.7e38], np.float32)

# A call on a block of this size takes a single thread, and its data stay in cache.
BLOCK = 1 << 16

every_type = pytest.mark.parametrize("name", [row.name for row in types("quantize", "quantized") if row.bits <= 16])


def expected_codes(x, scale, name):
    """Return the codes by numpy's division and rounding and by casts of numpy and ml_dtypes, and a mask of the NaNs whose codes
    are checked separately."""
    row = oracle.TYPES[name]
    with np.errstate(all="ignore"):
        quotient = x / scale
        if isinstance(row, oracle.Integer):
            whole = np.clip(np.rint(quotient), row.lowest, row.highest)
            codes = np.where(np.isnan(whole), row.lowest, whole).astype(np.int32)
            return codes & np.int32(2**row.bits - 1), np.zeros(x.shape, bool)
        saturated = np.clip(quotient + np.float32(0), -row.highest, row.highest)
        return oracle.bits(saturated.astype(row.dtype)), np.isnan(quotient)


def mismatches(x, name):
    """Return the number of wrong results over all scales."""
    row, wrong = oracle.TYPES[name], 0
    for scale in SCALES:
        y = quantize(x, scale, dtype=name)
        codes, is_nan = expected_codes(x, scale, name)
        different = y.view(f"u{y.dtype.itemsize}") != codes
        if is_nan.any():
            has_nan = np.isnan(np.array(np.nan, row.dtype).astype(np.float32))
            different[is_nan] = ~np.isnan(oracle.values(y[is_nan], name)) if has_nan else oracle.bits(y[is_nan]) != row.nan
        wrong += int(np.count_nonzero(different))
    return wrong


def codes_wrong_back(name):
    """Return the number of codes that dequantize to a wrong value, over all scales."""
    codes, wrong = samples.codes(name), 0
    for scale in SCALES:
        expected = oracle.dequantize(codes, scale, None, name)
        y = dequantize(codes, scale)
        same = (y.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(y) & np.isnan(expected))
        wrong += int(np.count_nonzero(~same))
    return wrong


@every_type
@pytest.mark.by_default(3)
@sizes("step", 9973, exhaustive=251)
def test_sample(name, step):
    """The sample has every 9973rd bit pattern, more than a thousand for every exponent, and special values; or every 251st."""
    bits = np.arange(0, 2**32, step, dtype=np.uint32)
    for x in samples.pieces(np.concatenate([bits.view(np.float32), samples.SPECIAL])):
        assert mismatches(x, name) == 0
    assert codes_wrong_back(name) == 0


def without_docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return tree


def source():
    """Return a hash of the kernels' sources without comments and docstrings. The results depend on nothing else."""
    code = [ast.unparse(without_docstrings(ast.parse(text))) for text in sources(kernels.__name__).values()]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:12]


def results():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


@pytest.mark.exhaustive
@every_type
def test_all(name, capsys):
    done = results().get(name, {})
    if done.get("source") == source() and done["mismatches"] == 0:
        pytest.skip(f"done on {done['date']} for these sources")

    def block(start):
        bits = np.arange(start, start + BLOCK, dtype=np.uint64).astype(np.uint32)
        return mismatches(bits.view(np.float32), name)

    starts = range(0, 2**32, BLOCK)
    with capsys.disabled(), ThreadPoolExecutor(os.cpu_count()) as threads:
        wrong = sum(track(threads.map(block, starts), name, len(starts), console=Console(stderr=True)))
    wrong += codes_wrong_back(name)
    record = {
        "inputs": len(SCALES) * 2**32,
        "codes": len(SCALES) * len(samples.codes(name)),
        "mismatches": wrong,
        "date": str(datetime.date.today()),
        "source": source(),
        "versions": {package: version(package) for package in VERSIONS},
    }
    RESULTS.write_text(json.dumps(results() | {name: record}, indent=1) + "\n")
    assert wrong == 0


@pytest.mark.slow  # whoever changes a kernel need not wait for the exhaustive run; `main` and a release do
def test_results_are_of_these_sources():
    """The recorded results belong to the present sources; otherwise `pytest -m exhaustive` is due."""
    assert {name: record["source"] for name, record in results().items()} == dict.fromkeys(results(), source())


def test_every_type_has_a_result():
    assert sorted(results()) == sorted(row.name for row in types("quantize", "quantized") if row.bits <= 16)
    assert not any(record["mismatches"] for record in results().values())
