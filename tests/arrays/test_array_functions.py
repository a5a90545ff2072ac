"""Compiled functions that Python calls with arrays and numbers: what they take and return."""

import sys
import threading
from typing import NamedTuple

import numpy as np
import pytest
from numba import from_dtype, types

from quark_numba.compiling.array_functions import array_function, new_words, release_words
from quark_numba.compiling.intrinsics import address_of

pytestmark = pytest.mark.compiled


class Sizes(NamedTuple):
    first: int
    second: int


def array(numba_type, readonly=False):
    return types.Array(numba_type, 1, "C", readonly=readonly)


def test_each_kind_of_argument():
    def function(x, y, whole, flag, number, small, numbers, sizes):
        y[0], y[1], y[2], y[3] = x.size, whole, number, small
        y[4], y[5], y[6], y[7] = numbers[0], numbers[2], sizes.second, x[x.size - 1]
        y[8] = 1 if flag else 2

    signature = types.void(
        array(types.uint16, readonly=True),
        array(types.float64),
        *(types.intp, types.boolean, types.float64, types.float32),
        types.UniTuple(types.int64, 3),
        types.NamedUniTuple(types.int64, 2, Sizes),
    )
    compiled, y = array_function(function, "each_kind_of_a_test", signature), np.zeros(9)
    x = np.array([1, 2, 65535], np.uint16)
    x.flags.writeable = False
    assert compiled(x, y, -(2**63), True, 0.1, np.float32(0.1), (1, 2, 2**40), Sizes(5, -6)) is None
    assert y.tolist() == [3, -(2.0**63), 0.1, float(np.float32(0.1)), 1, 2.0**40, -6, 65535, 1]


def test_records():
    def function(rows, k):
        rows[k].a += 1
        rows[k].b *= np.float32(2)

    dtype = np.dtype([("a", np.int64), ("b", np.float32)], align=True)
    compiled = array_function(function, "records_of_a_test", types.void(array(from_dtype(dtype)), types.intp))
    rows = np.zeros(2, dtype)
    rows[1] = 5, 1.5
    compiled(rows, 1)
    assert rows.tolist() == [(0, 0.0), (6, 3.0)]


@pytest.mark.parametrize(
    ("result", "value"), [(types.boolean, True), (types.boolean, False), (types.int64, -(2**63)), (types.int64, 2**62)], ids=str
)
def test_each_kind_of_result(result, value):
    def function(x):
        return x[0]

    kind = types.boolean if result is types.boolean else types.int64
    compiled = array_function(function, f"result_{kind}_of_a_test", result(array(kind)))
    returned = compiled(np.array([value]))
    assert returned == value
    assert type(returned) is type(value)


def test_references_stay_balanced():
    def function(x, n):
        x[0] += n

    compiled = array_function(function, "references_of_a_test", types.void(array(types.int64), types.intp))
    x, n = np.zeros(1, np.int64), 10**6
    before = sys.getrefcount(x), sys.getrefcount(n), sys.getrefcount(None)
    for _ in range(1000):
        compiled(x, n)
    after = sys.getrefcount(x), sys.getrefcount(n), sys.getrefcount(None)
    assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True))
    assert x[0] == 10**9


@pytest.mark.parametrize("arguments", [(), (1,), (np.zeros(1), 1, 2)], ids=["none", "one", "three"])
def test_a_wrong_number_of_arguments(arguments):
    def function(x, n):
        x[0] = n

    compiled = array_function(function, "number_of_a_test", types.void(array(types.float64), types.intp))
    with pytest.raises(SystemError):
        compiled(*arguments)


def test_memory_that_runs_out():
    def function(count):
        words = new_words(count)
        has_memory = address_of(words, 0) != 0
        release_words(words)
        return has_memory

    compiled = array_function(function, "memory_of_a_test", types.boolean(types.intp))
    assert compiled(1000) is True
    assert compiled(2**58) is False


def test_it_runs_without_pythons_lock():
    def function(x):
        for i in range(1 << 28):
            x[0] = x[0] * 3 + i

    compiled = array_function(function, "lock_of_a_test", types.void(array(types.int64)))
    thread, count = threading.Thread(target=compiled, args=(np.zeros(1, np.int64),)), 0
    thread.start()
    while thread.is_alive():
        count += 1
    assert count > 1000
