"""Makes of this Linux process one that has what macOS has: import it before the package. Its threads get stacks as small as on
macOS.

It shows that the package asks Linux for nothing. It does not show what macOS' own linker, C library and rules for writable code
do to the package: `sessions/test_macos_library.py` has what can be known of the first one."""

import ctypes
import errno
import importlib
import multiprocessing
import os
import sys
import tempfile
import threading

# What is built for Linux has to find what it needs.
for _name in ("numba.core.registry", "numba.np.ufunc.parallel", "numpy", "onnx", "onnxruntime"):
    importlib.import_module(_name)

_ONLY_LINUX = [
    *("copy_file_range", "eventfd", "getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise"),
    *("posix_fallocate", "removexattr", "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sendfile", "setxattr"),
    *("splice", "MFD_CLOEXEC", "O_DIRECT", "O_PATH", "O_TMPFILE", "RTLD_DEEPBIND"),
]

# The bytes of the stack of a thread that a C program starts, and of one that Python starts.
_STACK, _STACK_OF_PYTHON = 512 << 10, 16 << 20


def _refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir", "ctypes.dlopen"}:
        path = arguments[0]
        path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if path.startswith(("/proc", "/sys")):
            raise FileNotFoundError(errno.ENOENT, "as on macOS", path)


def _limit_stacks() -> None:
    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    for result in (
        library.pthread_attr_init(attributes),
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK)),
        library.pthread_setattr_default_np(attributes),
    ):
        assert result == 0
    threading.stack_size(_STACK_OF_PYTHON)


sys.modules["numba.core.registry"].cpu_target.target_context  # noqa: B018  # asks the system for the processor
sys.platform = "darwin"
multiprocessing.set_start_method("spawn", force=True)  # a spawned process has set it
for _name in _ONLY_LINUX:
    if hasattr(os, _name):
        delattr(os, _name)
tempfile._O_TMPFILE_WORKS = False  # which it would only find out from a file
_limit_stacks()
sys.addaudithook(_refuse_proc)
