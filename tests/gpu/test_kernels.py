"""Properties of all kernels for GPUs: their names, their launches, and that they are loaded only when needed."""

import pytest
from gpu_keys import BLOCK_KEYS, LINEAR_KEYS, format_of
from numba.core import config
from numba.core.errors import TypingError
from processes import PREPARE, loaded

from quark_numba.block import device as block_device
from quark_numba.block.formats import NVIDIA_MXFP8
from quark_numba.compiling import cache
from quark_numba.compiling.device import DeviceKernel, work_dtype
from quark_numba.compiling.intrinsics import allocate
from quark_numba.compiling.sources import sources
from quark_numba.element_types import FLOAT32
from quark_numba.linear import device
from quark_numba.region import device as region_device
from quark_numba.region.key import parse

pytestmark = pytest.mark.compiled


@pytest.mark.slow
def test_sessions_load_nothing_of_gpus():
    modules = [f"quark_numba.{package}.device" for package in ("compiling", "linear", "block", "region")]
    names = "onnxruntime", "quark_numba.compiling.other_machines", *modules
    assert loaded(f"{PREPARE}\nsession(one_node('quantize', 'int8'))", *names) == ["onnxruntime"]


@pytest.mark.parametrize(("units", "blocks"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (2**40, 2**30)])
def test_the_grid_has_a_thread_for_each_vector(units, blocks):
    key, scale = LINEAR_KEYS[0].values
    kernel = device.kernel(key, scale)
    assert kernel.count_thread_blocks(units) == blocks
    assert kernel.work.itemsize == 8 * len(kernel.work.names)


@pytest.mark.parametrize(
    ("size", "length", "inner", "block", "per_byte", "units"),
    [(0, 0, 1, 8, 1, 0), (96, 96, 1, 16, 1, 6), (96, 96, 1, 16, 2, 6), (99, 33, 1, 16, 1, 9)]
    + [(2 * 33 * 5, 33, 5, 16, 1, 30), (2 * 32 * 6, 32, 6, 16, 2, 12), (2 * 32 * 5, 32, 5, 16, 2, 4)],
)
def test_a_thread_has_the_blocks_that_share_bytes(size, length, inner, block, per_byte, units):
    assert block_device.count_units(size, length, inner, block, per_byte) == units


def _raises(work_address, block, thread):
    if block > thread:
        raise ValueError
    return 0


def _allocates(work_address, block, thread):
    return allocate(block)


def _is_wrong(work_address, block, thread):
    return block + "text"


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        (_raises, RuntimeError, "^kernel may raise an exception, which cannot be handled elsewhere$"),
        (_allocates, RuntimeError, "^kernel calls NRT_Allocate, which a GPU lacks$"),
        (_is_wrong, TypingError, "text"),
    ],
)
def test_what_a_gpu_lacks_is_refused(template, error, message):
    before = config.LOOP_VECTORIZE
    with pytest.raises(error, match=message):
        DeviceKernel(__name__, template, "kernel", work_dtype((), ()), 1)._make()
    assert before == config.LOOP_VECTORIZE == 1


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        ("linear", lambda: device.kernel(*LINEAR_KEYS[0].values)),
        ("block", lambda: block_device.kernel(*NVIDIA_MXFP8.format(FLOAT32, 32, has_codes=False))),
        ("region", lambda: region_device.kernel(parse("region (float x0) => (float y) { y = Neg (x0) }"))),
    ],
)
def test_a_change_of_a_familys_arithmetic_changes_the_name_of_its_file(family, kernel):
    module = f"quark_numba.{family}.device"
    assert kernel()._function.__qualname__.endswith(f"_{cache.digest(module)}")
    assert {f"quark_numba.{family}.arithmetic", "quark_numba.compiling.other_machines", "quark_numba.linear.device"} <= {
        *sources(module)
    }


@pytest.mark.slow
def test_names_are_unique_and_fit_in_file_names():
    kernels = []
    for case in LINEAR_KEYS:
        key, scale = case.values
        kernels.append(device.kernel(key, scale))
    for case in BLOCK_KEYS:
        key, mode, block = case.values
        kernels.append(block_device.kernel(key, format_of(key, block, mode)))
    names = [kernel.entry for kernel in kernels]
    assert len({*names}) == len(names)
    # The digests of the sources and of the machine, and the suffix.
    assert max(map(len, names)) + len(f"gpu__{12 * 'x'}_{12 * 'x'}{cache.SUFFIX}") <= cache._LONGEST_NAME
