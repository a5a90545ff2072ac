"""Kernels for GPUs without a GPU: the function of a thread, compiled for this machine, is called for each thread of the
grid."""

import ctypes

import numpy as np

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
        assert (self._all[self._end :] == 0xA5).all(), "written behind the buffer"


def are_aligned(*buffers):
    return all(buffer.address % 16 == 0 for buffer in buffers)


def launch(kernel, *, units, **fields):
    """Run a DeviceKernel, the last thread first."""
    record = np.zeros((), kernel.work)
    for name, value in {"units": units, **fields}.items():
        record[name] = value.address if isinstance(value, Buffer) else value
    thread_function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(kernel.of_thread.address)
    for block in reversed(range(kernel.count_blocks(units))):
        for thread in reversed(range(kernel.threads)):
            thread_function(record.ctypes.data, block, thread)
    for value in fields.values():
        if isinstance(value, Buffer):
            value.check()
