"""The program for machines with a GPU, on memory of this machine, with emulated kernels; and where there is no GPU."""

import argparse
import ctypes
import sys

import gpu_kernels
import numpy as np
import pytest

pytestmark = pytest.mark.compiled


class FalseGpu:
    """A stand-in for `Gpu`, without a GPU. If `flips` is True, the last byte of a kernel's first result is changed."""

    description = "a false card"

    def __init__(self, flips=False):
        self._flips = flips

    def load(self, kernel):
        assert kernel.entry in kernel.ptx
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(kernel.thread_function.address)

    def start(self, handle, kernel, record):
        for block in range(kernel.count_thread_blocks(int(record["units"]))):
            for thread in range(kernel.threads):
                handle(record.ctypes.data, block, thread)
        if self._flips:
            ctypes.c_uint8.from_address(int(record["y"])).value ^= 1

    def finish(self): ...

    def random(self, element_type, size, seed):
        rng, count = np.random.default_rng(seed), gpu_kernels.bytes_of(size, element_type)
        content = self.put(np.frombuffer(rng.bytes(count), np.uint8))
        if element_type.name in ("float32", "float16", "bfloat16"):
            half = content[: count // 2 // 16 * 16].view(element_type.dtype)
            half[:] = (rng.standard_normal(half.size) * 30).astype(element_type.dtype)
        elif element_type.bits < 8 and not element_type.is_packed:
            content &= 2**element_type.bits - 1
        return content

    def put(self, array):
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made = self.empty(content.size)
        made[:] = content
        return made

    def empty(self, count):
        buffer = np.empty(count + 64, np.uint8)
        begin = -buffer.ctypes.data % 64
        return buffer[begin : begin + count]

    def get(self, tensor):
        return tensor.copy()

    def address(self, tensor):
        return tensor.ctypes.data

    def different(self, made, expected, itemsize):
        made, wanted = (each.reshape(-1).view(f"u{itemsize}") for each in (made, expected))
        places = (made != wanted).nonzero()[0]
        return places, made[places].view(np.uint8), wanted[places].view(np.uint8)

    def milliseconds(self, *runs):
        for run in runs:
            run()
        return [1.0] * len(runs)

    def copy(self, count):
        return lambda: None

    def peers(self, count):
        return [("round trip", lambda: None, 8 * count)]


@pytest.fixture
def few(monkeypatch):
    """The cases of one kernel of each family, compiled in this process."""

    def cases(families):
        chosen = []
        for family in families:
            of_family = [*gpu_kernels.CASES[family]()]
            main = [case for case in of_family if case.name == "quantize float32 to int8"]
            chosen += [case for case in of_family if case.kernel.entry == (main or of_family)[0].kernel.entry]
        return chosen

    monkeypatch.setattr(gpu_kernels, "cases", cases)
    monkeypatch.setattr(gpu_kernels, "compile_all", lambda families, processes: [])


def options(*families, **others):
    parts = {"bits": True, "bandwidth": True, "elements": (3 << 12) - 3, "slice": 1 << 13, "most": 1 << 12, "seconds": 100}
    return argparse.Namespace(**{"only": families, "processes": 1, **parts, **others})


def differing(lines, family):
    """The number of elements that differed, the last cell of a family's row in the report."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    (row,) = [row for row in rows if row[0] == family]
    return int(row[-1])


@pytest.mark.parametrize("family", gpu_kernels.CASES)
@pytest.mark.slow
def test_bits_and_bandwidth_of_a_family(few, family, capsys):
    report = gpu_kernels.Report()
    lines = gpu_kernels.run(FalseGpu(), options(family), report)
    out = capsys.readouterr().out
    assert not report.has_failed, out
    assert lines[0].startswith("a false card; quark_numba ")
    assert differing(lines, family) == 0
    assert out.count("bandwidth  ") >= 1


@pytest.mark.slow
def test_what_differs_is_counted(few):
    report = gpu_kernels.Report()
    lines = gpu_kernels.run(FalseGpu(flips=True), options("linear", bandwidth=False), report)
    assert report.has_failed
    # An element for each slice and scale, and for each slice of the other granularities.
    assert differing(lines, "linear") == 2 * 3 + 4 * 2


@pytest.mark.slow
def test_a_kernel_that_fails_is_named_and_the_others_go_on(few, monkeypatch, capsys):
    def fails(count, turn):
        raise ValueError("no such shape")

    before = gpu_kernels.cases
    monkeypatch.setattr(gpu_kernels, "cases", lambda families: [before(families)[0]._replace(launch=fails), *before(families)])
    report = gpu_kernels.Report()
    gpu_kernels.run(FalseGpu(), options("region", bandwidth=False), report)
    out = capsys.readouterr().out
    assert report.has_failed
    assert "ValueError: no such shape" in out
    assert "bits  0 of" in out


@pytest.mark.slow
def test_the_time_of_a_part_ends_it(few, capsys):
    gpu_kernels.run(FalseGpu(), options("region", seconds=-1), gpu_kernels.Report())
    assert "after -1 s: 1 of 1 are left out" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py"])
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gpu_kernels.main() == gpu_kernels.NO_GPU
    assert capsys.readouterr().err == "no GPU to run on: PyTorch is not installed\n"
