"""Threads, forked children and freed memory, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = f"""
import os, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import oracle
from onnx_models import one_node, run, session
from quark_numba import dequantize, get_library_path, quantize

def check(name, seed=0):
    x = np.random.default_rng(seed).normal(0, 50, 200_000).astype(np.float32)
    zero_point = np.ones((), oracle.dtype(name))
    expected = oracle.quantize(x, np.float32(0.5), zero_point, name)
    oracle.assert_same_bits(quantize(x, np.float32(0.5), zero_point), expected)
    node = session(one_node("quantize", name))
    oracle.assert_same_bits(run(node, x=x, scale=np.float32(0.5), zero_point=zero_point), expected)

def wait(child):
    for _ in range(600):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, status
            return
        time.sleep(0.1)
    os.kill(child, 9)
    raise AssertionError("the child hangs")

def fork(action):
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child
"""


def _run(code, **environment):
    done = subprocess.run([sys.executable, "-c", PREPARE + code], env={**os.environ, **environment}, timeout=300)
    assert done.returncode == 0


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_threads(layer):
    """Eight at once, each type first compiled, or loaded, by whoever comes first. Numba's workqueue layer ends a process
    that runs two parallel kernels at a time."""
    _run(
        """
errors = []
def work(i):
    try:
        names = list(oracle.EXTENDED)
        for name in names[i:] + names[:i]:
            check(name, i)
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
""",
        NUMBA_THREADING_LAYER=layer,
    )


def test_a_forked_child():
    """OpenMP ends a child that uses its parent's pool."""
    _run("check('int8'); wait(fork(lambda: check('int8'))); wait(fork(lambda: check('bfloat16'))); check('int8')")


def test_a_fork_while_another_thread_creates_a_session():
    """No lock is left held in the child."""
    _run(
        """
stop = threading.Event()
def create():
    while not stop.is_set():
        for name in oracle.EXTENDED:
            session(one_node("quantize", name))
thread = threading.Thread(target=create)
thread.start()
try:
    for i in range(20):
        time.sleep(0.01 * i)
        wait(fork(get_library_path))
        wait(fork(lambda: quantize(np.ones(5, np.float32), 1.0)))
finally:
    stop.set()
    thread.join()
"""
    )


def test_a_zero_point_left_out_is_zero_until_the_run_ends():
    """Freed memory is filled with another byte: what is freed too early shows."""
    _run(
        """
for name in oracle.EXTENDED:
    node = session(one_node("dequantize", name, zero_point=False))
    codes = np.arange(60_000).astype(oracle.dtype(name)).reshape(6, 10_000)
    scale = np.linspace(1, 2, 10_000).astype(np.float32)
    for _ in range(10):
        oracle.assert_same_bits(run(node, x=codes, scale=scale), oracle.dequantize(codes, scale, None, name))
""",
        MALLOC_PERTURB_="165",
    )


def test_kernels_of_one_shape_from_the_caches_of_two_processes(tmp_path):
    """Their types and the names of their parts are the same; what they compute is not."""
    names = ["uint4", "uint2", "int4", "float4e2m1", "float6e2m3", "float6e3m2"]
    convert = """
for name in {}:
    x = np.random.default_rng(0).normal(0, 5, 70_001).astype(np.float32)
    scale, zero_point = np.ones(70_001, np.float32), np.ones(70_001, oracle.dtype(name))
    oracle.assert_same_bits(quantize(x, scale, zero_point, axis=0), oracle.quantize(x, scale, zero_point, name))
    y = quantize(x, scale[0], zero_point[0])
    oracle.assert_same_bits(y, oracle.quantize(x, scale[0], zero_point[0], name))
    oracle.assert_same_bits(dequantize(y, scale, zero_point, axis=0), oracle.dequantize(y, scale, zero_point, name))
"""
    for each in names:
        _run(convert.format([each]), NUMBA_CACHE_DIR=str(tmp_path))
    _run(convert.format(names), NUMBA_CACHE_DIR=str(tmp_path))
