"""Arrays larger than the memory of the process go through a lazy call, and to and from zarr in pieces."""

import subprocess
import sys

import numpy as np
import oracle
import pytest
from block_samples import values

import quark_numba

da = pytest.importorskip("dask.array")
zarr = pytest.importorskip("zarr")

# The address space of the process is limited to the first argument, in MiB. It cannot hold x, whose size in MiB is the second
# argument. The process prints its peak of memory in MiB.
CODE = """
import re, resource, sys
limit, size, folder = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20, sys.argv[3]
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import dask, dask.array as da, numpy as np, zarr
import quark_numba
rows = size // (4 * 8192)

def draw(block_info=None):
    generator = np.random.default_rng(block_info[None]["chunk-location"])
    return generator.standard_normal(block_info[None]["chunk-shape"], np.float32)

x = da.map_blocks(draw, chunks=((512,) * (rows // 512), (8192,)), dtype=np.float32, meta=np.empty((0, 0), np.float32))
assert x.nbytes == size > limit
codes, scales = quark_numba.mx_quantize(x, axis=1, element_dtype="fp8_e4m3")
with dask.config.set(scheduler="threads", num_workers=2):
    if folder:
        parts = []
        for name, array in dict(codes=codes, scales=scales).items():
            attributes = dict(dtype=array.dtype.name)
            stored = zarr.create_array(
                f"{folder}/{name}", shape=array.shape, chunks=array.chunksize, dtype="uint8", attributes=attributes
            )
            da.store(array.view("uint8"), stored, lock=False)
            stored = zarr.open_array(f"{folder}/{name}")
            parts.append(da.from_zarr(stored).view(stored.attrs["dtype"]))
        codes, scales = parts
        y = quark_numba.mx_dequantize(codes, scales, axis=1)
        noise, signal = dask.compute(((y - x) ** 2).mean(), (x ** 2).mean())
        assert 1e-5 < noise / signal < 1e-3, noise / signal
    else:
        top, total = dask.compute(scales.view(np.uint8).max(), np.abs(codes.astype(np.float32)).mean())
        assert 118 < top < 124, top
        assert 50 < total < 150, total
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
"""


def peak(limit, size, folder=""):
    command = [sys.executable, "-c", CODE, str(limit), str(size), str(folder)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.compiled
@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses, and the peak of memory, as Linux has them")
@pytest.mark.parametrize(
    ("limit", "size"),
    [pytest.param(1536, 2048, marks=pytest.mark.slow), pytest.param(4096, 40 * 1024, marks=pytest.mark.exhaustive)],
)
def test_to_a_reduction(limit, size):
    assert peak(limit, size) < limit


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses, and the peak of memory, as Linux has them")
def test_by_way_of_zarr(tmp_path):
    assert peak(1536, 2048, tmp_path) < 1536


@pytest.mark.parametrize("name", ["int4", "float8e4m3fn", "bfloat16", "uint16"])
def test_zarr_holds_codes_as_bytes(name, tmp_path):
    x = values((40, 33), "float32")
    codes = quark_numba.quantize(da.from_array(x, chunks=(16, 33)), 0.1, dtype=name)
    bits = codes.view(f"u{codes.dtype.itemsize}")
    layout = {"shape": bits.shape, "chunks": bits.chunksize, "dtype": bits.dtype, "attributes": {"dtype": codes.dtype.name}}
    stored = zarr.create_array(tmp_path / "codes", **layout)
    da.store(bits, stored, lock=False)
    stored = zarr.open_array(tmp_path / "codes")
    back = da.from_zarr(stored).view(stored.attrs["dtype"])
    assert back.chunks == codes.chunks
    oracle.assert_same_bits(back.compute(), quark_numba.quantize(x, 0.1, dtype=name))
    expected = quark_numba.dequantize(quark_numba.quantize(x, 0.1, dtype=name), np.float32(0.1))
    oracle.assert_same_bits(quark_numba.dequantize(back, 0.1).compute(), expected)
