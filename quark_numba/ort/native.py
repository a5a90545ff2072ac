"""The native way into ONNX Runtime: OrtCustomOp structures whose functions are compiled kernels."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dispatch import TABLE, Key
from ..granularity import FAULTS
from ..lock import creation_lock
from . import c_api
from .c_api import OrtApi, OrtCustomOp
from .operators import DEFAULT_AXIS, OPERATORS, Operator
from .shared_library import MACHINES, shared_library

# The entry of a session's configuration that says which backend has registered: ONNX Runtime refuses a domain that comes
# twice when it creates the session, in words that help nobody.
REGISTERED = "quark_numba.backend"

# ONNX Runtime keeps pointers into these for as long as any session lives: they are never dropped.
_overloads: dict[int, tuple[Operator, Key]] = {}
_kept: list[Any] = []


class NotAvailableError(RuntimeError):
    """The native way does not work in this process; the message says why."""


def get_library_path() -> str:
    """The path of a custom-operator library for ``SessionOptions.register_custom_ops_library``.

    The library leads into this process and lives as long as it does: the path means nothing to another process, and must
    be asked for again after a fork that is followed by an exec.

    Raises
    ------
    RuntimeError
        Where the native way is not available (it needs Linux on x86-64 or AArch64, and a way to load the library).
    """
    with creation_lock:
        path, reason = _library()
    if path is None:
        raise NotAvailableError(reason)
    return path


@functools.cache
def _library() -> tuple[str | None, str]:
    """The library's path, or None and the reason; whichever it is stays so."""
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return None, f"it needs Linux on {' or '.join(MACHINES)}, this is {sys.platform} on {platform.machine()}"
    from ..jit import JIT_ENABLED

    if not JIT_ENABLED:
        return None, "NUMBA_DISABLE_JIT is set"
    address = ctypes.cast(_register_custom_ops, c_void_p).value
    assert address is not None
    library = shared_library("RegisterCustomOps", address, machine)
    reasons = []
    for load in (_load_memory_file, _load_temporary_file):
        try:
            return load(library), ""
        except OSError as error:
            reasons.append(str(error))
    return None, f"the library cannot be loaded: {'; '.join(reasons)}"


def _load_memory_file(content: bytes) -> str:
    descriptor = os.memfd_create("quark_numba", os.MFD_CLOEXEC)  # stays open: the path goes through it
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        ctypes.CDLL(path)
    except OSError:
        os.close(descriptor)
        raise
    return path


def _load_temporary_file(content: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="quark_numba_", suffix=".so", delete=False) as file:  # mode 0600
        file.write(content)
    try:
        ctypes.CDLL(file.name)
    except OSError:
        os.remove(file.name)
        raise
    atexit.register(_remove, file.name, os.getpid())
    return file.name


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.remove(path)


@c_api.RegisterCustomOps
def _register_custom_ops(options: int, api_base: Any) -> int | None:
    """Add our domains to an OrtSessionOptions."""
    base = api_base.contents
    api = base.GetApi(c_api.API_VERSION)
    if not api:
        release = base.GetVersionString().decode()
        message = f"quark_numba needs ONNX Runtime {c_api.FIRST_RELEASE} or later; this is {release}"
        return c_api.create_status(base.GetApi(1), c_api.ORT_FAIL, message)

    def add() -> None:
        has_entry = c_api.function(api, OrtApi.HasSessionConfigEntry, c_void_p, c_void_p, c_char_p, POINTER(c_int))
        add_entry = c_api.function(api, OrtApi.AddSessionConfigEntry, c_void_p, c_void_p, c_char_p, c_char_p)
        add_domain = c_api.function(api, OrtApi.AddCustomOpDomain, c_void_p, c_void_p, c_void_p)
        registered = c_int()
        c_api.check(api, has_entry(options, REGISTERED.encode(), ctypes.byref(registered)))
        if registered:
            return
        with creation_lock:
            for domain in _domains(api):
                c_api.check(api, add_domain(options, domain))
        c_api.check(api, add_entry(options, REGISTERED.encode(), b"native"))

    return _status(api, add)


def _status(api: int, action: Callable[[], None]) -> int | None:
    """Do it; an exception, which must not get out into C, becomes an OrtStatus."""
    try:
        action()
    except BaseException as error:
        return c_api.create_status(api, c_api.ORT_FAIL, f"quark_numba: {type(error).__name__}: {error}")
    return None


