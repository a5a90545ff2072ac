"""What macOS does without, or has in another way: no /proc, small stacks, spawned processes, and one file for names that differ
in capitals alone. `support/like_macos.py` makes a process of Linux such a one."""

import os
import sys
from collections import Counter

import pytest
from paths import MODELS, ROOT, SUPPORT
from processes import python

from quark_numba.catalog import OPERATORS
from quark_numba.ort.operators import table_of

# Prints digests of what a spawned process, calls on arrays, and sessions with two threads compute.
PROGRAM = """
import hashlib, sys
sys.path.insert(0, {support!r})
{first}
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import numpy as np, onnxruntime
from onnx_models import feeds_of
from quark_numba import InferenceSession, dequantize, get_library_path, quantize

def digest(arrays):
    return [hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest()[:16] for each in arrays]

def calls(seed):
    x = np.random.default_rng(seed).normal(0, 50, 1 << 18).astype(np.float32)
    codes = [quantize(x, 0.5, dtype=name) for name in ("int8", "bfloat16", "int4")]
    return digest([*codes, *(dequantize(each, 0.5) for each in codes)])

def outputs(session):
    return digest(session.run(None, feeds_of(session, 64)))

if __name__ == "__main__":
    print(calls(0))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(calls, 1).result())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    drop_in = onnxruntime.SessionOptions()
    drop_in.intra_op_num_threads = 2
    drop_in.register_custom_ops_library(get_library_path())
    for path in {models!r}:
        print(outputs(onnxruntime.InferenceSession(path, drop_in)))
        for _ in range(2):
            print(outputs(InferenceSession(path, options, cache={cache!r})))
"""


@pytest.mark.compiled
@pytest.mark.skipif(sys.platform != "linux" or not hasattr(os, "memfd_create"), reason="takes away what Linux has")
@pytest.mark.parametrize("names", [["textline_cls_mx9"], ["textline_cls_bf16", "tagger_u16", "style_bf16"]], ids="+".join)
@pytest.mark.slow
def test_same_bits(names, tmp_path):
    models = [str(MODELS / f"{name}.onnx") for name in names]
    results = []
    for first in ("", "import like_macos"):
        program = tmp_path / f"program{len(first)}.py"
        cache = str(tmp_path / f"models{len(first)}")
        program.write_text(PROGRAM.format(support=str(SUPPORT), first=first, models=models, cache=cache))
        done = python(program)
        assert done.returncode == 0, done.stderr
        results.append(done.stdout)
    assert results[0] == results[1]
    assert results[0].count("\n") == 2 + 3 * len(models)


def twins(names):
    """Return the names that others differ from in small and capital letters alone."""
    return [name for name, count in Counter(map(str.casefold, names)).items() if count > 1]


def test_names_of_files():
    assert not twins(
        str(path.relative_to(ROOT)) for path in (ROOT / "quark_numba").rglob("*") if "__pycache__" not in path.parts
    )
    for family in sorted({operator.family for operator in OPERATORS}):
        assert not twins(getattr(kernel.key, "name", str(kernel.key)) for kernel in table_of(family).values()), family
