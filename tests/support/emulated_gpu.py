"""Kernels for GPUs without a GPU: the function of a thread, compiled for this machine, is called for each thread of the
grid."""

import ctypes
from unittest import mock

import numpy as np

from quark_numba.block import device as block_device
from quark_numba.compiling import device, jit
from quark_numba.compiling.intrinsics import address_of
from quark_numba.linear import device as linear_device
from quark_numba.region import device as region_device

GUARD = 64  # bytes around a buffer, which must stay as they are


class Buffer:
    """Bytes at an address whose remainder by 64 is `offset`, with guards around them."""

    def __init__(self, content, offset=0):
        size = content if isinstance(content, int) else content.nbytes
        self._all = np.full(size + 4 * GUARD, 0xA5, np.uint8)
        self._begin = GUARD + (offset - self._all.ctypes.data) % GUARD
        self._end = self._begin + size
        if not isinstance(content, int):
            self.bytes[:] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)

    @property
    def bytes(self):
        return self._all[self._begin : self._end]

    @property
    def address(self):
        return self._all.ctypes.data + self._begin

    def check(self):
        assert (self._all[: self._begin] == 0xA5).all(), "written before the buffer"
        assert (self._all[self._end :] == 0xA5).all(), "written beyond the buffer"


def are_aligned(*buffers):
    return all(buffer.address % 16 == 0 for buffer in buffers)


def _loader(count):
    load = device.loader(count)

    def checked(array, index):
        is_misaligned = address_of(array, index) % (count * array.itemsize) != 0
        return load(array, index + np.uintp(is_misaligned))

    return jit.inline(checked)


@jit.inline
def _store(array, index, items):
    is_misaligned = address_of(array, index) % (len(items) * array.itemsize) != 0
    device.store(array, index + np.uintp(is_misaligned), items)


def kernel_of(module, *arguments, **options):
    """Return the kernel that a family's module `device` makes. If a vector is not at a multiple of its size, which GPUs refuse,
    its neighbours are read and written."""
    families = linear_device, block_device, region_device
    patches = [mock.patch.multiple(family, loader=_loader, store=_store) for family in families]
    with patches[0], patches[1], patches[2]:
        return module.kernel.__wrapped__(*arguments, **options)


def launch(kernel, *, units, **fields):
    """Run a DeviceKernel, the last thread first."""
    record = np.zeros((), kernel.work)
    for name, value in {"units": units, **fields}.items():
        record[name] = value.address if isinstance(value, Buffer) else value
    thread_function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(kernel.thread_function.address)
    for block in reversed(range(kernel.count_thread_blocks(units))):
        for thread in reversed(range(kernel.threads)):
            thread_function(record.ctypes.data, block, thread)
    for value in fields.values():
        if isinstance(value, Buffer):
            value.check()


def assert_same_values(made, expected, element_type, case):
    """Check that a buffer has the bits of an array, in packed bytes or of an element type. Any NaN will do for a NaN: two of
    them are added in either order, and GPUs have one alone."""
    bits, expected = made.bytes, np.ascontiguousarray(expected).reshape(-1)
    if not element_type.is_integer and bits.size == expected.size * element_type.dtype.itemsize:
        values, wanted = (each.view(np.uint8).view(element_type.dtype).astype(np.float32) for each in (bits, expected))
        np.testing.assert_array_equal(np.isnan(values), np.isnan(wanted), str(case))
        integers = f"u{element_type.dtype.itemsize}"
        bits, expected = (each.view(np.uint8).view(integers)[~np.isnan(wanted)] for each in (bits, expected))
    np.testing.assert_array_equal(bits.view(np.uint8), expected.view(np.uint8), str(case))
