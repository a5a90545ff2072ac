"""A stand-in for the CUDA driver that runs kernels on this machine: in a session, the CPU provider of ONNX Runtime takes the
nodes for GPUs."""

import contextlib
import ctypes
from types import SimpleNamespace
from unittest import mock

from quark_numba.ort import cuda, native

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_uint64,
    *[ctypes.c_uint32] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


class Driver:
    """`launches` has the kernel's entry, the number of blocks and the stream of each launch. If `code` is not 0, the driver
    starts nothing and returns it."""

    def __init__(self):
        self.kernels, self.launches, self.code = {}, [], 0
        self.library = SimpleNamespace(cuLaunchKernel=_LAUNCH(self._launch))

    def loaded(self, kernel):
        """Return a handle, in place of ``cuda.loaded``."""
        assert f".entry {kernel.entry}(" in kernel.ptx
        self.kernels[id(kernel)] = kernel
        return id(kernel)

    def _launch(self, handle, blocks, y, z, threads, thread_y, thread_z, shared, stream, records, extra):
        kernel = self.kernels[handle]
        if self.code:
            return self.code
        assert (y, z, threads, thread_y, thread_z, shared, extra) == (1, 1, kernel.threads, 1, 1, 0, None)
        assert blocks < 2**31
        self.launches.append((kernel.entry, blocks, stream))
        record = ctypes.create_string_buffer(ctypes.string_at(records[0], kernel.work.itemsize))
        of_thread = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(kernel.thread_function.address)
        for block in reversed(range(blocks)):
            for thread in reversed(range(threads)):
                of_thread(ctypes.addressof(record), block, thread)
        return 0


@contextlib.contextmanager
def emulated_driver():
    """Yield a Driver. Sessions that are created in the context have the nodes of GPUs."""
    driver = Driver()
    patches = [
        mock.patch.multiple(cuda, driver=lambda: driver.library, loaded=driver.loaded),
        mock.patch.object(native, "_providers", return_value=["CPUExecutionProvider"]),
        mock.patch.object(native.REGISTRY, "_domains", {}),
    ]
    with patches[0], patches[1], patches[2]:
        yield driver