@functools.cache
def _domains(api: int) -> list[c_void_p]:
    """One OrtCustomOpDomain a domain, with one OrtCustomOp an overload. Typed overloads let ONNX Runtime check types when
    it loads a model, and infer the output type where a model does not state it."""
    create_domain = c_api.function(api, OrtApi.CreateCustomOpDomain, c_void_p, c_char_p, POINTER(c_void_p))
    add_operator = c_api.function(api, OrtApi.CustomOpDomain_Add, c_void_p, c_void_p, c_void_p)
    domains = {}
    for name in dict.fromkeys(operator.domain for operator in OPERATORS):
        domains[name] = c_void_p()
        c_api.check(api, create_domain(name.encode(), ctypes.byref(domains[name])))
    for operator in OPERATORS:
        for key in operator.overloads:
            custom_op = _custom_op(operator, key)
            c_api.check(api, add_operator(domains[operator.domain], ctypes.byref(custom_op)))
    return list(domains.values())


def _custom_op(operator: Operator, key: Key) -> OrtCustomOp:
    from . import compute

    name = ctypes.create_string_buffer(operator.name.encode())  # lives as long as GetName, and so custom_op, does
    input_types = (key.x.number, key.scale.number, key.quantized.number)
    functions: dict[str, Callable[..., Any]] = {
        "GetName": lambda _: ctypes.addressof(name),
        "GetExecutionProviderType": lambda _: None,  # the CPU's
        "GetInputType": lambda _, index: input_types[index],
        "GetInputTypeCount": lambda _: len(input_types),
        "GetOutputType": lambda _, index: key.y.number,
        "GetOutputTypeCount": lambda _: 1,
        "GetInputCharacteristic": lambda _, index: c_api.OPTIONAL if index == 2 else c_api.REQUIRED,
        "GetOutputCharacteristic": lambda _, index: c_api.REQUIRED,
        "GetInputMemoryType": lambda _, index: 0,
        "CreateKernelV2": _create_kernel,
    }
    custom_op = OrtCustomOp(
        version=c_api.API_VERSION,
        KernelComputeV2=compute.compute_function().address,
        KernelDestroy=compute.destroy_function().address,
    )
    for field, function in functions.items():
        setattr(custom_op, field, type(getattr(custom_op, field))(function))
    _overloads[ctypes.addressof(custom_op)] = operator, key
    _kept.append(custom_op)
    return custom_op


def _create_kernel(custom_op: int, api: int, info: int, result: Any) -> int | None:
    """OrtCustomOp::CreateKernelV2: compile what the node needs, now and not in its first run."""

    def create() -> None:
        operator, key = _overloads[custom_op]
        axis = c_api.int64_attribute(api, info, "axis", DEFAULT_AXIS)
        with creation_lock:
            result[0] = _state(api, operator, key, axis).ctypes.data

    return _status(api, create)


@functools.cache
def _state(api: int, operator: Operator, key: Key, axis: int) -> NDArray[Any]:
    """The state of every node that is like this; few are different, so that none needs to be freed."""
    from . import compute

    state = np.zeros(compute.STATE_WORDS, np.int64)
    state[compute.STATE_API] = api
    state[compute.STATE_AXIS] = axis
    state[compute.STATE_TASK] = TABLE[key].task.address
    state[compute.STATE_ZERO_POINT_ITEMSIZE] = key.quantized.storage.itemsize
    state[compute.STATE_MESSAGES] = _messages(operator).ctypes.data
    return state


@functools.cache
def _messages(operator: Operator) -> NDArray[Any]:
    """For each fault the address and the length of its message, with marks for what the run will know."""
    from . import compute

    x, scale, zero_point = operator.input_names
    messages = np.zeros(2 * (max(FAULTS) + 1), np.int64)
    for fault, template in FAULTS.items():
        message = template.format(
            x=x,
            scale=scale,
            zero_point=zero_point,
            x_shape=chr(compute.MARK_X_SHAPE),
            scale_shape=chr(compute.MARK_SCALE_SHAPE),
            zero_point_shape=chr(compute.MARK_ZERO_POINT_SHAPE),
            axis=chr(compute.MARK_AXIS),
        )
        text = np.frombuffer(f"{operator.domain}::{operator.name}: {message}".encode(), np.uint8)
        _kept.append(text)
        messages[2 * fault : 2 * fault + 2] = text.ctypes.data, text.size
    return messages
